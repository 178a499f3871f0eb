"""Clusters are those that shorten the description, and the tree is one that scipy takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy

from pd_eqx.cluster.ensemble import adjusted_rand, cluster
from pd_eqx.cluster.mdl import agglomerate, description_length


def patterns(seed: int, positions: int = 60, count: int = 7) -> np.ndarray:
    random = np.random.default_rng(seed)
    causes = random.random((positions, 3)) < random.uniform(0.1, 0.6, 3)
    active = causes[:, random.integers(3, size=count)]
    active &= random.random(active.shape) < 0.8
    active[random.integers(positions, size=count), np.arange(count)] = True
    return active


def planted(positions: int = 400) -> np.ndarray:
    """Components 0, 3 and 5 fire together, 1 and 4 fire together, 2 alone."""
    random = np.random.default_rng(1)
    causes = random.random((positions, 3)) < 0.2
    return causes[:, [0, 1, 2, 0, 1, 0]]


@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_every_merger_is_the_best_and_costs_what_it_says(seed: int, alpha: float) -> None:
    active = patterns(seed)
    count = active.shape[1]
    tree = agglomerate(active, alpha)
    clusters = np.arange(count)
    costs = [description_length(active, clusters, alpha)]
    for merger, pair in enumerate(tree.pairs):
        groups = np.unique(clusters)
        candidates: list[float] = []
        for i, a in enumerate(groups):
            for b in groups[:i]:
                both = active[:, clusters == a].any(1) & active[:, clusters == b].any(1)
                if both.any() or merger >= tree.stop:
                    merged = np.where(clusters == b, a, clusters)
                    candidates.append(description_length(active, merged, alpha))
        best = min(candidates, default=np.inf)
        clusters = np.where(np.isin(clusters, pair), count + merger, clusters)
        costs.append(description_length(active, clusters, alpha))
        assert costs[-1] == pytest.approx(best, rel=1e-5, abs=1e-3)
        assert tree.sizes[merger] == np.count_nonzero(clusters == count + merger)
        if merger < tree.stop:
            assert costs[-1] < costs[-2]
        if merger == tree.stop - 1:
            np.testing.assert_array_equal(adjusted_rand(tree.clusters(), clusters), 1.0)
    np.testing.assert_allclose(tree.cost, costs, rtol=1e-9, atol=1e-6)


def test_what_fires_together_is_found_and_held_apart() -> None:
    tree = agglomerate(planted())
    np.testing.assert_array_equal(tree.clusters(), [0, 1, 2, 0, 1, 0])
    assert tree.stop == 3
    linkage = tree.linkage()
    assert hierarchy.is_valid_linkage(linkage)
    assert hierarchy.is_monotonic(linkage)
    flat = hierarchy.fcluster(linkage, tree.stop, "distance")
    assert adjusted_rand(flat, tree.clusters()) == 1.0
    # When a component costs more than a name, nothing that ever fires alone is worth merging.
    apart = planted()
    apart ^= np.random.default_rng(2).random(apart.shape) < 0.1
    assert agglomerate(apart, alpha=100.0).stop == 0


def test_what_is_never_active_together_is_never_merged_before_the_stop() -> None:
    active = np.eye(6, dtype=bool)[np.arange(120) % 6]
    assert agglomerate(active, alpha=0.0).stop == 0


def test_stability_is_high_for_what_is_there_and_low_for_noise() -> None:
    found = cluster(planted(), 1.0, members=4)
    assert found.agreement == 1.0
    np.testing.assert_array_equal(found.stability, 1.0)
    noise = np.random.default_rng(0).random((40, 12)) < 0.3
    shaky = cluster(noise, 1.0, members=4)
    assert shaky.agreement is not None
    assert shaky.agreement < 0.9
    assert shaky.stability.mean() < 0.9
    alone = cluster(planted(), 1.0, members=0)
    assert alone.agreement is None
    assert np.isnan(alone.stability).all()
    again = cluster(noise, 1.0, members=4)
    np.testing.assert_array_equal(again.stability, shaky.stability)


@given(seed=st.integers(0, 10_000))
def test_stability_is_the_mean_overlap_with_each_resampling(seed: int) -> None:
    """The definition, by sets: one resampling after the other, with the draws that the docstring promises."""
    active = patterns(seed)
    found = cluster(active, 1.0, members=3, seed=seed)
    expected = np.zeros(active.shape[1])
    for member in range(3):
        random = np.random.default_rng([seed, member])
        sample = active[random.integers(len(active), size=len(active))]
        there = [{c} for c in range(active.shape[1])]
        fires = np.flatnonzero(sample.any(axis=0))
        clusters = agglomerate(sample[:, fires]).clusters()
        for c, of in zip(fires, clusters, strict=True):
            there[c] = set(fires[clusters == of].tolist())
        for c, of in enumerate(found.clusters):
            here = set(np.flatnonzero(found.clusters == of).tolist())
            expected[c] += len(here & there[c]) / len(here | there[c]) / 3
    np.testing.assert_allclose(found.stability, expected)


def test_the_adjusted_rand_index() -> None:
    a = np.array([0, 0, 1, 1, 2])
    assert adjusted_rand(a, np.array([5, 5, 3, 3, 4])) == 1.0
    assert adjusted_rand(a, np.array([0, 1, 0, 1, 2])) < 0.0
    # Worked by hand: 1 pair in common, 2 and 4 pairs, 10 in all.
    assert adjusted_rand(a, np.array([0, 0, 0, 1, 1])) == pytest.approx((1 - 0.8) / (3 - 0.8))


def test_what_cannot_be_clustered() -> None:
    with pytest.raises(ValueError, match="must fire at least once"):
        agglomerate(np.zeros((4, 2), bool))
    with pytest.raises(ValueError, match="alpha is -1"):
        agglomerate(planted(), -1.0)
    for endless in (np.inf, np.nan):
        with pytest.raises(ValueError, match="at least 0 and finite"):
            agglomerate(planted(), float(endless))
