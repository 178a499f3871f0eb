"""A run that was interrupted, anywhere and any number of times, ends in the bits of one that was not."""

import dataclasses
import json
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from runs.small import (
    Blow,
    Ended,
    Runner,
    drawn,
    leaves_of,
    metrics_of,
    saved_steps,
    summary_of,
)

STEPS = 120
KILL = (signal.SIGKILL,)
INTERRUPTED = 75


def assert_same_end(run_dir: Path, uninterrupted: Path) -> None:
    assert leaves_of(run_dir, STEPS) == leaves_of(uninterrupted, STEPS)
    assert metrics_of(run_dir) == metrics_of(uninterrupted)
    assert summary_of(run_dir) == summary_of(uninterrupted)


def test_the_uninterrupted_run_is_as_configured(uninterrupted: Path) -> None:
    steps = [record["step"] for record in metrics_of(uninterrupted)]
    assert steps == list(range(5, STEPS + 1, 5))
    evaluated = [r["step"] for r in metrics_of(uninterrupted) if "eval/mmcs" in r]
    assert evaluated == [30, 60, 90, 120]
    assert saved_steps(uninterrupted) == [100, 110, 120]
    assert len(leaves_of(uninterrupted, STEPS)) > 20
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert summary["resumes"] == 0
    assert summary["donated_fraction"] == 1.0
    assert set(summary["identity_ci_error"]["linear2"]) == {"0.1", "0.2"}
    assert set(summary["losses"]) == {"importance_minimality", "stochastic", "total"}
    assert {"ci_masked", "stochastic", "pgd_3"} <= set(summary["reconstruction"])


@pytest.mark.parametrize("seed", [0])
def test_three_terminations_and_three_kills_change_no_bit(
    runner: Runner, uninterrupted: Path, run_dir: Path, seed: int
) -> None:
    draw = drawn(seed)
    blows = [(signal.SIGTERM,), KILL] * 3
    draw.shuffle(blows)
    for signals in blows:
        dispatches = draw.randint(2, 7)
        before = max(saved_steps(run_dir), default=0)
        ended = runner.train(run_dir, blow=Blow("dispatch", dispatches, signals))
        print(f"{signals} at dispatch {dispatches} after step {before}: {saved_steps(run_dir)}")
        if signals == KILL:
            assert ended.status == -signal.SIGKILL, ended.stderr
        else:
            assert ended.status == INTERRUPTED, ended.stderr
            assert saved_steps(run_dir)[-1] > before
            assert f"step {saved_steps(run_dir)[-1]} of {STEPS} is saved" in ended.stdout
            assert f"pd-eqx train {runner.config} --run-dir {run_dir}" in ended.stdout
    assert saved_steps(run_dir)[-1] < STEPS
    ended = runner.train(run_dir)
    assert ended.status == 0, ended.stderr
    assert_same_end(run_dir, uninterrupted)
    assert json.loads((run_dir / "summary.json").read_text())["resumes"] == 6


def struck(
    runner: Runner, run_dir: Path, blow: Blow, status: int = INTERRUPTED, **environment: str
) -> Ended:
    ended = runner.train(run_dir, blow=blow, **environment)
    assert ended.status == status, (blow, ended.stderr)
    return ended


@dataclasses.dataclass(frozen=True)
class Troubled:
    """A run that was struck in every phase, until it was through.

    - `fresh`, `resumed`: the two processes that got furthest, with the log of what they compiled.
    """

    run_dir: Path
    fresh: Ended
    resumed: Ended


@pytest.fixture(scope="module")
def troubled(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Troubled:
    run_dir = tmp_path_factory.mktemp("troubled") / "run"
    for blow in (Blow("compile", delay=0.3), Blow("warm_up")):
        ended = struck(runner, run_dir, blow)
        assert "nothing was lost" in ended.stderr
        assert "go on with: pd-eqx train" in ended.stderr
        assert saved_steps(run_dir) == []
    fresh = struck(runner, run_dir, Blow("evaluation"), JAX_LOG_COMPILES="1")
    assert saved_steps(run_dir)[-1] in range(30, 60)
    assert "eval/mmcs" in next(r for r in metrics_of(run_dir) if r["step"] == 30)
    struck(runner, run_dir, Blow("dispatch", 2, (signal.SIGINT, signal.SIGINT)), status=130)
    resumed = struck(runner, run_dir, Blow("finish"), JAX_LOG_COMPILES="1")
    assert f"step {STEPS} of {STEPS} is saved" in resumed.stderr
    assert not (run_dir / "summary.json").exists()
    assert runner.train(run_dir).status == 0
    return Troubled(run_dir, fresh, resumed)


def test_a_signal_in_any_phase_changes_no_bit(troubled: Troubled, uninterrupted: Path) -> None:
    assert_same_end(troubled.run_dir, uninterrupted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_signal_costs_nothing_in_the_rarer_phases(
    runner: Runner, uninterrupted: Path, run_dir: Path
) -> None:
    assert "nothing was lost" in struck(runner, run_dir, Blow("target")).stderr
    struck(runner, run_dir, Blow("save", 2))  # the first save is the target's, the second step 0's
    assert saved_steps(run_dir)[0] == 0
    struck(runner, run_dir, Blow("compile"))
    struck(runner, run_dir, Blow("save", 2, KILL), status=-signal.SIGKILL)
    struck(runner, run_dir, Blow("dispatch", 3, (signal.SIGINT,)))
    struck(runner, run_dir, Blow("evaluation", 1, KILL), status=-signal.SIGKILL)
    struck(runner, run_dir, Blow("finish", 1, KILL), status=-signal.SIGKILL)
    assert runner.train(run_dir).status == 0
    assert_same_end(run_dir, uninterrupted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_any_write_leaves_a_run_that_resumes(
    runner: Runner, uninterrupted: Path, run_dir: Path
) -> None:
    draw = drawn(1)
    killed = 0
    # A checkpoint makes some forty writes durable, and the target is one too. Early kills come first, or the run
    # would be through before them.
    for most in (8, 40, 80, *[120] * 7):
        write = draw.randint(1, most)
        ended = runner.train(run_dir, blow=Blow("fsync", write, KILL))
        print(f"killed at write {write}: {saved_steps(run_dir)}")
        assert ended.status in (0, -signal.SIGKILL), ended.stderr
        killed += ended.status != 0
    assert killed >= 7
    assert runner.train(run_dir).status == 0
    assert_same_end(run_dir, uninterrupted)


def compiled(log: str) -> Counter[str]:
    """How often each function was compiled."""
    return Counter(re.findall(r"Finished XLA compilation of jit\((.*?)\)", log))


# What gives a restored leaf memory of XLA's own and checks it: once for each new shape, on whichever side of a
# checkpoint it comes first.
OF_THE_STORE = {"_copy", "device_sums"}


def test_a_resumed_run_compiles_nothing_that_a_fresh_one_had_not(troubled: Troubled) -> None:
    of_fresh, of_resumed = compiled(troubled.fresh.stderr), compiled(troubled.resumed.stderr)
    assert of_fresh["run"] == 2  # the step and the warm-up
    assert of_resumed["run"] == 1
    assert of_resumed["_init"] == 0
    more = {
        name: (count, of_fresh[name])
        for name, count in of_resumed.items()
        if count > of_fresh[name] and name not in OF_THE_STORE
    }
    assert more == {}


def test_a_finished_run_says_so_and_changes_nothing(
    runner: Runner, uninterrupted: Path, run_dir: Path
) -> None:
    shutil.copytree(uninterrupted, run_dir)
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.json*")}
    ended = runner.train(run_dir)
    assert ended.status == 0, ended.stderr
    assert "finished" in ended.stdout
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.json*")} == before
