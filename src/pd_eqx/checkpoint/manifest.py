"""The record of a step: what was saved, leaf by leaf, and which files hold it.

The manifest is one JSON file in the step's directory, with a checksum of itself. It is written after
all else, so its presence says that the step is whole; it is read before all else. It records each file
with its size, and the content of the small ones that hold no array data by checksum.

The leaves of each item lie in a file of their own beside it, `ITEM.leaves.json`, whose checksum the manifest
holds: the record of the process is several times that of the product, whose readers need none of it. By
it a restore refuses a wrong structure without touching the data, and a tool describes a step whose
classes it does not know.

In format 1 the manifest held the leaves as well; it is still read, and stripping a step keeps its format.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pd_eqx.checkpoint.errors import (
    CorruptCheckpointError,
    IncompleteCheckpointError,
)
from pd_eqx.checkpoint.structure import Node

NAME = "manifest.json"
FORMAT = 2
_WITH_LEAVES = 1


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file of the step: its path within the step, its size, and for metadata its SHA-256."""

    path: str
    bytes: int
    sha256: str | None


@dataclasses.dataclass(frozen=True)
class StoredItem:
    """One item of the step.

    - `nodes`: its containers and leaves.
    - `files`: what holds them; none for an item without arrays.
    - `stripped`: whether its files were removed on purpose after the step was written.
    """

    name: str
    nodes: tuple[Node, ...]
    files: tuple[StoredFile, ...]
    stripped: bool = False

    @property
    def arrays(self) -> tuple[Node, ...]:
        """The leaves with data, in the order of the tree."""
        return tuple(node for node in self.nodes if node.is_array)

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(node.bytes for node in self.arrays)


@dataclasses.dataclass(frozen=True)
class Entry:
    """An item as the manifest alone tells it.

    - `leaves`: the file of its containers and leaves; in format 1 these themselves.
    - `files`, `stripped`: see `StoredItem`.
    """

    name: str
    leaves: "StoredFile | tuple[Node, ...]"
    files: tuple[StoredFile, ...]
    stripped: bool


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a whole step consists of; `files` are those that belong to no item."""

    step: int
    entries: tuple[Entry, ...]
    files: tuple[StoredFile, ...]

    @property
    def names(self) -> list[str]:
        """The names of the items."""
        return [entry.name for entry in self.entries]

    def entry(self, name: str) -> Entry | None:
        """The entry of the item of that name, if the step has it."""
        return next((entry for entry in self.entries if entry.name == name), None)

    @property
    def present(self) -> tuple[StoredFile, ...]:
        """All files of the step but the manifest, and but those of stripped items."""
        records = [entry.leaves for entry in self.entries if isinstance(entry.leaves, StoredFile)]
        stored = [file for entry in self.entries if not entry.stripped for file in entry.files]
        return (*self.files, *records, *stored)


def encode(step: int, items: Sequence[StoredItem], files: Sequence[StoredFile]) -> dict[str, bytes]:
    """The files that record a step, by name; the manifest is the last, and is written last."""
    told: dict[str, bytes] = {}
    entries: list[dict[str, Any]] = []
    for item in items:
        name = f"{item.name}.leaves.json"  # no item has such a name, a field's has no dots
        told[name] = _compact([_node(node) for node in item.nodes])
        record = StoredFile(name, len(told[name]), hashlib.sha256(told[name]).hexdigest())
        entries.append(
            {
                "name": item.name,
                "stripped": item.stripped,
                "leaves": dataclasses.asdict(record),
                "files": [dataclasses.asdict(file) for file in item.files],
            }
        )
    body = {
        "format": FORMAT,
        "step": step,
        "items": entries,
        "files": [dataclasses.asdict(file) for file in files],
    }
    told[NAME] = _sealed(body)
    return told


def stripped(content: bytes, step: Path, item: str) -> bytes:
    """The manifest in the bytes of the file of `step`, after the files of an item were removed on purpose.

    **Errors:** those of `decode`.
    """
    decode(content, step)
    body = json.loads(content)["manifest"]
    for entry in body["items"]:
        entry["stripped"] |= entry["name"] == item
    return _sealed(body)


def decode(content: bytes, step: Path) -> Manifest:
    """The manifest in the bytes of the file of `step`.

    **Errors:** `CorruptCheckpointError` unless it is exactly what was written;
    `IncompleteCheckpointError` when it is intact, but of another format or another step.
    """
    try:
        outer = json.loads(content)
        body = outer["manifest"]
        intact = outer["sha256"] == _checksum(body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(step / NAME) from error
    if not intact:
        raise _damaged(step / NAME)
    if body["format"] not in (_WITH_LEAVES, FORMAT):
        raise IncompleteCheckpointError(
            f"{step} has a manifest of format {body['format']}, and this version reads formats "
            f"{_WITH_LEAVES} and {FORMAT}; use the version of pd_eqx that wrote it"
        )
    if str(body["step"]) != step.name:
        raise IncompleteCheckpointError(
            f"{step} holds step {body['step']}: the directory was renamed or copied; give it back "
            "its own name"
        )
    inside = body["format"] == _WITH_LEAVES
    return Manifest(
        step=body["step"],
        entries=tuple(
            Entry(
                name=item["name"],
                leaves=_nodes(item["nodes"]) if inside else StoredFile(**item["leaves"]),
                files=_files(item["files"]),
                stripped=item["stripped"],
            )
            for item in body["items"]
        ),
        files=_files(body["files"]),
    )


def read(step: Path) -> Manifest:
    """The manifest of a step's directory.

    **Errors:** `IncompleteCheckpointError` when there is none, and those of `decode`.
    """
    try:
        content = (step / NAME).read_bytes()
    except OSError as error:
        raise IncompleteCheckpointError(
            f"{step} has no readable {NAME}, so it was never finished ({error}); nothing reads it"
        ) from error
    return decode(content, step)


def read_item(step: Path, entry: Entry) -> StoredItem:
    """An item with its containers and leaves.

    **Errors:** `IncompleteCheckpointError` when its record cannot be read, `CorruptCheckpointError` unless it is exactly
    what was written.
    """
    leaves = entry.leaves
    if isinstance(leaves, StoredFile):
        try:
            content = (step / leaves.path).read_bytes()
        except OSError as error:
            raise IncompleteCheckpointError(
                f"{step} has lost {leaves.path} ({error}); copy it from a backup, or restore another step"
            ) from error
        if hashlib.sha256(content).hexdigest() != leaves.sha256:
            raise _damaged(step / leaves.path)
        leaves = _nodes(json.loads(content))
    return StoredItem(entry.name, leaves, entry.files, entry.stripped)


def recorded(step: Path, item: str | None, items: frozenset[str]) -> tuple[StoredFile, ...]:
    """The files of one item of a step as they are now, or with `None` those outside of all `items`."""
    found: list[StoredFile] = []
    for path in sorted((step if item is None else step / item).rglob("*")):
        inside = path.relative_to(step)
        if not path.is_file() or (item is None and inside.parts[0] in items):
            continue
        size = path.stat().st_size
        checksum = None if _holds_data(inside) else hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(StoredFile(inside.as_posix(), size, checksum))
    return tuple(found)


def missing(step: Path, files: Sequence[StoredFile]) -> tuple[list[str], list[str]]:
    """Which of the files are absent, and which have another size: a line each. Opens none of them."""
    absent: list[str] = []
    resized: list[str] = []
    for file in files:
        try:
            size = (step / file.path).stat().st_size
        except OSError as error:
            absent.append(f"{file.path} is missing ({error.strerror})")
            continue
        if size != file.bytes:
            resized.append(f"{file.path} has {size} bytes where {file.bytes} were written")
    return absent, resized


def altered(step: Path, files: Sequence[StoredFile]) -> list[str]:
    """Which of the checksummed files differ from what was written: a line each."""
    lines: list[str] = []
    for file in files:
        if file.sha256 is None:
            continue
        try:
            content = (step / file.path).read_bytes()
        except OSError as error:
            lines.append(f"{file.path} cannot be read ({error.strerror})")
            continue
        if hashlib.sha256(content).hexdigest() != file.sha256:
            lines.append(f"{file.path} is not what was written")
    return lines


def _holds_data(path: Path) -> bool:
    return "d" in path.parts[:-1]


def _files(entries: list[dict[str, Any]]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(**entry) for entry in entries)


def _node(node: Node) -> dict[str, Any]:
    if node.is_array:
        return {**dataclasses.asdict(node), "shape": list(node.shape)}
    return {"path": node.path, "kind": node.kind}


def _nodes(entries: list[dict[str, Any]]) -> tuple[Node, ...]:
    return tuple(_decoded(entry) for entry in entries)


def _decoded(entry: dict[str, Any]) -> Node:
    shape: tuple[int, ...] = tuple(entry.get("shape", ()))
    return dataclasses.replace(Node(entry["path"], entry["kind"]), **{**entry, "shape": shape})


def _sealed(body: Any) -> bytes:
    return _compact({"sha256": _checksum(body), "manifest": body})


def _checksum(body: Any) -> str:
    return hashlib.sha256(_compact(body)).hexdigest()


def _compact(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _damaged(file: Path) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{file} is damaged: its checksum does not match. The step's data cannot be trusted; "
        "restore another step, or copy this one from a backup"
    )
