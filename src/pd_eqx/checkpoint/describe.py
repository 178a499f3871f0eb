"""What is on disk, told without reading data and without knowing any class.

Everything in the directory is accounted for: whole steps with their items, numbered directories that
are no whole step and why, and whatever else lies there.
"""

import dataclasses
from pathlib import Path

from pd_eqx.checkpoint import disk
from pd_eqx.checkpoint.manifest import StoredItem

_OF_ORBAX = ".orbax-checkpoint-tmp"


@dataclasses.dataclass(frozen=True)
class StepDescription:
    """One numbered directory.

    - `step`: its number.
    - `items`: what its manifest says it holds; empty when the manifest cannot be read.
    - `problem`: why it is no whole step, in a sentence; empty when it is one.
    """

    step: int
    items: tuple[StoredItem, ...]
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether `steps()` counts it."""
        return not self.problem

    @property
    def bytes(self) -> int:
        """Bytes of the arrays of the items that are still there."""
        return sum(item.bytes for item in self.items if not item.stripped)


@dataclasses.dataclass(frozen=True)
class Stray:
    """Something in the directory that is no step: its name, and what it seems to be."""

    name: str
    meaning: str


@dataclasses.dataclass(frozen=True)
class StoreDescription:
    """A whole directory: every numbered directory, ascending, and all else by name."""

    path: Path
    steps: tuple[StepDescription, ...]
    strays: tuple[Stray, ...]


def strays(root: Path) -> tuple[Stray, ...]:
    """What lies in the directory beside numbered directories."""
    return tuple(Stray(name, _meaning(name)) for name in disk.foreign(root))


def _meaning(name: str) -> str:
    unfinished = disk.saving(name)
    if unfinished is not None:
        return f"an unfinished save of step {unfinished}; saving that step again replaces it"
    removed = disk.removing(name)
    if removed is not None:
        return f"the rest of step {removed}, whose removal was cut short; the next removal ends it"
    if _OF_ORBAX in name:
        return "a temporary directory of another writer that uses orbax"
    return "no step: a step's directory is named by its plain decimal number"
