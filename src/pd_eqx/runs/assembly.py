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
from pd_eqx.evals.evaluation import Evaluation, make_evaluation
from pd_eqx.runs.config import Config
from pd_eqx.sites import UnknownSiteError
from pd_eqx.state import TrainState
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
    """What a configuration makes of a target; see `assemble`."""

    config: Config
    keys: Keys
    batches: BatchSource
    counts: dict[str, int]
    step: TrainStep
    sharding: jax.sharding.Sharding

    def fresh(self, target: Target) -> TrainState:
        """The state at step 0, before the faithfulness warm-up."""
        return jax.jit(self._init, out_shardings=self.sharding)(self.keys.init, target)

    def abstract(self, target: Target) -> TrainState:
        """Shapes, dtypes and places of the state, without numbers."""
        return self.placed(eqx.filter_eval_shape(self._init, self.keys.init, target))

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


def assemble(config: Config) -> Assembly:
    """Everything about a run that does not depend on its target's numbers.

    **Errors:** `UnknownSiteError` for a site pattern that matches nothing.
    """
    try:
        counts = config.counts()
    except UnknownSiteError as error:
        raise UnknownSiteError(f"sites: {error}") from None
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return Assembly(
        config=config,
        keys=jax.jit(_keys, out_shardings=sharding)(np.uint32(config.seed)),
        batches=config.data.build(config.target),
        counts=counts,
        step=make_train_step(
            config.build_objective(),
            config.optimizers.build(),
            config.steps,
            compute_dtype=config.build_compute_dtype(),
        ),
        sharding=sharding,
    )


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
