"""Opening what a run has made, without the process that made it.

A consumer restores the product alone: it needs neither optimizers nor adversaries, and reads no byte of theirs.
Nothing is written, so a run can be opened while it goes on.
"""

import dataclasses
from pathlib import Path

from pd_eqx.checkpoint import CheckpointNotFoundError, CheckpointStore
from pd_eqx.runs.assembly import Assembly, assemble
from pd_eqx.runs.config_file import load_config
from pd_eqx.runs.directory import RunDirectory
from pd_eqx.runs.stored_target import load_target
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run's product and what it is the decomposition of.

    - `step`: the number of updates that the product has had.
    """

    directory: RunDirectory
    assembly: Assembly
    target: Target
    decomposition: Decomposition
    step: int


def open_run(run_dir: Path, step: int | None = None) -> OpenedRun:
    """Opens a run.

    **Arguments:**

    - `step`: which checkpoint; the latest by default.

    **Errors:** `RunDirectoryError` where there is no run; `CheckpointNotFoundError` where it has no such step.
    """
    directory = RunDirectory(run_dir)
    directory.require()
    with CheckpointStore(directory.checkpoints, read_only=True) as store:
        chosen = store.latest_step() if step is None else step
        if chosen is None:
            raise CheckpointNotFoundError(f"{run_dir} has no checkpoint yet; nothing can be opened")
        assembly = assemble(load_config(directory.config))
        target = load_target(directory, assembly)
        decomposition = restore_product(store, assembly, target, chosen)
    return OpenedRun(directory, assembly, target, decomposition, chosen)


def restore_product(
    store: CheckpointStore, assembly: Assembly, target: Target, step: int
) -> Decomposition:
    """The decomposition of one step, and nothing of its training."""
    abstract = assembly.abstract(target).decomposition
    return store.restore_item("decomposition", abstract, step)
