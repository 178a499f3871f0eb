"""What of a tally reaches the page: the right windows, tokens and companions of each component, and no more."""

from pathlib import Path

import numpy as np
import pytest

from pd_eqx.harvest.counts import NOTHING, count_pairs
from pd_eqx.harvest.settings import IMPORTANCE_PARTS, HarvestSettings
from pd_eqx.harvest.store import Harvest, HarvestError, Source
from pd_eqx.harvest.tally import Tally
from pd_eqx.report.harvested import WINDOWS, harvested
from pd_eqx.report.sources import find
from pd_eqx.runs.harvest import harvest_run
from pd_eqx.runs.open import open_run


def pairs(counts: dict[tuple[int, int], int]) -> object:
    first, second = (np.array([key[i] for key in counts], np.int64) for i in (0, 1))
    return count_pairs(first, second, np.array(list(counts.values()), np.int64))


def windows(components: list[int], width: int = 4) -> dict[str, np.ndarray]:
    """A window for each, of ramps, the n-th one token shorter than the widest where n is odd; chosen for its second token."""
    n = len(components)
    ramp = np.arange(n * width).reshape(n, width)
    return {
        "component": np.array(components),
        "importance": np.linspace(1.0, 0.5, n),
        "position": np.full(n, 11),
        "start": np.full(n, 10),
        "length": width - np.arange(n) % 2,
        "tokens": ramp.astype(np.int32),
        "importances": ramp / (n * width),
    }


def harvest(top: dict[str, np.ndarray]) -> Harvest:
    """Three components on 100 positions; the third never fired."""
    nobody: dict[str, np.ndarray] = {}
    tally = Tally(
        settings=HarvestSettings(bins=2),
        batches=((0, 4),),
        positions=100,
        fired=np.array([50, 10, 0]),
        importance_sum=np.array([40, 5, 0]) * IMPORTANCE_PARTS,
        importance_histogram=np.array([[50, 50], [90, 10], [100, 0]]),
        activation_histogram=np.zeros((3, 1), np.int64),
        # Token 7 is everywhere, 8 fires the first often, 9 does so each of the two times that it occurs.
        responds=pairs({(0, 7): 25, (0, 8): 23, (0, 9): 2, (1, 7): 10}),  # pyright: ignore[reportArgumentType]
        promotes=NOTHING,
        seen=pairs({(7, 0): 50, (8, 0): 24, (9, 0): 2, (6, 0): 24}),  # pyright: ignore[reportArgumentType]
        predicted=NOTHING,
        coactive=pairs({(0, 1): 9}),  # pyright: ignore[reportArgumentType]
        top=top,
        sample=top,
        patterns=nobody,
        patterns_firing=nobody,
        background=nobody,
        background_firing=nobody,
    )
    return Harvest(Source("runs/a", "a", 5, "hash", "tokens", (("s", 3),)), tally)


def test_windows_stand_with_their_component_and_end_where_they_end() -> None:
    found = harvested(harvest(windows([0, 1, 1])), "here").top
    assert found is not None
    assert found.tokens[0, 0].tolist() == [0, 1, 2, 3]
    assert found.tokens[1, :2].tolist() == [[4, 5, 6, -1], [8, 9, 10, 11]]
    assert found.importance[1, 1, 3] == pytest.approx(11 / 12)
    assert np.isnan(found.importance[0, 1:]).all()
    assert np.isnan(found.importance[2]).all()
    assert found.peak is not None
    assert found.peak[1, :2].tolist() == [1, 1]


def test_only_the_first_windows_are_shown() -> None:
    found = harvested(harvest(windows([0] * (WINDOWS + 3))), "here").top
    assert found is not None
    assert found.tokens.shape == (3, WINDOWS, 4)
    assert found.tokens[0, -1, 0] == 4 * (WINDOWS - 1)


def test_the_most_telling_token_is_neither_the_commonest_nor_the_rarest() -> None:
    responds = harvested(harvest(windows([0])), "here").responds
    assert responds is not None
    # The first fires at half of all positions, at half of those of 7: it says nothing of it.
    assert responds.items[0].tolist()[:3] == [8, 9, -1]
    assert responds.scores[0, :2] == pytest.approx([np.log2(23 / 12), 1.0])
    assert responds.items[1].tolist()[:2] == [7, -1]
    assert (responds.items[2] == -1).all()


def test_companions_are_scored_by_their_correlation_both_ways() -> None:
    neighbours = harvested(harvest(windows([0])), "here").neighbours
    assert neighbours is not None
    fires = np.zeros((2, 100))
    fires[0, :50], fires[1, 41:51] = 1, 1  # together at nine
    expected = np.asarray(np.corrcoef(fires))[0, 1]
    assert (neighbours.items[0, 0], neighbours.items[1, 0]) == (1, 0)
    assert neighbours.scores[:2, 0] == pytest.approx([expected, expected])
    assert (neighbours.items[2] == -1).all()


def test_densities_are_shares_of_positions() -> None:
    found = harvested(harvest(windows([0])), "here")
    assert found.density.tolist() == [0.5, 0.1, 0.0]
    assert found.mean.tolist() == [0.4, 0.05, 0.0]
    assert found.histogram is not None
    assert found.histogram[1].tolist() == [0.9, 0.1]


def test_a_harvest_of_another_step_is_never_mixed_in(uninterrupted: Path, tmp_path: Path) -> None:
    run, said = open_run(uninterrupted), list[str]()
    ours = tmp_path / "ours"
    harvest_run(run, ours, range(3))
    found = find(run, ours, None, said.append)
    assert found.harvested.facts["harvest"] == str(ours)
    assert found.harvested.positions == 3 * 16
    earlier = open_run(uninterrupted, step=110)
    with pytest.raises(HarvestError, match="step is 110"):
        find(earlier, ours, None, said.append)
    with pytest.raises(HarvestError, match="holds no harvest"):
        find(run, tmp_path / "nothing", None, said.append)
    assert said == []


def test_without_a_harvest_a_few_batches_are_looked_at(uninterrupted: Path) -> None:
    run = open_run(uninterrupted)
    found = find(run, None, 2, pytest.fail).harvested
    assert found.positions == 2 * 16
    assert found.top is not None
    assert found.top.tokens.shape == (9, WINDOWS, 3)  # three features
    assert found.top.peak is None
