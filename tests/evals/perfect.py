"""A TMS target and a decomposition of it made by hand: each feature has its component, and the others are zero."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pd_eqx.ci.mlp import Dense, LayerwiseCI, SharedMLP
from pd_eqx.components import Components
from pd_eqx.state import Decomposition
from pd_eqx.targets.tms import TMS

FEATURES = 5
COUNT = 8
# Feature `f` belongs to component `PLACES[f]` of each site.
PLACES = jnp.array([6, 0, 3, 7, 2])


def pentagon() -> Array:
    angles = 2.0 * jnp.pi * jnp.arange(FEATURES) / FEATURES + 0.3
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)


def target() -> TMS:
    weight = pentagon()
    return TMS(weight, (), weight.T, jnp.full((FEATURES,), -0.1))


def decomposition(scale: float = 1.0) -> Decomposition:
    """Perfect at `scale` 1; otherwise its components are that much longer than the target's weights."""
    weight, features = pentagon(), jnp.arange(FEATURES)
    one_hot = jnp.zeros((FEATURES, COUNT)).at[features, PLACES].set(1.0)
    rows = jnp.zeros((COUNT, 2)).at[PLACES].set(scale * weight)
    components = Components(
        V={"linear1": one_hot, "linear2": rows.T},
        U={"linear1": rows, "linear2": one_hot.T},
    )
    # A feature of 0.75 has importance 1; at the second site its neighbours on the circle stay below 0.
    first = Dense(10.0 * one_hot, jnp.full((COUNT,), -0.5))
    second = Dense(8.0 * rows.T / scale, jnp.full((COUNT,), -3.5))
    return Decomposition(
        components,
        LayerwiseCI(sites={"linear1": SharedMLP((first,)), "linear2": SharedMLP((second,))}),
    )


def features(batch: int = 64, seed: int = 0) -> Array:
    """Sparse rows, in which every feature occurs."""
    key_value, key_mask = jax.random.split(jax.random.key(seed))
    shape = (batch, FEATURES)
    return jax.random.uniform(key_value, shape) * (jax.random.uniform(key_mask, shape) < 0.3)
