"""A report of a real run says what the run's files say, reads the product alone, and changes nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from pd_eqx.report.collect import collect
from pd_eqx.report.model import Report
from pd_eqx.runs.loop import train
from pd_eqx.runs.open import open_run
from runs.opened import opened_below
from runs.test_toy_targets import config


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def collected(uninterrupted: Path) -> Report:
    return collect(open_run(uninterrupted))


def test_numbers_are_those_of_the_summary(collected: Report, uninterrupted: Path) -> None:
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert collected.numbers == summary
    assert [site.name for site in collected.sites] == ["linear1", "linear2"]
    assert [site.alive for site in collected.sites] == [
        summary["alive"][site.name] for site in collected.sites
    ]
    for site in collected.sites:
        assert site.l0 == pytest.approx(summary["l0"][site.name]["0.1"])
        assert site.unexplained == summary["faithfulness_relative"][site.name]
    assert (collected.run.step, collected.run.steps, collected.run.finished) == (120, 120, True)
    assert collected.run.distance == "mean squared error"


def test_components_of_all_sites_stand_in_one_row(collected: Report) -> None:
    assert [site.count for site in collected.sites] == [4, 5]
    for values in (collected.density, collected.mean, collected.alive):
        assert values.shape == (9,)
    assert int(collected.alive[:4].sum()) == collected.sites[0].alive
    assert np.sum(collected.density[4:]) == pytest.approx(collected.sites[1].l0)


def test_a_toys_heat_map_is_its_response_in_another_order(collected: Report) -> None:
    for site in collected.sites:
        assert site.response is not None
        (heat,) = site.heats
        assert np.array_equal(heat.values, site.response[:, heat.columns])
        left = np.setdiff1d(np.arange(site.count), heat.columns)
        assert heat.hidden == len(left)
        assert site.response[:, left].max(initial=0.0) <= heat.faint


def test_only_the_product_is_read_and_nothing_is_written(uninterrupted: Path) -> None:
    before = files(uninterrupted)
    with opened_below(uninterrupted / "checkpoints") as opened:
        collect(open_run(uninterrupted, step=110))
    assert files(uninterrupted) == before
    assert not [name for name in opened if "/training/" in f"/{name}/"]


@pytest.mark.slow
def test_an_earlier_step_has_the_numbers_of_its_own_evaluation_or_none(uninterrupted: Path) -> None:
    early = collect(open_run(uninterrupted, step=110))
    assert early.numbers == {}  # evaluated at every 30th
    assert early.sites[0].unexplained is None
    assert early.density.shape == (9,)  # this is measured anew


@pytest.mark.slow
def test_tokens_give_sequences_with_an_importance_at_each(run_dir: Path) -> None:
    train(config("induction"), run_dir)
    report = collect(open_run(run_dir), vocabulary={0: "zero"})
    assert report.reads == "tokens"
    assert report.run.distance == "KL divergence, nats"
    for site in report.sites:
        assert site.response is None
        assert len(site.heats) == 4
        assert {len(heat.rows) for heat in site.heats} == {7}
        assert {heat.values.shape[0] for heat in site.heats} == {7}
        words = {word for heat in site.heats for word in heat.rows}
        assert "zero" in words
        assert "0" not in words
