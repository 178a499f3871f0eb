"""How much of a clustering is the data's doing, and how much the sample's.

The same agglomeration is made of several resamplings of the positions, with replacement. What comes out each time was
there; what does not hung on a few positions.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from pd_eqx.cluster.mdl import Tree, agglomerate


@dataclasses.dataclass(frozen=True, eq=False)
class Clustering:
    """The clustering of all positions, and how it fared in the ensemble.

    - `tree`, `clusters`: of all positions.
    - `stability`: of each component: the mean over the ensemble of the overlap `|A ∩ B| / |A ∪ B|` of its cluster `A` with
      the cluster `B` that it was in there; 1 where it always had the same companions.
    - `agreement`: the mean adjusted Rand index of each two members of the ensemble; 1 for the same clusters, 0 for
      as much as chance. None for an ensemble of less than two.
    """

    tree: Tree
    clusters: Int[np.ndarray, " m"]
    stability: Float[np.ndarray, " m"]
    agreement: float | None


def cluster(
    active: Bool[np.ndarray, "positions m"], alpha: float, members: int, seed: int = 0
) -> Clustering:
    """Clusters components, once on all positions and once for each member of the ensemble.

    **Arguments:**

    - `active`, `alpha`: see `pd_eqx.cluster.mdl`.
    - `members`: how many resamplings; `seed`: member `i` draws from `(seed, i)`.
    """
    tree = agglomerate(active, alpha)
    clusters = tree.clusters()
    found = [
        _resampled(active, alpha, np.random.default_rng([seed, index])) for index in range(members)
    ]
    overlaps = [_overlap(clusters, other) for other in found]
    stability = np.mean(overlaps, axis=0) if overlaps else np.full(clusters.size, np.nan)
    pairs = [(a, b) for index, a in enumerate(found) for b in found[:index]]
    agreement = float(np.mean([adjusted_rand(a, b) for a, b in pairs])) if pairs else None
    return Clustering(tree, clusters, stability, agreement)


def adjusted_rand(first: Int[np.ndarray, " m"], second: Int[np.ndarray, " m"]) -> float:
    """The adjusted Rand index of two clusterings (Hubert and Arabie 1985)."""

    def pairs(counts: np.ndarray) -> float:
        return float(np.sum(counts * (counts - 1)) / 2)

    _, first = np.unique(first, return_inverse=True)
    _, second = np.unique(second, return_inverse=True)
    joint = pairs(np.unique(first * (second.max() + 1) + second, return_counts=True)[1])
    of_first, of_second = pairs(np.bincount(first)), pairs(np.bincount(second))
    total = pairs(np.array([first.size]))
    expected = of_first * of_second / total if total else 0.0
    highest = (of_first + of_second) / 2
    return 1.0 if highest == expected else (joint - expected) / (highest - expected)


def _resampled(
    active: Bool[np.ndarray, "positions m"], alpha: float, random: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """The clusters of a resampling; a component that does not fire in it is a cluster of its own."""
    sample = active[random.integers(len(active), size=len(active))]
    fires = sample.any(axis=0)
    clusters = np.arange(active.shape[1])
    if fires.any():
        clusters[fires] = active.shape[1] + agglomerate(sample[:, fires], alpha).clusters()
    return clusters


def _overlap(
    clusters: Int[np.ndarray, " m"], other: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " m"]:
    _, a = np.unique(clusters, return_inverse=True)
    _, b = np.unique(other, return_inverse=True)
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), 1)
    both = joint[a, b]
    return both / (np.bincount(a)[a] + np.bincount(b)[b] - both)
