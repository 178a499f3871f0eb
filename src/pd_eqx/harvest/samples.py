"""What is kept of endless many windows and positions: the best, and uniform draws, each of bounded size.

A uniform draw keeps the candidates whose hash is lowest. The hash is of where the candidate stands, so the draw of two
harvests together is the draw of one harvest over both, whatever the order: no reservoir could promise that.

A table is a dictionary of columns, numpy arrays of one length.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int64, UInt64

Table = dict[str, np.ndarray]


def taken(table: Mapping[str, np.ndarray], which: np.ndarray) -> Table:
    """Some rows of a table, by number or by mask."""
    return {name: column[which] for name, column in table.items()}


def joined(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Table:
    """The rows of both tables."""
    return {name: np.concatenate([column, second[name]]) for name, column in first.items()}


def priorities(*places: Int64[np.ndarray, " n"] | int) -> UInt64[np.ndarray, " n"]:
    """A uniform 64-bit hash of a place, given as several numbers (Steele et al. 2014, SplitMix64)."""
    hashed = np.zeros(
        1, np.uint64
    )  # numpy warns of an overflow in a scalar, and means it to wrap in an array
    for place in places:
        mixed = hashed + np.asarray(place).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed = mixed ^ (mixed >> np.uint64(31))
    return hashed


def best(table: Mapping[str, np.ndarray], count: int) -> Table:
    """The `count` rows of each component with the highest importance, then the largest activation, in that order."""
    return _first(table, count, (-np.abs(table["activation"]), -table["importance"]))


def drawn(table: Mapping[str, np.ndarray], count: int) -> Table:
    """The `count` rows of each component with the lowest priority, in that order."""
    return _first(table, count, (table["priority"],))


def best_of_each_row(table: Mapping[str, np.ndarray]) -> Int64[np.ndarray, " n"]:
    """Which rows of the table are the best of their component in their sequence."""
    order = np.lexsort(
        (
            table["position"],
            -np.abs(table["activation"]),
            -table["importance"],
            table["row"],
            table["component"],
        )
    )
    component, row = table["component"][order], table["row"][order]
    new = np.ones(order.size, bool)
    new[1:] = (component[1:] != component[:-1]) | (row[1:] != row[:-1])
    return order[new]


def lowest(
    table: Mapping[str, np.ndarray], members: Mapping[str, np.ndarray], count: int
) -> tuple[Table, Table]:
    """The `count` rows of the lowest priority, in that order, and what belongs to them, in any order.

    There may be very many members, and sorting them at each batch would take most of a harvest's time.

    **Arguments:**

    - `members`: components by the priority of the row that they belong to.
    """
    order = np.argsort(table["priority"], kind="stable")[:count]
    kept = taken(table, order)
    last = kept["priority"][-1] if order.size else np.uint64(0)
    return kept, taken(members, (members["priority"] <= last) & (order.size > 0))


def _first(table: Mapping[str, np.ndarray], count: int, keys: tuple[np.ndarray, ...]) -> Table:
    """The first rows of each component by `keys`, the last of which counts most; ties go by place."""
    places = (table["position"], table["row"], table["batch"])
    order = np.lexsort((*places, *keys, table["component"]))
    component = table["component"][order]
    begins = np.flatnonzero(np.append(True, component[1:] != component[:-1])[: component.size])
    sizes = np.diff(np.append(begins, component.size))
    rank = np.arange(component.size) - np.repeat(begins, sizes)
    return taken(table, order[rank < count])
