"""The record of a step: what was saved, leaf by leaf, and which files hold it.

The manifest is one JSON file in the step's directory, with a checksum of itself. It is written after
all else, so its presence says that the step is whole; it is read before all else, so a restore can
refuse a wrong structure without touching the data, and a tool can describe a step whose classes it
does not know. It records each file with its size, and the content of the small ones that hold no
array data by checksum: those are read by orbax's own parser, which must never see damage.
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
FORMAT = 1


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
class Manifest:
    """What a whole step consists of; `files` are those that belong to no item."""

    step: int
    items: tuple[StoredItem, ...]
    files: tuple[StoredFile, ...]

    def item(self, name: str) -> StoredItem | None:
        """The item of that name, if the step has it."""
        return next((item for item in self.items if item.name == name), None)


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its file."""
    body = _body(manifest)
    return json.dumps({"sha256": _checksum(body), "manifest": body}, indent=1).encode()


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
        raise _damaged(step) from error
    if not intact:
        raise _damaged(step)
    if body["format"] != FORMAT:
        raise IncompleteCheckpointError(
            f"{step} has a manifest of format {body['format']}, and this version reads format "
            f"{FORMAT}; use the version of pd_eqx that wrote it"
        )
    if str(body["step"]) != step.name:
        raise IncompleteCheckpointError(
            f"{step} holds step {body['step']}: the directory was renamed or copied; give it back "
            "its own name"
        )
    return Manifest(
        step=body["step"],
        items=tuple(
            StoredItem(
                name=item["name"],
                nodes=tuple(_decoded(node) for node in item["nodes"]),
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


def _body(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": manifest.step,
        "items": [
            {
                "name": item.name,
                "stripped": item.stripped,
                "nodes": [_node(node) for node in item.nodes],
                "files": [dataclasses.asdict(file) for file in item.files],
            }
            for item in manifest.items
        ],
        "files": [dataclasses.asdict(file) for file in manifest.files],
    }


def _node(node: Node) -> dict[str, Any]:
    if node.is_array:
        return {**dataclasses.asdict(node), "shape": list(node.shape)}
    return {"path": node.path, "kind": node.kind}


def _decoded(entry: dict[str, Any]) -> Node:
    shape: tuple[int, ...] = tuple(entry.get("shape", ()))
    return dataclasses.replace(Node(entry["path"], entry["kind"]), **{**entry, "shape": shape})


def _checksum(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _damaged(step: Path) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{step / NAME} is damaged: its checksum does not match. The step's data cannot be trusted; "
        "restore another step, or copy this one from a backup"
    )
