"""A run that is over in seconds, and a process of its own for it that can be killed where a test says."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.config import Config
from pd_eqx.runs.config_file import parse_config

# Sizes differ from each other, so that nothing passes by a shape that happens to fit.
SMALL = """
name: small
seed: 7
steps: 120
target:
  kind: tms
  cache: false
  n_features: 3
  n_hidden: 3
  training: {steps: 400, batch_size: 64, probability: 0.3}
sites: {linear1: 4, linear2: 5}
ci_fn: {kind: shared_mlp, hidden: [6]}
data: {kind: sparse_features, batch_size: 16, probability: 0.3}
objective:
  - {kind: importance_minimality, coefficient: 3e-3}
  - {kind: reconstruction, name: stochastic, source: {kind: stochastic}}
optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
faithfulness_warmup: {steps: 10, optimizer: {kind: adamw, lr: {kind: constant, value: 1e-2}}}
log_every: 5
max_updates_per_dispatch: 2
checkpoint: {every: 10, keep_last: 3}
evaluation: {every: 30, batches: 2, pgd_steps: 3}
"""

VICTIM = Path(__file__).parent / "victim.py"
# What differs between two processes that did the same.
WALL_CLOCK = frozenset({"seconds"})


def small_config(*overrides: str) -> Config:
    """The configuration, with overrides."""
    return parse_config(SMALL, "small", overrides)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: int
    stdout: str
    stderr: str


@dataclasses.dataclass(frozen=True)
class Blow:
    """A signal to a run: when a place in the code is reached for the `count`-th time, now or after a delay."""

    place: str
    count: int = 1
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)
    delay: float = 0.0

    def encoded(self) -> str:
        """As the victim reads it."""
        signals = [int(number) for number in self.signals]
        return json.dumps({**dataclasses.asdict(self), "signals": signals})


class Runner:
    """Runs the command line on a small configuration, in processes of their own.

    They share a compilation cache: a test of interruptions should not spend its time in XLA.
    """

    def __init__(self, folder: Path, text: str = SMALL, timeout: float = 500.0) -> None:
        self.timeout = timeout
        self.config = folder / f"small-{os.getpid()}.yaml"  # other workers share the folder
        self.config.write_text(text)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XDG_CACHE_HOME": str(folder / "home"),
            "COLUMNS": "200",
        }

    def train(self, run_dir: Path, *overrides: str, blow: Blow | None = None, **more: str) -> Ended:
        """`pd-eqx train`, struck by `blow`; `more` goes to the environment."""
        return self(
            "train", str(self.config), "--run-dir", str(run_dir), *overrides, blow=blow, **more
        )

    def __call__(self, *arguments: str, blow: Blow | None = None, **more: str) -> Ended:
        """Any command."""
        environment = {**self.environment, **more}
        if blow is not None:
            environment["BLOW"] = blow.encoded()
        ended = subprocess.run(
            [sys.executable, str(VICTIM), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=self.timeout,
            env=environment,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """The records, without what the clock had a part in."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [without_clock(json.loads(line)) for line in lines]


def summary_of(run_dir: Path) -> dict[str, Any]:
    """The summary, without what the clock or the number of processes had a part in."""
    summary = json.loads((run_dir / "summary.json").read_text())
    return {name: value for name, value in without_clock(summary).items() if name != "resumes"}


def without_clock(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in WALL_CLOCK}


def leaves_of(run_dir: Path, step: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of every leaf of a stored state."""
    with CheckpointStore(run_dir / "checkpoints", read_only=True) as store:
        return {
            node.path: (str(array.dtype), array.shape, array.tobytes())
            for item in ("decomposition", "training")
            for node, array in store.read_item(item, step)
        }


def saved_steps(run_dir: Path) -> list[int]:
    """The whole steps in a run directory."""
    if not (run_dir / "checkpoints").exists():
        return []
    with CheckpointStore(run_dir / "checkpoints", read_only=True) as store:
        return store.steps()


def drawn(seed: int) -> random.Random:
    """Draws that a failing test can repeat; pytest prints the seed."""
    print(f"drawn with seed {seed}")
    return random.Random(seed)
