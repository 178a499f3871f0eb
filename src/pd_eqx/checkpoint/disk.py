"""How a step comes to be on disk, and how it leaves, so that no crash makes half of one.

The order, and the crash that each part survives:

1. Everything is written under `.saving-N-…`, a name that no reader takes for a step and no other attempt
   shares: threads of a failed attempt may write on for a while. A crash here leaves that directory; it
   is not a step, and the next save of step N removes it.
2. All files and directories in it are flushed to the disk, the manifest last. A loss of power after the
   rename below finds every byte that the name promises.
3. One rename gives it its name N, and the parent directory is flushed. The rename is atomic: before
   it the step is absent, after it the step is whole. It never replaces a step: a directory of
   that name that is not empty makes it fail.
4. Only then are older steps removed, each first renamed to `.removing-N`. A crash between leaves
   a directory that is no step any more and that the next removal finishes.

Names that are not plain decimal numbers, and numbers without a manifest, are never touched.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_SAVING = ".saving-"
_REMOVING = ".removing-"


def step_number(name: str) -> int | None:
    """The step that a directory's name stands for, if it is one that a save would give."""
    if name.isascii() and name.isdecimal() and str(int(name)) == name:
        return int(name)
    return None


def numbered(root: Path) -> list[int]:
    """The steps by name alone, ascending, whether or not they are whole."""
    return sorted(
        number
        for entry in _entries(root)
        if (number := step_number(entry.name)) is not None and entry.is_dir()
    )


def foreign(root: Path) -> list[str]:
    """The names in the directory that stand for no step."""
    return sorted(
        entry.name
        for entry in _entries(root)
        if step_number(entry.name) is None or not entry.is_dir()
    )


def saving(name: str) -> int | None:
    """The step whose unfinished save has this name, if any has."""
    if not name.startswith(_SAVING):
        return None
    return step_number(name.removeprefix(_SAVING).partition("-")[0])


def removing(name: str) -> int | None:
    """The step whose unfinished removal has this name, if any has."""
    return step_number(name.removeprefix(_REMOVING)) if name.startswith(_REMOVING) else None


def attempt() -> int:
    """A number for one attempt to save; of 31 bits."""
    return secrets.randbits(31)


def staging(root: Path, step: int, attempt: int) -> Path:
    """The directory that an attempt writes step N into."""
    return root / f"{_SAVING}{step}-{attempt:08x}"


def stage(root: Path, step: int, attempt: int) -> None:
    """Make that directory; what earlier, failed saves of the step left is removed."""
    for name in foreign(root):
        if saving(name) == step:
            shutil.rmtree(root / name)
    staging(root, step, attempt).mkdir(parents=True)


def unstage(root: Path, step: int) -> None:
    """Remove what failed saves of step N left, as far as the disk lets us."""
    for name in foreign(root):
        if saving(name) == step:
            shutil.rmtree(root / name, ignore_errors=True)


def publish(staged: Path, root: Path, step: int) -> None:
    """Give a staged and flushed step its name, durably.

    **Errors:** `FileExistsError` or `OSError` when the name is taken.
    """
    target = root / str(step)
    if target.exists():
        raise FileExistsError(f"{target} appeared while step {step} was being saved")
    (staged / str(step)).rename(target)
    flush(root)
    staged.rmdir()


def remove(root: Path, step: int) -> None:
    """Remove a step: at once by name, then its bytes."""
    doomed = root / f"{_REMOVING}{step}"
    if doomed.exists():
        shutil.rmtree(doomed)
    (root / str(step)).rename(doomed)
    flush(root)
    shutil.rmtree(doomed)


def finish_removals(root: Path) -> None:
    """Remove what removals that were cut short have left."""
    for name in foreign(root):
        if removing(name) is not None:
            shutil.rmtree(root / name)


def write(path: Path, content: bytes) -> None:
    """Write a file and flush it."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_tree(root: Path) -> None:
    """Flush every file and directory under `root`, and `root` itself."""
    for path in root.rglob("*"):
        flush(path)
    flush(root)


def flush(path: Path) -> None:
    """Flush one file, or the names in one directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            yield from entries
    except FileNotFoundError:
        return
