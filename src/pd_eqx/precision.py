"""Precision: what is computed in a narrow dtype and what never is.

Masters, moments and losses are float32. The forward passes, which cost most, may run in a narrower
compute dtype: the target and its inputs are cast once at the edge of the step, and what meets them (components
in a masked map, an importance function) follows the dtype of what it is given. Gradients come back through
those casts as float32. A cast anywhere else would round a master, or a sum over a batch, without a word.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def as_dtype(tree: Tree, dtype: jax.typing.DTypeLike | None) -> Tree:
    """`tree` with its floating arrays in `dtype`; integers, booleans and keys stay. None changes nothing."""
    if dtype is None:
        return tree
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if is_floating(leaf) else leaf, tree)


def is_floating(leaf: Any) -> bool:
    """Whether an array holds floating numbers."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def default_compute_dtype(platform: str | None = None) -> jax.typing.DTypeLike:
    """The compute dtype of a platform, by default of the one jax runs on: float32 on CPU, bfloat16 elsewhere."""
    return jnp.float32 if (platform or jax.default_backend()) == "cpu" else jnp.bfloat16
