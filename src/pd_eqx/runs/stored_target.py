"""The network that a run takes apart: stored beside its checkpoints if the run trained it, else referred to.

A resumed run needs the very bits that the run was started with, and training a network again gives them only on the
same machine. So it is trained once, stored as a checkpoint of its own with fingerprints, and from then on read: by the
fresh run too, so that both go on from the same arrays in the same places. A published model is not copied; its
files are pinned by their fingerprint (see `pd_eqx.runs.inputs`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pd_eqx import processes
from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.assembly import Assembly
from pd_eqx.runs.config.language_models import PretrainedTarget
from pd_eqx.runs.config.target_base import TrainedTarget
from pd_eqx.runs.config_file import ConfigError
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError
from pd_eqx.runs.inputs import TARGET, check, pin, recorded
from pd_eqx.runs.parent import parent_directory
from pd_eqx.runs.placement import Place, placed, sharding_of
from pd_eqx.targets.base import Target
from pd_eqx.targets.weights.load import Model


class StoredTarget(eqx.Module):
    """What the store of a target holds: one item."""

    target: Any


def stored_target(
    directory: RunDirectory, assembly: Assembly, watch: Callable[[str], None], *, resumed: bool
) -> Target:
    """The run's target; pinned or stored first, if it is not yet: trained, or taken from the run's parent.

    **Arguments:**

    - `resumed`: whether the run has begun, so that its target must be there.

    **Errors:** those of the target's training; `WeightsError` for published weights; `RunDirectoryError` for a run
    that has lost its target or finds another, and `CheckpointError` for one whose target was damaged on disk.
    """
    configured = assembly.config.target
    if isinstance(configured, PretrainedTarget):
        model = configured.open()
        _pin_published(directory, assembly, configured.model, model, watch)
        return load_published(assembly, configured, model)
    _store_trained(directory, assembly, configured, watch, resumed=resumed)
    return load_target(directory, assembly)


def _built(assembly: Assembly, configured: TrainedTarget, watch: Callable[[str], None]) -> Any:
    """The target that the first process builds, placed like the rest of the run.

    Built in one process, because two might not come to the same bits; the others wait for it.
    """
    if processes.count() == 1:
        return configured.build(assembly.keys.target, watch)
    abstract = assembly.abstract_target()
    built: list[Any] = []
    key = jax.random.wrap_key_data(jax.device_get(jax.random.key_data(assembly.keys.target)))

    def build() -> None:
        built.append(jax.device_get(configured.build(key, watch)))

    processes.by_first(build)
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    numbers = processes.from_first(built[0] if built else empty)

    def place(array: np.ndarray, like: Any) -> jax.Array:
        return jax.make_array_from_callback(like.shape, like.sharding, lambda part: array[part])

    return jax.tree.map(place, numbers, abstract)


def load_target(directory: RunDirectory, assembly: Assembly, place: Place = None) -> Target:
    """The run's target, placed like the rest of the run unless `place` says where; nothing is written."""
    configured = assembly.config.target
    if isinstance(configured, PretrainedTarget):
        model = configured.open()
        check(directory, TARGET, model.path, model.fingerprint())
        target = load_published(assembly, configured, model, sharding_of(place))
        return jax.device_get(target) if place == "host" else target
    abstract = placed(assembly.abstract_target(), place)
    with CheckpointStore(directory.target, read_only=True) as store:
        return store.restore_item("target", abstract, to="host" if place == "host" else "devices")


def load_published(
    assembly: Assembly,
    configured: PretrainedTarget,
    model: Model,
    asked: jax.sharding.Sharding | None = None,
) -> Target:
    """Published weights at one place that was asked for, or placed like the rest of the run."""
    layout = assembly.layout
    return configured.load(
        model, lambda name, shape: asked or layout.sharding(f"target.{name}", shape)
    )


def _pin_published(
    directory: RunDirectory,
    assembly: Assembly,
    asked: str,
    model: Model,
    watch: Callable[[str], None],
) -> None:
    fingerprint, told = model.fingerprint(), model.told()
    watch(f"target  {told}")
    parent = parent_directory(assembly.config)
    if parent is not None:
        theirs = recorded(parent).get(TARGET, {})
        if theirs.get("fingerprint") != fingerprint:
            raise ConfigError(
                f"target.model: {model.path} is not the model that the parent {parent.root} took apart, which was at "
                f"{theirs.get('path')}; a run starts from a decomposition of its own target"
            )
    processes.by_first(lambda: pin(directory, TARGET, asked, model.path, fingerprint, told))


def _store_trained(
    directory: RunDirectory,
    assembly: Assembly,
    configured: TrainedTarget,
    watch: Callable[[str], None],
    *,
    resumed: bool,
) -> None:
    with CheckpointStore(directory.target) as store:
        # What the first process sees counts.
        if processes.gathered(store.latest_step() is not None)[0, 0]:
            return
        if resumed:
            raise RunDirectoryError(
                f"{directory.target} holds no whole target, and the run cannot go on without the very "
                "network that it takes apart; put it back from a copy, or start a new run"
            )
        parent = parent_directory(assembly.config)
        if parent is not None:
            target = load_target(parent, assembly)
        else:
            target = _built(assembly, configured, watch)
        store.save(0, StoredTarget(target))
