"""Running means: metrics over any number of batches in the memory of one.

A mean carries its weight, so that batches of different sizes, or of different numbers of valid positions, are
pooled over all positions. Averaging the batches' averages would weigh a short last batch like a full one, and
keeping a growing float32 total would stop counting when the total is large.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Mean(eqx.Module):
    """The mean of what has been seen, and how much that was.

    - `value`: of any shape.
    - `weight`: how many positions (or entries) `value` averages over; 0 before the first.
    """

    value: Float[Array, "..."]
    weight: Float[Array, ""]


def mean_of(value: Float[Array, "..."], weight: int | Float[Array, ""]) -> Mean:
    """`value`, the average over `weight` positions; pooled at least in float32."""
    dtype = jnp.promote_types(value.dtype, jnp.float32)
    return Mean(value.astype(dtype), jnp.asarray(weight, dtype))


def nothing_seen(means: PyTree[Any]) -> PyTree[Any]:
    """A tree of means without weight, shaped like `means` (arrays, or their shapes and dtypes)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), means)


def combine(first: PyTree[Any], second: PyTree[Any]) -> PyTree[Any]:
    """The means over what either tree has seen; a mean without weight changes nothing.

    Combined with nothing, a mean keeps its bits.
    """
    return jax.tree.map(_combine, first, second, is_leaf=_is_mean)


def values(means: PyTree[Any]) -> PyTree[Any]:
    """The values alone."""
    return jax.tree.map(lambda mean: mean.value, means, is_leaf=_is_mean)


def _is_mean(node: Any) -> bool:
    return isinstance(node, Mean)


def _combine(first: Mean, second: Mean) -> Mean:
    weight = first.weight + second.weight
    share = jnp.where(second.weight > 0, second.weight / jnp.where(weight > 0, weight, 1), 0)
    moved = first.value + (second.value - first.value) * share
    return Mean(
        jnp.where(second.weight == 0, first.value, jnp.where(share == 1, second.value, moved)),
        weight,
    )
