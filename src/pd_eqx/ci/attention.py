"""The parts that attending importance functions are built of: RMS norm, rotary positions, attention.

Attention is bidirectional: an importance function sees a whole sequence at once. Rotary tables are computed
where they are used and are never leaves, so that no optimizer can train them.

Source: golden numbers `09b_global_ci_fns_devbranch`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.query_blocks import by_query_blocks


def rms_norm(x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
    """`x / sqrt(mean(x²) + ε)` over the last axis, in float32 or wider, with ε that dtype's machine epsilon."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + jnp.finfo(wide.dtype).eps)).astype(x.dtype)


def rotary_frequencies(d_head: int, base: float) -> Float[Array, " half"]:
    """Angle per position of each pair of a head's coordinates: `base^(−2i / d_head)`."""
    return base ** (-jnp.arange(0, d_head, 2, dtype=jnp.result_type(float)) / d_head)


def rotate(x: Float[Array, "*lead seq heads d_head"], base: float) -> Float[Array, "..."]:
    """Rotary positions along `seq`: coordinate `i` is paired with `i + d_head / 2`."""
    positions = jnp.arange(x.shape[-3], dtype=jnp.result_type(float))
    angles = positions[:, None] * rotary_frequencies(x.shape[-1], base)
    cos, sin = (table.astype(x.dtype)[:, None, :] for table in (jnp.cos(angles), jnp.sin(angles)))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Attention(eqx.Module):
    """Bidirectional attention with rotary positions and no biases, scaled by `1/√d_head`.

    - `query`, `key`, `value`, `output`: `[d, d]`, right-multiplied; under a stack of them, its axis comes first.
    """

    query: Float[Array, "*stack d d"]
    key: Float[Array, "*stack d d"]
    value: Float[Array, "*stack d d"]
    output: Float[Array, "*stack d d"]
    n_heads: int = eqx.field(static=True)
    rotary_base: float = eqx.field(static=True, default=10_000.0)

    def __call__(self, x: Float[Array, "*batch seq d"]) -> Float[Array, "*batch seq d"]:
        """Every position attends to every position of its sequence; weights are taken in float32 or wider."""
        heads = (*x.shape[:-1], self.n_heads, x.shape[-1] // self.n_heads)
        query = rotate((x @ self.query).reshape(heads), self.rotary_base)
        key = rotate((x @ self.key).reshape(heads), self.rotary_base)
        value = (x @ self.value).reshape(heads)
        return by_query_blocks(attend, query, key, value).reshape(x.shape) @ self.output


def attend(query: Array, key: Array, value: Array, first: Array | int) -> Array:
    """What each query reads of all positions, `[*lead, T, heads, D]`, at least by float32 weights."""
    del first  # every position sees all
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key, preferred_element_type=wide)
    weights = jax.nn.softmax(scores / math.sqrt(query.shape[-1]), axis=-1).astype(query.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, value)


def init_attention(
    key: PRNGKeyArray, d_model: int, n_heads: int, rotary_base: float = 10_000.0
) -> Attention:
    """Weights `N(0, 1/d_model)`.

    **Errors:** `ValueError` where heads do not divide the width into pairs of coordinates.
    """
    if n_heads < 1 or d_model % (2 * n_heads):
        raise ValueError(
            f"d_model must be a multiple of 2 · n_heads, for rotary pairs: found {d_model} and {n_heads}"
        )
    draws = jax.random.normal(key, (4, d_model, d_model)) / math.sqrt(d_model)
    query, key_weight, value, output = draws
    return Attention(query, key_weight, value, output, n_heads, rotary_base)


def as_sequence(x: Float[Array, "*lead d"]) -> Float[Array, "*batch seq d"]:
    """`x` with a sequence axis before its last; an input `[batch, d]` gets one of length 1."""
    return x[..., None, :] if x.ndim < 3 else x
