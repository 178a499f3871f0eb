"""What a run does besides training: how it paces itself, what it warns of, and what it refuses."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pd_eqx.donation import Missed, ReuseReport, measure_reuse
from pd_eqx.runs import loop
from pd_eqx.runs.config_file import ConfigMismatchError
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError, read_json, write_json
from pd_eqx.runs.loop import Pace, Progress, train
from pd_eqx.runs.open import OpenedRun, open_run
from pd_eqx.runs.tracking import Record, read_metrics
from pd_eqx.sites import UnknownSiteError
from runs.small import saved_steps, small_config


def test_a_dispatch_takes_about_as_long_as_it_may() -> None:
    pace = Pace(longest=1000, seconds=0.5)
    assert pace.updates(remaining=400) == 1
    pace.took(1, 0.02)
    assert pace.updates(400) == 8  # at most eight times as many as before
    pace.took(8, 0.08)
    assert pace.updates(400) == 50
    assert pace.updates(7) == 7
    pace.took(50, 0.001)
    assert pace.updates(400) == 400
    assert pace.updates(4000) == 400
    pace.took(400, 0.008)
    assert pace.updates(4000) == 1000
    pace.took(1, 30.0)
    assert pace.updates(4000) == 1


class Watching:
    """A watcher and a tracker that keep what they are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.records: list[dict[str, Any]] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, progress: Progress) -> None:
        self.steps.append(progress.step)

    def log(self, record: Record) -> None:
        self.records.append(dict(record))


SHORT = (
    "steps=7",
    "log_every=3",
    "max_updates_per_dispatch=100",
    "checkpoint.every=2",
    "evaluation.every=null",
    "faithfulness_warmup=null",
)


def finished(run: OpenedRun, seconds: Callable[[], float]) -> dict[str, Any]:
    """In place of `finish`, which takes long and is tested with the commands."""
    del seconds
    summary = {"steps": run.step, **read_json(run.directory.record)}
    write_json(run.directory.summary, summary)
    return summary


def test_a_run_inside_another_program(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*arguments: Any) -> tuple[Any, ReuseReport]:
        result, report = measure_reuse(*arguments)
        assert report.fraction == 1.0
        missed = (Missed("a", 24, "copied"), Missed("training.mu", 40, "held elsewhere"))
        return result, ReuseReport(100, 36, missed)

    monkeypatch.setattr(loop, "measure_reuse", measured)
    monkeypatch.setattr(loop, "finish", finished)
    watching = Watching()
    config = small_config(*SHORT)
    outcome = train(config, run_dir, watcher=watching, trackers=[watching])
    assert (outcome.step, outcome.was_finished) == (7, False)
    assert outcome.summary is not None
    assert outcome.summary["donated_fraction"] == 0.36
    assert outcome.summary["resumes"] == 0

    warnings = [line for line in watching.lines if line.startswith("warning")]
    assert len(warnings) == 1
    assert "copied 64 of the state's 100 bytes" in warnings[0]
    assert "training.mu first: held elsewhere" in warnings[0]
    # Dispatches end where a record (3) or a checkpoint (2) is due, and at the end.
    assert watching.steps[-1] == 7
    assert {2, 3, 4, 6} <= set(watching.steps)
    assert [record["step"] for record in watching.records] == [3, 6, 7]
    assert read_metrics(run_dir / "metrics.jsonl") == watching.records
    assert saved_steps(run_dir) == [4, 6, 7]

    opened = open_run(run_dir)
    assert (opened.step, opened.assembly.config) == (7, config)
    earlier = open_run(run_dir, step=4)
    V, before = (run.decomposition.components.V["linear2"] for run in (opened, earlier))
    assert V.shape == (3, 5)
    assert not np.array_equal(V, before)

    again = train(config, run_dir)
    assert again.was_finished
    assert again.summary == outcome.summary
    with pytest.raises(ConfigMismatchError, match="seed: stored 7, asked 8"):
        train(small_config(*SHORT, "seed=8"), run_dir)
    with pytest.raises(ConfigMismatchError, match="cannot be extended"):
        train(small_config(*SHORT, "steps=9"), run_dir)

    write_json(run_dir / "run.json", {**read_json(run_dir / "run.json"), "jax": "0.0.1"})
    shutil.rmtree(run_dir / "checkpoints" / "7")
    shutil.rmtree(run_dir / "target")
    with pytest.raises(RunDirectoryError, match="holds no whole target"):
        train(config, run_dir, watcher=watching)
    assert "started with jax 0.0.1" in watching.lines[-1]


def test_after_the_first_update_the_loop_compiles_nothing(
    run_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "finish", finished)
    logged: list[int] = []

    class Counting(Watching):
        def advance(self, progress: Progress) -> None:
            super().advance(progress)
            logged.append(len(caplog.records))

    watching = Counting()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        train(small_config(*SHORT, "evaluation.every=3"), run_dir, watcher=watching)
    messages = [record.getMessage() for record in caplog.records]
    assert any("ompiling" in message for message in messages[: logged[0]]), "it would be seen"
    assert watching.steps[0] < 3 <= watching.steps[-2], "an evaluation lies between"
    assert [each for each in messages[logged[0] : logged[-1]] if "ompiling" in each] == []


def test_a_site_that_the_target_lacks_is_refused_before_anything_is_trained(run_dir: Path) -> None:
    with pytest.raises(UnknownSiteError, match=r"sites: .*'liner1'.*nearest site is 'linear1'"):
        train(small_config("sites.liner1=3"), run_dir)
    assert not (run_dir / "target").exists()


def test_a_directory_that_is_in_use_is_refused(run_dir: Path) -> None:
    directory = RunDirectory(run_dir)
    directory.prepare()
    with directory.locked(), pytest.raises(RunDirectoryError, match="another process"):
        train(small_config(), run_dir)
