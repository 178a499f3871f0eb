"""Attention a block of queries at a time, so that its probabilities are never whole.

They are quadratic in the length of a sequence, and at 2048 tokens outweigh all else that a layer computes. A block of
queries needs its own rows of them alone, whose softmax is complete: nothing is corrected afterwards, and each query's
result is what it would be otherwise. Going back, each block's rows are computed again, so what is kept has the size of
queries, keys and values.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Where a sequence is longer than this, its queries are taken in blocks of at most so many.
QUERIES_AT_ONCE = 128

# `(q, k, v, first)`: what queries read, the first of which is at position `first`; of the shape of `q`.
Attend = Callable[[Array, Array, Array, Int[Array, ""] | int], Array]


def by_query_blocks(
    attend: Attend,
    q: Float[Array, "*lead T heads D"],
    k: Float[Array, "*lead T kv_heads D"],
    v: Float[Array, "*lead T kv_heads D"],
    at_once: int = QUERIES_AT_ONCE,
) -> Float[Array, "*lead T heads D"]:
    """`attend(q, k, v, 0)`, with at most `at_once` queries of each sequence alive at a time.

    **Arguments:**

    - `attend`: a function of a module, or a `partial` of one without arrays; each query's result depends on itself, on
      its position and on all keys and values.
    """
    length = q.shape[-3]
    if length <= at_once:
        return attend(q, k, v, 0)
    return _blocked(attend, -(-length // at_once), q, k, v)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _blocked(attend: Attend, blocks: int, q: Array, k: Array, v: Array) -> Array:
    def body(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        here, first = _tied(*block)
        return None, attend(here, k, v, first)

    _, read = jax.lax.scan(body, None, _apart(q, blocks))
    return _together(read, q.shape[-3])


def _forward(
    attend: Attend, blocks: int, q: Array, k: Array, v: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    return _blocked(attend, blocks, q, k, v), (q, k, v)


def _backward(
    attend: Attend, blocks: int, kept: tuple[Array, Array, Array], g: Array
) -> tuple[Array, Array, Array]:
    q, k, v = kept

    def body(total: tuple[Array, Array], block: tuple[Any, Any]) -> tuple[Any, Array]:
        block, (g_here, _) = block
        here, first = _tied(*block)
        _, pull = jax.vjp(lambda q, k, v: attend(q, k, v, first), here, k, v)
        of_q, *of_keys = pull(g_here)
        return tuple(t + new.astype(t.dtype) for t, new in zip(total, of_keys, strict=True)), of_q

    nothing = tuple(jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)) for x in (k, v))
    (of_k, of_v), of_q = jax.lax.scan(body, nothing, (_apart(q, blocks), _apart(g, blocks)))
    return _together(of_q, q.shape[-3]), of_k.astype(k.dtype), of_v.astype(v.dtype)


_blocked.defvjp(_forward, _backward)


def _tied(q: Array, first: Array) -> tuple[Array, Array]:
    """The same, neither known before the other.

    What a layer's checkpoint knows without its input it computes ahead, for all blocks: the whole mask.
    """
    return jax.lax.optimization_barrier((q, first))


def _apart(x: Array, blocks: int) -> tuple[Array, Array]:
    """Blocks of positions, an axis of them first and the last filled up with zeros, and the first position of each."""
    axis = x.ndim - 3
    each = -(-x.shape[axis] // blocks)
    blocks = -(-x.shape[axis] // each)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, blocks * each - x.shape[axis])
    padded = jnp.pad(x, padding)
    apart = padded.reshape(*x.shape[:axis], blocks, each, *x.shape[axis + 1 :])
    return jnp.moveaxis(apart, axis, 0), each * jnp.arange(blocks, dtype=jnp.int32)


def _together(x: Array, length: int) -> Array:
    axis = x.ndim - 4
    joined = jnp.moveaxis(x, 0, axis)
    joined = joined.reshape(
        *joined.shape[:axis], math.prod(joined.shape[axis : axis + 2]), *joined.shape[axis + 2 :]
    )
    return jax.lax.slice_in_dim(joined, 0, length, axis=axis)
