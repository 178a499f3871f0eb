"""Agglomeration of components by minimum description length.

What is described is which components fire at each of many positions. It is told group by group: at each position, a
group any of whose components fires is named, at `log2 k` bits for `k` groups, and its components are then described at
`alpha` bits each, be they on or off:

    cost = Σ_groups s_g · (log2 k + alpha · r_g)

where `s_g` counts the positions at which the group is active and `r_g` its components. Two components that always fire
together are cheaper as one group; two that never do are not. Starting from a group for each component, the two
groups whose merger lowers the cost most are merged, over and over. The clusters are those at the point at which no
merger of groups that were ever active together lowers the cost further; from there on mergers are still made, the
cheapest first, so that the tree is whole.

Source: the principle is that of Rissanen 1978; the cost has the form that goodfire-ai/spd uses to cluster components
(bits to name a group, and bits for its rank). Whether mergers agree with that project's was not compared.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """All mergers of `m` components, in order.

    - `pairs`: the two groups merged; group `i < m` is component `i`, and group `m + t` is what merger `t` made.
    - `sizes`: components of the merged group.
    - `change`: bits by which the merger changed the cost.
    - `stop`: how many mergers lead to the clusters.
    - `start_cost`: bits before the first merger.
    """

    pairs: Int[np.ndarray, "mergers 2"]
    sizes: Int[np.ndarray, " mergers"]
    change: Float[np.ndarray, " mergers"]
    stop: int
    start_cost: float

    @property
    def cost(self) -> Float[np.ndarray, " costs"]:
        """Bits before the first merger and after each."""
        return self.start_cost + np.concatenate([[0.0], np.cumsum(self.change)])

    def linkage(self) -> Float[np.ndarray, "mergers 4"]:
        """The tree as `scipy.cluster.hierarchy` takes it.

        The third column, a distance there, is the number of the merger from 1, since changes in cost need not ascend:
        `fcluster(linkage, stop, "distance")` gives the clusters.
        """
        number = np.arange(1, len(self.pairs) + 1)
        return np.column_stack([self.pairs, number, self.sizes]).astype(np.float64)

    def clusters(self) -> Int[np.ndarray, " m"]:
        """The cluster of each component, numbered from 0 in the order of their first components."""
        count = len(self.pairs) + 1
        group = np.arange(count)
        for merger, (first, second) in enumerate(self.pairs[: self.stop]):
            group[(group == first) | (group == second)] = count + merger
        _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]


def description_length(
    active: Bool[np.ndarray, "positions m"], clusters: Int[np.ndarray, " m"], alpha: float
) -> float:
    """The cost of a clustering, in bits.

    **Arguments:**

    - `active`: which components fire at each position.
    - `clusters`: a number for each component; equal ones are a group.
    - `alpha`: bits that describe one component of an active group.
    """
    groups = np.unique(clusters)
    bits = 0.0
    for group in groups:
        members = clusters == group
        positions = np.count_nonzero(active[:, members].any(axis=1))
        bits += positions * (np.log2(groups.size) + alpha * np.count_nonzero(members))
    return float(bits)


def agglomerate(active: Bool[np.ndarray, "positions m"], alpha: float = 1.0) -> Tree:
    """Merges groups until one is left; see the module.

    Takes memory for a few numbers a pair of components, and time for each pair at each merger: `m³ / 3` in all.

    **Arguments:**

    - `active`, `alpha`: see `description_length`.

    **Errors:** `ValueError` without a component, for a component that never fires, and for an `alpha` below 0 or without end.
    """
    count = active.shape[1]
    if not 0 <= alpha < np.inf:
        raise ValueError(f"alpha is {alpha}; it must be at least 0 and finite")
    if not count or not active.any(axis=0).all():
        raise ValueError("every component must fire at least once; leave the others out")
    member = active.copy()
    size = member.sum(axis=0, dtype=np.int64)  # s of each group
    rank = np.ones(count, np.int64)
    name = np.arange(count)
    together = _together(member)
    change = np.zeros(count - 1)
    pairs = np.zeros((count - 1, 2), np.int64)
    sizes = np.zeros(count - 1, np.int64)
    start_cost = float(np.sum(size * (np.log2(count) + alpha * rank)))
    stop: int | None = None
    for merger in range(count - 1):
        groups = count - merger
        before, after = np.log2(groups), np.log2(groups - 1)
        # What depends on the pair: bits for the union's rank, less the name that is told once instead of twice.
        cross = np.outer(size, rank).astype(np.float32)
        score = alpha * (cross + cross.T - together * (rank[:, None] + rank[None, :]))
        score -= np.float32(after) * together
        np.fill_diagonal(score, np.inf)
        common = size.sum() * (after - before)
        if stop is None:
            chosen = np.where(together > 0, score, np.inf)
            at = int(np.argmin(chosen))
            if not chosen.flat[at] + common < 0:
                stop = merger
                at = int(np.argmin(score))
        else:
            at = int(np.argmin(score))
        first, second = sorted(divmod(at, groups))
        change[merger] = _change(
            size, rank, float(together[first, second]), (first, second), alpha, groups
        )
        pairs[merger] = sorted((name[first], name[second]))
        member[:, first] |= member[:, second]
        rank[first] += rank[second]
        sizes[merger] = rank[first]
        name[first] = count + merger
        size[first] = np.count_nonzero(member[:, first])
        member, size, rank, name = (
            np.delete(each, second, axis=-1) for each in (member, size, rank, name)
        )
        together = np.delete(np.delete(together, second, axis=0), second, axis=1)
        shared = member[member[:, first]].sum(axis=0, dtype=np.int64)
        together[first], together[:, first] = shared, shared
    return Tree(pairs, sizes, change, count - 1 if stop is None else stop, start_cost)


def _change(
    size: np.ndarray,
    rank: np.ndarray,
    together: float,
    pair: tuple[int, int],
    alpha: float,
    groups: int,
) -> float:
    """The change in cost by one merger, in double precision."""
    first, second = pair
    before, after = np.log2(groups), np.log2(groups - 1)
    union = size[first] + size[second] - together
    ranks = rank[first] + rank[second]
    told = union * (after + alpha * ranks)
    was = sum(size[each] * (before + alpha * rank[each]) for each in pair)
    others = size.sum() - size[first] - size[second]
    return float(told - was + others * (after - before))


def _together(active: Bool[np.ndarray, "positions m"]) -> Float[np.ndarray, "m m"]:
    """At how many positions each two components fire together; float32 counts to 2²⁴ without loss."""
    return active.T.astype(np.float32) @ active.astype(np.float32)
