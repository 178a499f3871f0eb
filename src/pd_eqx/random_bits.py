"""Random bits: those of `jax.random.bits`, bit for bit, in a fifth of the time on a CPU.

A small run's step draws about as many random numbers as it has importances. Where JAX compiles for a CPU it runs
Threefry's rounds as a loop, which keeps compilation short but passes every word through memory twenty times;
written out, the rounds are one pass in registers. Nothing else differs, so no run changes its numbers.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Threefry-2x32, 20 rounds).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

_IMPLEMENTATION = "threefry2x32"
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def random_words(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """`jax.random.bits(key, shape, jnp.uint32)`, the very same words.

    A key of another generator than Threefry, a shape of 2^32 words or more, and a JAX that is set to the older order of
    draws are left to JAX.
    """
    size = math.prod(shape)
    threefry = str(jax.random.key_impl(key)) == _IMPLEMENTATION
    newer = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if not threefry or size >= 1 << 32 or not newer:
        return jax.random.bits(key, shape, jnp.uint32)
    return jax.lax.platform_dependent(
        jax.random.key_data(key), cpu=partial(_in_halves, shape), default=partial(_by_jax, shape)
    )


def random_uniform(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """`jax.random.uniform(key, shape)`, the very same numbers in [0, 1)."""
    if jnp.result_type(float) != jnp.float32:
        return jax.random.uniform(key, shape)
    mantissas = random_words(key, shape) >> np.uint32(9) | np.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1.0


def _by_jax(shape: tuple[int, ...], key: Array) -> Array:
    return jax.random.bits(jax.random.wrap_key_data(key, impl=_IMPLEMENTATION), shape, jnp.uint32)


def _in_halves(shape: tuple[int, ...], key: Array) -> Array:
    """In a loop, for XLA fuses nothing through one: it would draw again wherever a word is read."""
    size = math.prod(shape)
    half = -(-size // 2)

    def words(start: Array) -> Array:
        count = start + jax.lax.iota(jnp.uint32, half)
        high, low = _threefry(key[0], key[1], jnp.zeros_like(count), count)
        return high ^ low

    starts = jnp.array([0, half], jnp.uint32)
    return jax.lax.map(words, starts).reshape(-1)[:size].reshape(shape)


def _threefry(key_0: Array, key_1: Array, x_0: Array, x_1: Array) -> tuple[Array, Array]:
    keys = (key_0, key_1, key_0 ^ key_1 ^ _PARITY)
    x_0, x_1 = x_0 + keys[0], x_1 + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x_0 = x_0 + x_1
            x_1 = (x_1 << np.uint32(distance) | x_1 >> np.uint32(32 - distance)) ^ x_0
        x_0 = x_0 + keys[(group + 1) % 3]
        x_1 = x_1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x_0, x_1
