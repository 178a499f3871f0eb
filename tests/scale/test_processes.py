"""Runs on several devices and in several processes: stopped, killed, gone on with elsewhere, and still the same run."""

import signal
import time
from pathlib import Path

import pytest

from pd_eqx.runs.directory import read_json
from pd_eqx.runs.invariance import BOUND, compared
from pd_eqx.runs.tracking import read_metrics
from scale.fleet import HEARTBEAT, fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 120
INTERRUPTED = 75
CONFIG = """
name: spread
seed: 7
steps: 120
target: {kind: tms, n_features: 6, n_hidden: 3, training: {steps: 1000, batch_size: 512}}
sites: {linear1: 8, linear2: 16}
ci_fn: {kind: shared_mlp, hidden: [6]}
data: {kind: sparse_features, batch_size: 16, probability: 0.3}
objective:
  - {kind: importance_minimality, coefficient: 1e-3}
  - kind: persistent_reconstruction
    name: bc
    adversary: {ascent: {kind: adam, lr: {kind: constant, value: 0.01}, eps: 1e-3}, scope: {letters: bc}}
optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}, eps: 1e-4}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}, eps: 1e-4}
mesh: {replica: null}
log_every: 10
max_updates_per_dispatch: 2
checkpoint: {every: 10, keep_last: 3}
evaluation: {every: null, batches: 1, pgd_steps: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("spread")
    (place / "config.yaml").write_text(CONFIG)
    return place


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The same run on one device of one process, which nobody disturbed."""
    with fleet(folder / "config.yaml", folder / "alone", folder / "cache", devices=1) as run:
        assert run.wait() == [0], run.said()
    return folder / "alone"


def assert_same_run(run_dir: Path, alone: Path) -> None:
    steps = [record["step"] for record in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == list(range(10, STEPS + 1, 10))
    comparison = compared(0, alone, run_dir)
    assert comparison.worst.relative <= BOUND, comparison.worst


def test_a_run_moves_between_numbers_of_devices(folder: Path, alone: Path) -> None:
    run_dir, last = folder / "elastic", 0
    for devices, status in (
        (8, INTERRUPTED),
        (4, INTERRUPTED),
        (2, INTERRUPTED),
        (1, INTERRUPTED),
        (8, 0),
    ):
        with fleet(folder / "config.yaml", run_dir, folder / "cache", devices=devices) as run:
            if status:
                run.wait_for_step(last + 10)
                run.running[0].send_signal(signal.SIGTERM)
            assert run.wait() == [status], run.said()
            last = run.saved()[-1]
    assert read_json(run_dir / "summary.json")["resumes"] == 4
    assert_same_run(run_dir, alone)


def test_processes_stop_together_fail_together_and_go_on_in_other_numbers(
    folder: Path, alone: Path
) -> None:
    run_dir, config, cache = folder / "processes", folder / "config.yaml", folder / "cache"

    with fleet(config, run_dir, cache, processes=2, devices=2) as run:
        run.wait_for_step(10)
        run.running[1].send_signal(signal.SIGTERM)
        assert run.wait() == [INTERRUPTED] * 2, run.said()
        stopped = run.saved()[-1]
        assert f"step {stopped} of {STEPS} is saved" in run.said(0)
        assert "is saved" not in run.said(1)  # one process talks
    assert 10 <= stopped < STEPS
    # Each process wrote its own part of what is split between them.
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= {
        place.name for place in (run_dir / f"checkpoints/{stopped}/training").iterdir()
    }

    with fleet(config, run_dir, cache, processes=4, devices=2) as run:
        run.wait_for_step(stopped + 10)
        run.running[2].send_signal(signal.SIGKILL)
        began = time.monotonic()
        statuses = run.wait(3 * HEARTBEAT)
        assert time.monotonic() - began < 3 * HEARTBEAT
        assert statuses[2] == -signal.SIGKILL
        assert all(statuses), run.said()
        told = [run.said(survivor) for survivor in (0, 1, 3)]
        # The second is JAX's own, where its service was faster than the broken connection; the third is Gloo's, which
        # ends a process that waits in one computation for what a survivor sends in the next.
        known = ("lost contact with another one", "another task died", "gloo::EnforceNotMet")
        assert all(any(words in said for words in known) for said in told), told
        assert any(words in said for words in known[:2] for said in told), told
        killed = run.saved()[-1]
    assert killed < STEPS

    with fleet(config, run_dir, cache, processes=2, devices=2) as run:
        assert run.wait() == [0, 0], run.said()
        assert f"resume from step {killed}" in run.said(0)
        assert "resume" not in run.said(1)
    assert_same_run(run_dir, alone)
    assert read_json(run_dir / "summary.json")["donated_fraction"] == 1.0


def test_a_mistake_is_told_once_and_ends_all_processes(folder: Path) -> None:
    odd = folder / "odd.yaml"
    odd.write_text(CONFIG.replace("batch_size: 16", "batch_size: 15"))
    with fleet(odd, folder / "odd", folder / "cache", processes=2, devices=2) as run:
        assert run.wait() == [2, 2], run.said()
        assert "data.batch_size = 15 does not tile over mesh.replica x mesh.fsdp = 4" in run.said(0)
        assert "Traceback" not in run.said()
