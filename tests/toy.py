"""A small decomposition to test the method on: two sites of unlike shapes, unlike numbers of components."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.ci.mlp import LayerwiseCI, init_component_mlps
from pd_eqx.components import Components
from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.linear import capture
from pd_eqx.objective import Context, Objective
from pd_eqx.optimizers import AdamW, Optimizers
from pd_eqx.schedule import constant
from pd_eqx.state import TrainState
from pd_eqx.step import init_state
from pd_eqx.targets.tms import TMS

COUNTS: Mapping[str, int] = {"linear1": 6, "linear2": 7}
OPTIMIZERS = Optimizers(AdamW(constant(1e-2)), AdamW(constant(3e-3)))
BATCHES = SparseFeatures(8, 5, 0.4)
TOTAL = 100


def target(seed: int = 0) -> TMS:
    keys = jax.random.split(jax.random.key(100 + seed), 2)
    bias = jnp.linspace(-0.1, 0.2, 5)
    return TMS(jax.random.normal(keys[0], (5, 2)), (), jax.random.normal(keys[1], (2, 5)), bias)


def importance_mlps(key: PRNGKeyArray, components: Components) -> LayerwiseCI:
    return init_component_mlps(key, components, (4,))


def initial(key: PRNGKeyArray, objective: Objective) -> TrainState:
    return init_state(
        key, target(), COUNTS, importance_mlps, OPTIMIZERS, objective=objective, batches=BATCHES
    )


def fresh(objective: Objective, seed: int = 0) -> TrainState:
    """A state whose every buffer is its own, to be donated."""
    return jax.jit(initial, static_argnums=1)(jax.random.key(seed), objective)


def context(objective: Objective, step: int = 0, seed: int = 0) -> Context:
    """What the objective sees at a step, in a state that has carried nothing yet."""
    state, network = initial(jax.random.key(seed), objective), target()
    inputs = BATCHES(jax.random.key(7), jnp.int32(step))
    clean, site_inputs, _ = capture(network, inputs)
    product = state.decomposition
    return Context(
        target=network,
        weights=network.weights(),
        inputs=inputs,
        clean=clean,
        components=product.components,
        importances=product.ci_fn(site_inputs, product.components),
        step=jnp.int32(step),
        total_steps=TOTAL,
        sources=objective.raw_sources(state.training.adversaries),
        averages=state.training.averages,
    )


def bits(tree: object) -> list[bytes]:
    """The bytes of every leaf."""
    leaves: list[Array] = jax.tree.leaves(tree)
    return [np.asarray(leaf).tobytes() for leaf in leaves]
