"""A run directory around a product that was not trained in it: imported from elsewhere, or made by hand.

Everything that opens a run opens it. It has no process, so it counts as finished and cannot be resumed; a run of its own
can start from it as its parent.
"""

from pathlib import Path
from typing import Any

import equinox as eqx

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.config import Config
from pd_eqx.runs.config_file import dump_config
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError, write_atomically, write_json
from pd_eqx.runs.stored_target import StoredTarget
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target


class Product(eqx.Module):
    """What such a run's checkpoint holds: one item."""

    decomposition: Decomposition


def deposit(
    run_dir: Path,
    config: Config,
    target: Target,
    decomposition: Decomposition,
    step: int,
    origin: dict[str, Any],
) -> RunDirectory:
    """Writes a run directory that holds just these.

    **Arguments:**

    - `run_dir`: empty or absent.
    - `config`: of which target and decomposition have the shapes.
    - `step`: how many updates the decomposition has had.
    - `origin`: where it came from, for `run.json` and `summary.json`.

    **Errors:** `RunDirectoryError` where something is there already.
    """
    directory = RunDirectory(run_dir)
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise RunDirectoryError(f"{run_dir} is not empty; choose another directory")
    directory.prepare()
    with CheckpointStore(directory.target) as store:
        store.save(0, StoredTarget(target))
    with CheckpointStore(directory.checkpoints) as store:
        store.save(step, Product(decomposition))
    write_json(directory.record, origin)
    write_json(
        directory.summary, {"name": config.name, "seed": config.seed, "steps": step, **origin}
    )
    # Last: with its configuration a directory becomes a run.
    write_atomically(directory.config, dump_config(config))
    return directory
