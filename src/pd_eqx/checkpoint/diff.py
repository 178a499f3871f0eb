"""Two stored steps, array by array: the same bits, or how far apart.

What is compared is what is on disk, read and checked against its fingerprints, not the fingerprints alone. No
class of the states has to be known, and one array of each side is in memory at a time where the two agree
in structure.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from pd_eqx.checkpoint.errors import IncompleteCheckpointError
from pd_eqx.checkpoint.manifest import StoredItem
from pd_eqx.checkpoint.store import CheckpointStore
from pd_eqx.checkpoint.structure import Node

_BLOCK = 1 << 20
Verdict = Literal["equal", "differs", "only in A", "only in B", "another kind"]


@dataclasses.dataclass(frozen=True)
class LeafDifference:
    """One path of either side.

    - `path`: where, item included.
    - `verdict`: `equal` means bit for bit; `another kind` that shape, dtype or container differ.
    - `a`, `b`: what is stored there, such as `float32[5,20]`; empty on the side that has nothing.
    - `differing`: how many entries have other bits.
    - `max_abs`, `max_rel`: the largest difference, and the largest one as a share of the larger magnitude of
      the two. Infinite where only one of the two is not a number or infinite. None where they cannot
      be told: for equal arrays, PRNG keys, and items that were stripped.
    """

    path: str
    verdict: Verdict
    a: str
    b: str
    differing: int = 0
    max_abs: float | None = None
    max_rel: float | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two steps compared: every array and every empty place of either, in the order of A and then of B."""

    step_a: int
    step_b: int
    leaves: tuple[LeafDifference, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return all(leaf.verdict == "equal" for leaf in self.leaves)


def diff(a: CheckpointStore, b: CheckpointStore, step_a: int, step_b: int) -> Difference:
    """Compares a step of one store with a step of another, or of the same.

    Of an item that either side was stripped of, the recorded fingerprints are compared.

    **Errors:** `CheckpointNotFoundError`, `IncompleteCheckpointError`, `CorruptCheckpointError`.
    """
    there = {item.name: item for item in _items(a, step_a)}
    here = {item.name: item for item in _items(b, step_b)}
    leaves = [
        leaf
        for name in dict.fromkeys([*there, *here])
        for leaf in _item(a, b, step_a, step_b, there.get(name), here.get(name))
    ]
    return Difference(step_a, step_b, tuple(leaves))


def _items(store: CheckpointStore, step: int) -> tuple[StoredItem, ...]:
    described = store.describe(step)
    if described.problem:
        raise IncompleteCheckpointError(described.problem)
    return described.items


def _item(
    a: CheckpointStore,
    b: CheckpointStore,
    step_a: int,
    step_b: int,
    there: StoredItem | None,
    here: StoredItem | None,
) -> Iterator[LeafDifference]:
    left = {node.path: node for node in _ends(there)}
    right = {node.path: node for node in _ends(here)}
    readable = there is not None and here is not None and not (there.stripped or here.stripped)
    arrays_a = _Arrays(a, step_a, there) if readable else None
    arrays_b = _Arrays(b, step_b, here) if readable else None
    for path in dict.fromkeys([*left, *right]):
        one, other = left.get(path), right.get(path)
        if one is None or other is None:
            told = (one or other or Node(path, "")).told()
            yield (
                LeafDifference(path, "only in B", "", told)
                if one is None
                else LeafDifference(path, "only in A", told, "")
            )
        elif one.told() != other.told():
            yield LeafDifference(path, "another kind", one.told(), other.told())
        elif not one.is_array:
            yield LeafDifference(path, "equal", one.told(), other.told())
        elif arrays_a is None or arrays_b is None:
            verdict = "equal" if one.fingerprint == other.fingerprint else "differs"
            yield LeafDifference(path, verdict, one.told(), other.told())
        else:
            yield _compared(one, arrays_a.take(path), arrays_b.take(path))


class _Arrays:
    """The arrays of one item by path, read in order and held only until they are asked for."""

    def __init__(self, store: CheckpointStore, step: int, item: StoredItem | None) -> None:
        self._reader = store.read_item(item.name, step) if item is not None else iter(())
        self._waiting: dict[str, np.ndarray] = {}

    def take(self, path: str) -> np.ndarray:
        while path not in self._waiting:
            node, array = next(self._reader)
            self._waiting[node.path] = array
        return self._waiting.pop(path)


def _ends(item: StoredItem | None) -> list[Node]:
    """Arrays, and whatever else has nothing below it."""
    if item is None:
        return []
    above = {
        node.path[:position]
        for node in item.nodes
        for position, sign in enumerate(node.path)
        if sign in ".["
    }
    return [node for node in item.nodes if node.is_array or node.path not in above]


def _compared(node: Node, left: np.ndarray, right: np.ndarray) -> LeafDifference:
    told = node.told()
    one, other = left.reshape(-1), right.reshape(-1)
    differing, max_abs, max_rel = 0, 0.0, 0.0
    for start in range(0, one.size, _BLOCK):
        x, y = one[start : start + _BLOCK], other[start : start + _BLOCK]
        unlike = _unlike(x, y)
        if not unlike.any():
            continue
        differing += int(unlike.sum())
        apart, share = _distances(x[unlike], y[unlike])
        max_abs, max_rel = max(max_abs, apart), max(max_rel, share)
    if not differing:
        return LeafDifference(node.path, "equal", told, told)
    if node.dtype.startswith("key<"):
        return LeafDifference(node.path, "differs", told, told, differing)
    return LeafDifference(node.path, "differs", told, told, differing, max_abs, max_rel)


def _unlike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which entries of two flat arrays of one dtype have other bits."""
    size = left.dtype.itemsize
    word = np.uint64 if size > 8 else {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    x, y = (np.ascontiguousarray(side).view(word).reshape(left.size, -1) for side in (left, right))
    return (x != y).any(axis=1)


def _distances(left: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """The largest absolute and relative difference of two flat arrays."""
    # Wide enough for every integer of 64 bits where the machine has such a type.
    wide = {"i": np.longdouble, "u": np.longdouble, "c": np.complex128}.get(
        left.dtype.kind, np.float64
    )
    x, y = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        apart = np.abs(x - y)
        larger = np.maximum(np.abs(x), np.abs(y))
        both = (np.isnan(x) & np.isnan(y)) | (x == y)
        share = np.where(larger > 0, apart / larger, 0)
    apart = np.where(both, 0, np.where(np.isfinite(apart), apart, np.inf))
    share = np.where(both, 0, np.where(np.isfinite(share), share, np.inf))
    return float(apart.max()), float(share.max())
