"""The target that a run trained, stored beside its checkpoints.

A resumed run needs the very bits that the run was started with, and training it again gives them only on the same
machine. So it is trained once, stored as a checkpoint of its own with fingerprints, and from then on read: by the
fresh run too, so that both go on from the same arrays in the same places.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.assembly import Assembly
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError
from pd_eqx.runs.parent import parent_directory
from pd_eqx.runs.placement import Place, placed
from pd_eqx.targets.base import Target


class StoredTarget(eqx.Module):
    """What the store of a target holds: one item."""

    target: Any


def stored_target(
    directory: RunDirectory, assembly: Assembly, watch: Callable[[str], None], *, resumed: bool
) -> Target:
    """The run's target; stored first, if it is not there yet: trained, or taken from the run's parent.

    **Arguments:**

    - `resumed`: whether the run has begun, so that its target must be there.

    **Errors:** those of the target's training; `RunDirectoryError` for a run that has lost its target, and
    `CheckpointError` for one whose target was damaged on disk.
    """
    with CheckpointStore(directory.target) as store:
        if store.latest_step() is None:
            if resumed:
                raise RunDirectoryError(
                    f"{directory.target} holds no whole target, and the run cannot go on without the very "
                    "network that it takes apart; put it back from a copy, or start a new run"
                )
            parent = parent_directory(assembly.config)
            if parent is not None:
                target = load_target(parent, assembly)
            else:
                target = assembly.config.target.build(assembly.keys.target, watch)
            store.save(0, StoredTarget(target))
    return load_target(directory, assembly)


def load_target(directory: RunDirectory, assembly: Assembly, place: Place = None) -> Target:
    """The stored target, placed like the rest of the run unless `place` says where; nothing is written."""
    abstract = placed(assembly.placed(assembly.config.target.abstract()), place)
    with CheckpointStore(directory.target, read_only=True) as store:
        return store.restore_item("target", abstract, to="host" if place == "host" else "devices")
