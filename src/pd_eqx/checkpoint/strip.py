"""Frees what only a resume needs: removes one item of every whole step, and keeps the rest as it was.

A finished run is read for its product, while nine tenths of its bytes are the process. What is kept must not
be put at risk to free the rest, so nothing is removed in place. For each step:

1. The kept items are copied to `.stripping-N/N`, with a manifest that says what was stripped, and flushed.
   A crash here leaves that directory, which no reader takes for a step.
2. Every copied file is compared with the original byte for byte, and the copy is verified as a step.
3. The copy and the original change places in one atomic exchange: at each instant there is a whole
   step N. Where the file system cannot exchange, the original first steps aside to `.stripping-N/original`; a
   crash between the two renames is repaired, in favour of the original, by the next call.
4. Only then is the original removed.

A step that is not whole, or whose bytes are not what was saved, refuses the whole call before anything is
written.
"""

import ctypes
import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from pd_eqx.checkpoint import disk, manifest
from pd_eqx.checkpoint.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StructureMismatchError,
)
from pd_eqx.checkpoint.manifest import Manifest
from pd_eqx.checkpoint.store import CheckpointStore

_STRIPPING = ".stripping-"
_ORIGINAL = "original"
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class StrippedStep:
    """One step, as it was found.

    - `step`: its number.
    - `freed`: bytes on disk of the item's files; 0 for a step that was stripped before.
    - `kept`: bytes on disk of all other files.
    - `was_stripped`: whether there was nothing left to do.
    """

    step: int
    freed: int
    kept: int
    was_stripped: bool


@dataclasses.dataclass(frozen=True)
class Stripping:
    """What `strip` did, or would do.

    - `path`: the checkpoints.
    - `item`: the name of the item.
    - `steps`: every step, ascending.
    - `applied`: whether it was done.
    """

    path: Path
    item: str
    steps: tuple[StrippedStep, ...]
    applied: bool

    @property
    def freed(self) -> int:
        """Bytes on disk of all that goes."""
        return sum(step.freed for step in self.steps)


def strip(path: str | Path, item: str, *, apply: bool = False) -> Stripping:
    """Removes `item` from every step in `path`; without `apply`, only tells what that would free.

    Nobody else may write to `path` meanwhile.

    **Arguments:**
    - `path`: a directory of checkpoints.
    - `item`: the name of the item, such as `training`.
    - `apply`: do it.

    **Returns:** what was, or would be, removed.

    **Errors:** `CheckpointNotFoundError` where there is no step; `IncompleteCheckpointError` and
    `CorruptCheckpointError` for a step that is not whole and intact; `StructureMismatchError` for one that never
    had the item or has nothing else. Nothing was removed then.
    """
    root = Path(path).absolute()
    if apply:
        _repair(root)
    with CheckpointStore(root, read_only=True) as store:
        described = store.describe().steps
        if not described:
            raise CheckpointNotFoundError(f"there is no step in {root}")
        for step in described:
            if step.problem:
                raise IncompleteCheckpointError(
                    f"nothing was stripped: {step.problem}. Remove step {step.step} or move it away first"
                )
        records = [(step.step, _record(root, step.step, item)) for step in described]
        if apply:
            for number, record in records:
                if not _is_stripped(record, item):
                    store.verify(number)
    found = tuple(_measured(root, number, record, item) for number, record in records)
    if apply:
        for number, record in records:
            if not _is_stripped(record, item):
                _strip_step(root, number, item)
    return Stripping(root, item, found, apply)


def _record(root: Path, step: int, item: str) -> Manifest:
    record = manifest.read(root / str(step))
    if item not in record.names or record.names == [item]:
        raise StructureMismatchError(
            f"nothing was stripped: step {step} of {root} holds {', '.join(record.names)}; it can be stripped of "
            f"{item} where it holds that and something else"
        )
    return record


def _is_stripped(record: Manifest, item: str) -> bool:
    return any(entry.stripped for entry in record.entries if entry.name == item)


def _measured(root: Path, step: int, record: Manifest, item: str) -> StrippedStep:
    directory = root / str(step)
    total = sum(path.stat().st_size for path in _files(directory))
    going = sum(path.stat().st_size for path in _files(directory / item))
    return StrippedStep(step, going, total - going, _is_stripped(record, item))


def _strip_step(root: Path, step: int, item: str) -> None:
    original, place = root / str(step), root / f"{_STRIPPING}{step}"
    staged = place / str(step)
    try:
        place.mkdir()
        shutil.copytree(original, staged, ignore=_without(original, {item, manifest.NAME}))
        content = (original / manifest.NAME).read_bytes()
        disk.write(staged / manifest.NAME, manifest.stripped(content, original, item))
        _compare(original, staged, item)
        with CheckpointStore(place, read_only=True) as store:
            store.verify(step)
        disk.flush_tree(staged)
        disk.flush(place)
        _swap(staged, original, place / _ORIGINAL)
        disk.flush(root)
    except OSError as error:
        _repair(root)
        raise CheckpointError(
            f"step {step} of {root} was not stripped, and is as it was: {error}"
        ) from error
    except CheckpointError:
        _repair(root)
        raise
    shutil.rmtree(place)


def _without(top: Path, names: set[str]) -> Callable[[str, list[str]], set[str]]:
    def ignored(directory: str, _: list[str]) -> set[str]:
        return names if Path(directory) == top else set()

    return ignored


def _compare(original: Path, staged: Path, item: str) -> None:
    """**Errors:** `CheckpointError` unless the copy has the very bytes of all that is kept."""
    kept = {
        inside
        for path in _files(original)
        if (inside := path.relative_to(original)).parts[0] not in (item, manifest.NAME)
    }
    copied = {path.relative_to(staged) for path in _files(staged)} - {Path(manifest.NAME)}
    wrong = [*(kept ^ copied), *(file for file in kept & copied if _differ(original, staged, file))]
    if wrong:
        raise CheckpointError(
            f"{original} was not stripped, and is as it was: the copy of {wrong[0]} differs from the original"
        )


def _differ(original: Path, staged: Path, file: Path) -> bool:
    with (original / file).open("rb") as left, (staged / file).open("rb") as right:
        while True:
            block = left.read(_BLOCK)
            if block != right.read(_BLOCK):
                return True
            if not block:
                return False


def _swap(staged: Path, original: Path, aside: Path) -> None:
    """Puts `staged` in the place of `original`, which ends up inside the staging directory."""
    if _exchange(staged, original):
        return
    original.rename(aside)
    staged.rename(original)


def _exchange(left: Path, right: Path) -> bool:
    """Two directories change names at once; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(left), here, os.fsencode(right), both) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(right))


def _repair(root: Path) -> None:
    """Clears what earlier calls left that were cut short: the original goes back if it had stepped aside."""
    for name in disk.foreign(root):
        step = disk.step_number(name.removeprefix(_STRIPPING))
        if not name.startswith(_STRIPPING) or step is None:
            continue
        aside = root / name / _ORIGINAL
        if aside.exists() and not (root / str(step)).exists():
            aside.rename(root / str(step))
            disk.flush(root)
        shutil.rmtree(root / name)


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())
