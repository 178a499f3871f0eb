"""Counts of pairs, most of which never occur: sorted keys and their integer counts.

Adding two of them is exact and does not depend on the order, which is what makes partial harvests mergeable.
"""

import dataclasses

import numpy as np
from jaxtyping import Int64

_LOW = 32


@dataclasses.dataclass(frozen=True, eq=False)
class PairCounts:
    """How often, or how much, each pair `(first, second)` occurred; a pair that is not there never did.

    - `keys`: `first · 2³² + second`, ascending, each once.
    - `values`: their counts.
    """

    keys: Int64[np.ndarray, " n"]
    values: Int64[np.ndarray, " n"]

    @property
    def first(self) -> Int64[np.ndarray, " n"]:
        """The first of each pair."""
        return self.keys >> _LOW

    @property
    def second(self) -> Int64[np.ndarray, " n"]:
        """The second of each pair."""
        return self.keys & ((1 << _LOW) - 1)

    def __add__(self, other: "PairCounts") -> "PairCounts":
        """Both counts together."""
        return _summed(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.values, other.values])
        )


NOTHING = PairCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


def count_pairs(
    first: Int64[np.ndarray, " n"],
    second: Int64[np.ndarray, " n"],
    values: Int64[np.ndarray, " n"] | None = None,
) -> PairCounts:
    """The counts of pairs that are given one by one, each with a value, or worth one."""
    keys = (first << _LOW) | second
    return _summed(keys, np.ones_like(keys) if values is None else values)


def _summed(keys: Int64[np.ndarray, " n"], values: Int64[np.ndarray, " n"]) -> PairCounts:
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: keys.size])
    if not begins.size:
        return NOTHING
    summed = np.add.reduceat(values, begins)
    kept = summed != 0
    return PairCounts(keys[begins][kept], summed[kept])
