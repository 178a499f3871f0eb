"""Blocks of queries are invisible in what attention reads and in its gradients, and hold no whole probabilities."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.ci import attention
from pd_eqx.query_blocks import by_query_blocks
from pd_eqx.targets import transformer

BATCH, LENGTH, HEADS, D = 2, 11, 4, 6
WHOLE = 1 << 30


def drawn(kv_heads: int, length: int = LENGTH, dtype: Any = jnp.float32) -> tuple[Array, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(BATCH, length, heads, D) for heads in (HEADS, kv_heads, kv_heads, HEADS)]
    return tuple(
        2 * jax.random.normal(key, shape).astype(dtype)
        for key, shape in zip(keys, shapes, strict=True)
    )


@pytest.mark.parametrize("at_once", [1, 4, 10])
@pytest.mark.parametrize(
    ("attend", "kv_heads"), [(transformer.attend, 2), (attention.attend, HEADS)]
)
def test_blocks_are_invisible(attend: Any, kv_heads: int, at_once: int) -> None:
    q, k, v, g = drawn(kv_heads)

    def read_and_gradients(at_once: int) -> tuple[Array, ...]:
        read, pull = jax.vjp(partial(by_query_blocks, attend, at_once=at_once), q, k, v)
        return (read, *pull(g))

    by_blocks = jax.jit(read_and_gradients, static_argnums=0)(at_once)
    for found, expected in zip(by_blocks, read_and_gradients(WHOLE), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_gradients_of_keys_are_summed_in_float32() -> None:
    q, k, v, g = drawn(2, length=256, dtype=jnp.bfloat16)

    def gradient(q: Array, k: Array, v: Array, g: Array, at_once: int) -> np.ndarray:
        _, pull = jax.vjp(partial(by_query_blocks, transformer.attend, at_once=at_once), q, k, v)
        return np.asarray(pull(g)[2], np.float32)

    wide = [x.astype(jnp.float32) for x in (q, k, v, g)]
    exact = gradient(wide[0], wide[1], wide[2], wide[3], WHOLE)

    def error(at_once: int) -> float:
        found = gradient(q, k, v, g, at_once)
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    assert error(2) < 1.5 * error(WHOLE)


def test_probabilities_are_never_whole() -> None:
    """Four times the length: four times the memory, and not sixteen times."""

    def temporary(length: int, at_once: int) -> int:
        shape = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)

        def loss(q: Array, k: Array, v: Array) -> Array:
            return jnp.sum(by_query_blocks(transformer.attend, q, k, v, at_once) ** 2)

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert temporary(2048, 128) < 5 * temporary(512, 128)
    assert temporary(2048, WHOLE) > 10 * temporary(512, WHOLE)
    assert temporary(2048, 128) < temporary(2048, WHOLE) / 5
