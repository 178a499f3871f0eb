"""Opening what a run has made, without the process that made it.

A consumer restores the product alone: it needs neither optimizers nor adversaries, and reads no byte of theirs.
Nothing is written, so a run can be opened while it goes on, and after its process was stripped.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pd_eqx.checkpoint import CheckpointNotFoundError, CheckpointStore
from pd_eqx.runs.directory import RunDirectory
from pd_eqx.runs.opened import Opened
from pd_eqx.runs.placement import Place, placed
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target

if (
    TYPE_CHECKING
):  # configurations need an extra, which a public name may not load before it is called
    from pd_eqx.runs.assembly import Assembly
    from pd_eqx.runs.config import Config


@dataclasses.dataclass(frozen=True)
class OpenedRun(Opened):
    """A run's product and what it is the decomposition of; see `Opened` for what can be asked of it.

    - `step`: the number of updates that the product has had.
    """

    directory: RunDirectory
    assembly: "Assembly"
    step: int

    @property
    def config(self) -> "Config":
        """What the run was configured as."""
        return self.assembly.config


def open_run(run_dir: str | Path, step: int | None = None, mesh: Place = None) -> OpenedRun:
    """Opens a run: its target, its decomposition, its configuration, and what can be asked of them.

    **Arguments:**

    - `run_dir`: the run's directory.
    - `step`: which checkpoint; the latest by default.
    - `mesh`: where the arrays go: a mesh, whose devices all get a copy; a device; `"host"` for numpy arrays,
      which need no device memory; where the run has them by default.

    **Errors:** `RunDirectoryError` where there is no run; `CheckpointNotFoundError` where it has no such step.

    **Example:**

        run = pd_eqx.open_run("runs/tms_5-2")
        run.causal_importances(inputs).lower["linear1"]      # [batch, C]
        run.ablate(inputs, {"linear1": [3, 7]})              # the output without two components
    """
    from pd_eqx.runs.assembly import assemble
    from pd_eqx.runs.config_file import load_config
    from pd_eqx.runs.inputs import located
    from pd_eqx.runs.stored_target import load_target
    from pd_eqx.sharding import MeshShape

    directory = RunDirectory(Path(run_dir))
    directory.require()
    with CheckpointStore(directory.checkpoints, read_only=True) as store:
        if not any(path.name.isdecimal() for path in directory.checkpoints.glob("*")):
            raise CheckpointNotFoundError(f"{run_dir} has no checkpoint yet; nothing can be opened")
        config = located(load_config(directory.config), directory)
        # A consumer has its own devices, and as a rule fewer.
        assembly = assemble(config, needs_data=False, mesh=MeshShape(1, 1, 1))
        target = load_target(directory, assembly, mesh)
        decomposition, chosen = restore_product(store, assembly, target, step, mesh)
    return OpenedRun(target, decomposition, directory, assembly, chosen)


def restore_product(
    store: CheckpointStore,
    assembly: "Assembly",
    target: Target,
    step: int | None,
    place: Place = None,
) -> tuple[Decomposition, int]:
    """The decomposition of one step, or of the latest, and which that is; placed as `open_run` says.

    Nothing of its training is read.
    """
    abstract = placed(assembly.abstract_product(target), place)
    to = "host" if place == "host" else "devices"
    return store.restore_item_and_step("decomposition", abstract, step, to=to)
