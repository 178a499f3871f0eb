"""One run: fresh or resumed, to its end or to a signal.

    fresh       target → compile → initialise → faithfulness warm-up → save 0 → loop → evaluate
    fine-tuned  as fresh, but target and decomposition are those of a parent, and there is no warm-up
    resumed     target → compile → restore → loop → evaluate

Nothing is initialised on resume, and no second state is alive beside the restored one. Updates run many to a
dispatch; a dispatch ends where something is due (a record, an evaluation, a checkpoint) and lasts about half a
second at most, so that a signal is answered soon. How updates are spread over dispatches never changes a bit.

The order at one step is: record, evaluation, the record made durable, checkpoint. A kill in between costs the steps
since the last checkpoint, and the record then has neither a gap nor a step twice.
"""

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np

from pd_eqx import processes
from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.donation import ReuseReport, measure_reuse
from pd_eqx.evals.evaluation import Evaluation
from pd_eqx.runs.assembly import Assembly, assemble, warm_up
from pd_eqx.runs.config import Config
from pd_eqx.runs.config_file import dump_config, load_config, refuse_mismatch
from pd_eqx.runs.directory import RunDirectory, read_json, write_atomically, write_json
from pd_eqx.runs.finish import draw_figures, finish
from pd_eqx.runs.inherit import init_from_parent, product_fingerprint
from pd_eqx.runs.inputs import located, pin_data
from pd_eqx.runs.open import OpenedRun, restore_product
from pd_eqx.runs.parent import parent_directory
from pd_eqx.runs.preemption import NeverStop, Stop
from pd_eqx.runs.stored_target import stored_target
from pd_eqx.runs.tracking import MetricsFile, NoMetrics, Tracker
from pd_eqx.state import TrainState
from pd_eqx.step import non_finite
from pd_eqx.targets.base import Target

FORMAT = 1
_SECONDS_PER_DISPATCH = 0.5


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is not finite; the last good checkpoint is kept."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands.

    - `rate`: updates a second, lately; `losses`: the last update's metrics under `loss/`.
    """

    step: int
    steps: int
    rate: float
    losses: dict[str, float]


@runtime_checkable
class Watcher(Protocol):
    """Who a run tells what it does."""

    def say(self, line: str) -> None:
        """One thing that happened."""
        ...

    def advance(self, progress: Progress) -> None:
        """After each dispatch."""
        ...


class Silent:
    """Nobody watches."""

    def say(self, line: str) -> None:
        """See `Watcher.say`."""

    def advance(self, progress: Progress) -> None:
        """See `Watcher.advance`."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended.

    - `step`: the last one that is saved; `summary`: of a finished run, None for one that was stopped.
    - `was_finished`: there was nothing left to do.
    """

    step: int
    summary: dict[str, Any] | None
    was_finished: bool = False


def train(
    config: Config,
    run_dir: Path,
    *,
    stop: Stop | None = None,
    watcher: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Runs or resumes, in `run_dir`, what `config` describes.

    **Arguments:**

    - `stop`: when to end early; by default never.
    - `trackers`: where records go besides `metrics.jsonl`.
    - `clock`: seconds; wall-clock fields come from it alone.

    **Errors:** `RunDirectoryError`; `ConfigMismatchError` if the directory's run is another one;
    `NonFiniteError`; those of the target's training; `CheckpointError`; `PeerError` where another process of the run is
    gone.
    """
    directory = RunDirectory(run_dir)
    processes.by_first(directory.prepare)
    lock = directory.locked() if processes.is_first() else contextlib.nullcontext()
    with lock:
        if not processes.is_first():
            watcher, trackers = None, ()
        session = _Session(
            config, directory, stop or NeverStop(), watcher or Silent(), trackers, clock
        )
        try:
            return session.run()
        except jax.errors.JaxRuntimeError as error:
            if processes.count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
                raise
            raise processes.peer_error(error) from error


class _Session:
    """One process's part of a run."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        stop: Stop,
        watcher: Watcher,
        trackers: Sequence[Tracker],
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.directory = directory
        self.stop = stop
        self.watcher = watcher
        self.trackers = trackers
        self.clock = clock
        self.began = clock()
        self.saved: int | None = None

    def run(self) -> Outcome:
        kept = self.config.checkpoint
        with CheckpointStore(
            self.directory.checkpoints, keep_last=kept.keep_last, keep_every=kept.keep_every
        ) as store:
            # What the first process sees counts: another's view of a shared directory may be a moment older.
            found = store.latest_step()
            agreed = int(processes.gathered(-1 if found is None else found)[0, 0])
            latest = None if agreed < 0 else agreed
            self.saved = latest
            processes.by_first(lambda: self._claim(latest))
            if latest == self.config.steps and self.directory.summary.exists():
                return Outcome(
                    self.config.steps, read_json(self.directory.summary), was_finished=True
                )
            assembly = assemble(located(self.config, self.directory))
            processes.by_first(lambda: pin_data(self.directory, assembly.config))
            self._tell_idle(assembly)
            target = stored_target(
                self.directory, assembly, self.watcher.say, resumed=latest is not None
            )
            assembly.config.data.check(target)
            with self._records(latest or 0) as metrics:
                self.began -= metrics.last["seconds"] if metrics.last else 0.0
                if latest != self.config.steps:
                    self._advance(store, latest, assembly, target, metrics)
            assert self.saved is not None
            stopping = bool(processes.gathered(self.stop.requested).any())
            if self.saved < self.config.steps or stopping:
                return Outcome(self.saved, None)
            self.watcher.say("evaluate")
            product, _ = restore_product(store, assembly, target, self.saved)
            run = OpenedRun(target, product, self.directory, assembly, self.saved)
            summary = finish(run, lambda: self.clock() - self.began)
            return Outcome(self.saved, summary)

    def _records(self, after: int) -> MetricsFile | NoMetrics:
        return MetricsFile(self.directory.metrics, after) if processes.is_first() else NoMetrics()

    def _claim(self, latest: int | None) -> None:
        """Makes the directory this run's, or checks that it is."""
        if latest is None:
            self.stop.note(f"nothing was saved yet in {self.directory.root}; nothing was lost")
            self._clear()
            write_atomically(self.directory.config, dump_config(self.config))
            self._record(resumes=0, jax=jax.__version__)
            return
        self._note()
        refuse_mismatch(load_config(self.directory.config), self.config, str(self.directory.root))
        write_atomically(self.directory.config, dump_config(self.config))
        if latest < self.config.steps:
            record = read_json(self.directory.record)
            self._record(resumes=record["resumes"] + 1)
            if record["jax"] != jax.__version__:
                self.watcher.say(
                    f"warning: the run was started with jax {record['jax']} and goes on with {jax.__version__}; "
                    "its steps will be the same, but not to the last bit"
                )

    def _clear(self) -> None:
        """Removes what a process left that was killed before anything was saved, if it was another run's."""
        if self.directory.config.exists():
            before = self.directory.config.read_text(encoding="utf-8")
            if before != dump_config(self.config):
                shutil.rmtree(self.directory.target, ignore_errors=True)
        self.directory.metrics.unlink(missing_ok=True)
        self.directory.summary.unlink(missing_ok=True)
        self.directory.inputs.unlink(missing_ok=True)

    def _record(self, **known: Any) -> None:
        if not processes.is_first():
            return
        before = read_json(self.directory.record) if self.directory.record.exists() else {}
        write_json(self.directory.record, {**before, "format": FORMAT, **known})

    def _tell_idle(self, assembly: Assembly) -> None:
        used, found = assembly.layout.mesh.devices.size, jax.device_count()
        # Simulated ones are no hardware that somebody pays for.
        if used < found and jax.default_backend() != "cpu":
            self.watcher.say(
                f"{found - used} of {found} devices are idle; set one axis of mesh to null to take them all, as in "
                "mesh.replica=null"
            )

    def _pin_parent(self) -> None:
        """Records which product a fine-tuning run started from: a path and a step may come to hold another one."""
        parent, named = parent_directory(self.config), self.config.parent
        if parent is None or named is None:
            return
        self._record(
            parent={
                "run": str(parent.root.absolute()),
                "step": named.step,
                "fingerprint": product_fingerprint(parent.checkpoints, named.step),
            }
        )

    def _note(self) -> None:
        self.stop.note(
            f"step {self.saved} of {self.config.steps} is saved in {self.directory.root}"
        )

    def _advance(
        self,
        store: CheckpointStore,
        latest: int | None,
        assembly: Assembly,
        target: Target,
        metrics: MetricsFile | NoMetrics,
    ) -> None:
        """From the latest whole step, or from none, to the end or to a signal."""
        self.watcher.say("compile")
        step, evaluate = self._compiled(assembly, target)
        if latest is None:
            self.watcher.say("initialise")
            state = _initialise(assembly, target)
            self._pin_parent()
        else:
            self.watcher.say(f"resume from step {latest}")
            state = store.restore(assembly.abstract(target), latest)
        with self.stop.holding():
            if latest is None:
                self._save(store, 0, state, metrics)
            self._loop(store, step, evaluate, state, assembly, target, metrics)

    def _compiled(
        self, assembly: Assembly, target: Target
    ) -> tuple[jax.stages.Compiled, Evaluation]:
        """The step, and at the same time the evaluation, which would else hold up the loop when it is first due."""
        evaluate = assembly.evaluation(in_full=False)
        every = self.config.evaluation.every, self.config.evaluation.figures_every
        # Several processes may have to wait for each other as they compile, so each has one order.
        if every == (None, None) or processes.count() > 1:
            return assembly.compile(target), evaluate

        def compile_evaluation() -> None:
            product = assembly.abstract(target).decomposition
            batches, key = assembly.evaluation_batches, assembly.keys.evaluation
            evaluate.compile(product, target, batches, key)

        with ThreadPoolExecutor(max_workers=1) as beside:
            evaluation = beside.submit(compile_evaluation)
            step = assembly.compile(target)
        evaluation.result()
        return step, evaluate

    def _save(
        self, store: CheckpointStore, step: int, state: TrainState, metrics: MetricsFile | NoMetrics
    ) -> None:
        metrics.sync()
        store.save(step, state)
        self.saved = step
        self._note()

    def _loop(
        self,
        store: CheckpointStore,
        compiled: jax.stages.Compiled,
        evaluate: Evaluation,
        state: TrainState,
        assembly: Assembly,
        target: Target,
        metrics: MetricsFile | NoMetrics,
    ) -> None:
        config = self.config
        assert self.saved is not None
        done = self.saved
        pace = Pace(config.max_updates_per_dispatch)
        first = True
        n, stopping = self._agreed(pace, done)
        while done < config.steps and not (stopping and done == self.saved):
            arguments = (target, assembly.batches, assembly.keys.train, np.int32(n))
            before = self.clock()
            if first:
                (state, found), report = measure_reuse(compiled, state, *arguments)
                self._guard(report)
            else:
                state, found = compiled(state, *arguments)
            values = {name: float(value) for name, value in jax.device_get(found).items()}
            seconds = self.clock() - before
            _refuse_non_finite(values, state, config.steps, self.saved)
            done += n
            if not first:
                pace.took(n, seconds)
            first = False
            losses = {name: value for name, value in values.items() if name.startswith("loss/")}
            self.watcher.advance(Progress(done, config.steps, n / max(seconds, 1e-9), losses))
            pictured = self._due(done, config.evaluation.figures_every)
            evaluated = pictured or self._due(done, config.evaluation.every)
            if evaluated:
                result = evaluate(
                    state.decomposition,
                    target,
                    assembly.evaluation_batches,
                    assembly.keys.evaluation,
                )
                values |= result.flat("eval/")
                if pictured:
                    draw_figures(self.directory, assembly, result, state.decomposition, target)
            if evaluated or self._due(done, config.log_every):
                record = {"step": done, "seconds": round(self.clock() - self.began, 3), **values}
                for tracker in (metrics, *self.trackers):
                    tracker.log(record)
            n, stopping = self._agreed(pace, done)
            if stopping or self._due(done, config.checkpoint.every):
                self._save(store, done, state, metrics)

    def _agreed(self, pace: "Pace", done: int) -> tuple[int, bool]:
        """The next dispatch's updates, and whether to stop: the same in every process."""
        said = processes.gathered(pace.updates(self._until_due(done)), self.stop.requested)
        return int(said[:, 0].min()), bool(said[:, 1].any())

    def _due(self, step: int, every: int | None) -> bool:
        return every is not None and (step % every == 0 or step == self.config.steps)

    def _until_due(self, step: int) -> int:
        config = self.config
        evaluation = config.evaluation
        cadences = (
            config.log_every,
            config.checkpoint.every,
            evaluation.every,
            evaluation.figures_every,
        )
        ends = [(step // every + 1) * every for every in cadences if every is not None]
        return min([config.steps, *ends]) - step

    def _guard(self, report: ReuseReport) -> None:
        """Says once, with bytes, if the first dispatch reused less of the state than it could."""
        self._record(donated_fraction=report.fraction)
        if report.missed:
            lost = sum(missed.bytes for missed in report.missed)
            worst = max(report.missed, key=lambda missed: missed.bytes)
            self.watcher.say(
                f"warning: the first dispatch copied {lost} of the state's {report.total_bytes} bytes instead of "
                f"reusing them, {worst.path} first: {worst.reason}"
            )


class Pace:
    """How many updates to put into a dispatch, so that it takes about half a second.

    **Arguments:**

    - `longest`: never more updates than this.
    """

    def __init__(self, longest: int, seconds: float = _SECONDS_PER_DISPATCH) -> None:
        self.longest = longest
        self.seconds = seconds
        self._per_update: float | None = None
        self._last = 1

    def updates(self, remaining: int) -> int:
        """The next dispatch's updates: at least one, and at most eight times as many as in the last."""
        fitting = 1
        if self._per_update is not None:
            fitting = min(int(self.seconds / self._per_update), 8 * self._last)
        return max(1, min(remaining, self.longest, fitting))

    def took(self, updates: int, seconds: float) -> None:
        """Learns from a dispatch."""
        self._per_update = max(seconds / updates, 1e-9)
        self._last = updates


def _initialise(assembly: Assembly, target: Target) -> TrainState:
    config = assembly.config
    state = assembly.fresh(target)
    parent = parent_directory(config)
    if parent is not None and config.parent is not None:
        return init_from_parent(state, parent.checkpoints, config.parent.step)
    components = warm_up(assembly, state.decomposition.components, target)
    return eqx.tree_at(lambda state: state.decomposition.components, state, components)


def _refuse_non_finite(values: dict[str, float], state: TrainState, steps: int, saved: int) -> None:
    names = non_finite(values)
    if not names:
        return
    found = ", ".join(f"{name} is {values[name]}" for name in names[:4])
    raise NonFiniteError(
        f"update {int(state.training.step)} of {steps}: {found}. The run stopped; step {saved}, the last "
        "good checkpoint, is kept. Lower the learning rate or clip the gradients (clip_norm), in a new run"
    )
