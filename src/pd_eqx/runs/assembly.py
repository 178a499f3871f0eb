"""A configuration made real: the target, the step, and the state's shapes and places.

Everything that a fresh and a resumed run must agree on is decided here, once, so that the step compiled from the
abstract state fits both and neither compiles it again. Every leaf lies on the run's devices, scalars included: one
that was made eagerly would run when fresh and refuse to when restored.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.components import Components
from pd_eqx.data.corpus import CorpusError
from pd_eqx.evals.evaluation import Evaluation, make_evaluation
from pd_eqx.runs.config import Config
from pd_eqx.sharding import Layout, MeshShape, make_layout
from pd_eqx.sites import UnknownSiteError, select_sites
from pd_eqx.state import Decomposition, TrainState
from pd_eqx.step import (
    BatchSource,
    init_state,
    make_faithfulness_warmup,
    make_train_step,
)
from pd_eqx.targets.base import Target


class Keys(NamedTuple):
    """The run's randomness, split once from its seed, by purpose."""

    target: PRNGKeyArray
    init: PRNGKeyArray
    train: PRNGKeyArray
    evaluation: PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class Assembly:
    """What a configuration makes of a target; see `assemble`.

    - `batches`, `evaluation_batches`: what is trained on, and what is evaluated on.
    - `counts`: components by site.
    """

    config: Config
    keys: Keys
    batches: BatchSource
    evaluation_batches: BatchSource
    counts: dict[str, int]
    layout: Layout

    def fresh(self, target: Target) -> TrainState:
        """The state at step 0, before the faithfulness warm-up."""
        shapes = eqx.filter_eval_shape(self._init, self.keys.init, target)
        places = self.layout.shardings(shapes)
        return jax.jit(self._init, out_shardings=places)(self.keys.init, target)

    def abstract(self, target: Target) -> TrainState:
        """Shapes, dtypes and places of the state, without numbers."""
        return self.layout.abstract(eqx.filter_eval_shape(self._init, self.keys.init, target))

    def abstract_product(self, target: Target) -> Decomposition:
        """The same of the decomposition alone; needs no data."""

        def init(key: PRNGKeyArray, target: Target) -> Decomposition:
            config = self.config
            optimizers = config.optimizers.build()
            return init_state(
                key, target, self.counts, config.ci_fn.build, optimizers
            ).decomposition

        return self.layout.abstract(
            eqx.filter_eval_shape(init, self.keys.init, target), "decomposition"
        )

    def abstract_target(self) -> Any:
        """Shapes, dtypes and places of the target, without numbers."""
        return self.layout.abstract(self.config.target.abstract(), "target")

    def compile(self, target: Target) -> jax.stages.Compiled:
        """The step's executable: `(state, target, batches, key, n_updates as np.int32)`."""
        return self.lower(target).compile()

    def lower(self, target: Any) -> jax.stages.Lowered:
        """The step for this run's state; `target` may be abstract."""
        state = self.abstract(target)
        places = jax.tree.map(lambda leaf: leaf.sharding, state)
        step = make_train_step(
            self.config.build_objective(),
            self.config.optimizers.build(),
            self.config.steps,
            compute_dtype=self.config.build_compute_dtype(),
            layout=self.layout,
            out_shardings=(places, self.layout.replicated),
        )
        return step.lower(state, target, self.batches, self.keys.train, np.int32(1))

    def evaluation(self, *, in_full: bool) -> Evaluation:
        """What is measured: the cheap part in the loop, or all of it at the end."""
        settings = self.config.target.evaluation(
            self.config.evaluation, self.counts, in_full=in_full
        )
        return make_evaluation(settings, self.layout)

    def whole(self, tree: Any) -> Any:
        """A copy of a tree of this run's arrays, whole on every device."""
        copied = jax.jit(
            lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=self.layout.replicated
        )
        return copied(tree)

    def _init(self, key: PRNGKeyArray, target: Target) -> TrainState:
        return init_state(
            key,
            target,
            self.counts,
            self.config.ci_fn.build,
            self.config.optimizers.build(),
            objective=self.config.build_objective(),
            batches=self.batches,
        )


class Unavailable(eqx.Module):
    """Batches of data that are not here: an error, but not before a batch is asked for."""

    why: str = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, step: Array) -> Array:
        """**Errors:** `CorpusError`, always."""
        raise CorpusError(self.why)


def assemble(config: Config, *, needs_data: bool = True, mesh: MeshShape | None = None) -> Assembly:
    """Everything about a run that does not depend on its target's numbers.

    **Arguments:**

    - `needs_data`: whether data that is not here is an error at once, or only when a batch is asked for: who opens
      a product may not want any.
    - `mesh`: instead of the configured one.

    **Errors:** `UnknownSiteError` for a site pattern that matches nothing; `CorpusError`; `MeshError` where the mesh does
    not fit the devices, a site or the batch.
    """
    try:
        sites = config.target.sites()
        counts = select_sites(sites, config.sites)
    except UnknownSiteError as error:
        raise UnknownSiteError(f"sites: {error}") from None
    layout = make_layout(
        (mesh or config.mesh.build()).mesh(), sites, counts, config.data.batch_size
    )
    batches, evaluation_batches = _batches(config, layout.replicated, needs_data)
    return Assembly(
        config=config,
        keys=jax.jit(_keys, out_shardings=layout.replicated)(np.uint32(config.seed)),
        batches=batches,
        evaluation_batches=evaluation_batches,
        counts=counts,
        layout=layout,
    )


def _batches(
    config: Config, sharding: jax.sharding.Sharding, needs_data: bool
) -> tuple[BatchSource, BatchSource]:
    """What is trained on and what is evaluated on; whatever lies on devices, on the run's."""
    data, of_run = config.data, (config.target, config.seed)
    try:
        sources = data.build(*of_run), data.build_for_evaluation(*of_run)
    except CorpusError as error:
        if needs_data:
            raise
        return Unavailable(str(error)), Unavailable(str(error))
    return jax.device_put(sources, sharding)


def warm_up(
    assembly: Assembly, components: Components, target: Target, updates_per_dispatch: int = 1000
) -> Components:
    """The components after the configured faithfulness warm-up; consumes those it is given."""
    warmup = assembly.config.faithfulness_warmup
    if warmup is None:
        return components
    weights = {site: W for site, W in target.weights().items() if site in components.V}
    optimizer = warmup.optimizer.build()
    layout = assembly.layout
    moments = layout.shardings(eqx.filter_eval_shape(optimizer.init, components))
    opt_state = jax.jit(optimizer.init, out_shardings=moments)(components)
    places = (layout.shardings(components), moments, layout.replicated)
    run = make_faithfulness_warmup(optimizer, warmup.steps, places)
    done = 0
    while done < warmup.steps:
        n = min(updates_per_dispatch, warmup.steps - done)
        components, opt_state, _ = run(components, opt_state, weights, np.int32(done), np.int32(n))
        done += n
    return components


def _keys(seed: Array) -> Keys:
    return Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields)))
