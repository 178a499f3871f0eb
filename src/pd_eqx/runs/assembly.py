"""A configuration made real: the target, the step, and the state's shapes and places.

Everything that a fresh and a resumed run must agree on is decided here, once, so that the step compiled from the
abstract state fits both and neither compiles it again. Every leaf lies on the run's devices, scalars included: one
that was made eagerly would run when fresh and refuse to when restored.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.components import Components
from pd_eqx.data.corpus import CorpusError
from pd_eqx.evals.evaluation import Evaluation, make_evaluation
from pd_eqx.runs.config import Config
from pd_eqx.sites import UnknownSiteError
from pd_eqx.state import Decomposition, TrainState
from pd_eqx.step import (
    BatchSource,
    TrainStep,
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
    step: TrainStep
    sharding: jax.sharding.Sharding

    def fresh(self, target: Target) -> TrainState:
        """The state at step 0, before the faithfulness warm-up."""
        return jax.jit(self._init, out_shardings=self.sharding)(self.keys.init, target)

    def abstract(self, target: Target) -> TrainState:
        """Shapes, dtypes and places of the state, without numbers."""
        return self.placed(eqx.filter_eval_shape(self._init, self.keys.init, target))

    def abstract_product(self, target: Target) -> Decomposition:
        """The same of the decomposition alone; needs no data."""

        def init(key: PRNGKeyArray, target: Target) -> Decomposition:
            config = self.config
            optimizers = config.optimizers.build()
            return init_state(
                key, target, self.counts, config.ci_fn.build, optimizers
            ).decomposition

        return self.placed(eqx.filter_eval_shape(init, self.keys.init, target))

    def placed(self, abstract: Any) -> Any:
        """The same shapes on this run's devices."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding),
            abstract,
        )

    def compile(self, target: Target) -> jax.stages.Compiled:
        """The step's executable: `(state, target, batches, key, n_updates as np.int32)`."""
        arguments = (self.abstract(target), target, self.batches, self.keys.train, np.int32(1))
        return self.step.lower(*arguments).compile()

    def evaluation(self, *, in_full: bool) -> Evaluation:
        """What is measured: the cheap part in the loop, or all of it at the end."""
        settings = self.config.target.evaluation(
            self.config.evaluation, self.counts, in_full=in_full
        )
        return make_evaluation(settings)

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


def assemble(config: Config, *, needs_data: bool = True) -> Assembly:
    """Everything about a run that does not depend on its target's numbers.

    **Arguments:**

    - `needs_data`: whether data that is not here is an error at once, or only when a batch is asked for: who opens
      a product may not want any.

    **Errors:** `UnknownSiteError` for a site pattern that matches nothing; `CorpusError`.
    """
    try:
        counts = config.counts()
    except UnknownSiteError as error:
        raise UnknownSiteError(f"sites: {error}") from None
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    batches, evaluation_batches = _batches(config, sharding, needs_data)
    return Assembly(
        config=config,
        keys=jax.jit(_keys, out_shardings=sharding)(np.uint32(config.seed)),
        batches=batches,
        evaluation_batches=evaluation_batches,
        counts=counts,
        step=make_train_step(
            config.build_objective(),
            config.optimizers.build(),
            config.steps,
            compute_dtype=config.build_compute_dtype(),
        ),
        sharding=sharding,
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
    config: Config, components: Components, target: Target, updates_per_dispatch: int = 1000
) -> Components:
    """The components after the configured faithfulness warm-up; consumes those it is given."""
    warmup = config.faithfulness_warmup
    if warmup is None:
        return components
    weights = {site: W for site, W in target.weights().items() if site in components.V}
    optimizer = warmup.optimizer.build()
    opt_state = jax.jit(optimizer.init)(components)
    run = make_faithfulness_warmup(optimizer, warmup.steps)
    done = 0
    while done < warmup.steps:
        n = min(updates_per_dispatch, warmup.steps - done)
        components, opt_state, _ = run(components, opt_state, weights, np.int32(done), np.int32(n))
        done += n
    return components


def _keys(seed: Array) -> Keys:
    return Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields)))
