"""Small MLPs side by side, in blocks of components, against the formula written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.ci.scalar_mlp import gelu, scalar_mlps

Arguments = tuple[Array, ...]


def arguments(batch: int, count: int = 6, hidden: int = 4) -> Arguments:
    random = np.random.default_rng(0)
    shapes = [(2, batch // 2, count), *[(count, hidden)] * 3, (count,)]
    return tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)


def plain(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    units = x[..., None] * w1 + b1
    return jnp.sum(jax.nn.gelu(units, approximate=False) * w2, axis=-1) + b2


# The second batch is taken in three blocks of two components.
@pytest.mark.parametrize("batch", [8, 1 << 15])
def test_values_and_gradients_are_those_of_the_formula(batch: int) -> None:
    given = arguments(batch)
    cotangent = jnp.sin(jnp.arange(given[0].size, dtype=jnp.float32)).reshape(given[0].shape)

    def of(function: object) -> Arguments:
        def run(cotangent: Array, *given: Array) -> Arguments:
            outputs, pull = jax.vjp(function, *given)  # pyright: ignore[reportArgumentType]
            return (outputs, *pull(cotangent))

        return jax.jit(run)(cotangent, *given)

    for found, expected in zip(of(scalar_mlps), of(plain), strict=True):
        scale = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale)


def test_units_are_neither_kept_nor_whole() -> None:
    batch, count, hidden = 1 << 16, 8, 32
    shapes = jax.eval_shape(lambda: arguments(batch, count, hidden))

    def gradient(*given: Array) -> Arguments:
        return jax.grad(lambda *given: jnp.sum(scalar_mlps(*given) ** 2), range(5))(*given)

    memory = jax.jit(gradient).lower(*shapes).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.5 * 4 * batch * count * hidden


def test_a_slope_far_out_is_that_of_a_ramp() -> None:
    x = jnp.array([-30.0, -1.0, 0.0, 1.0, 30.0])
    slope = jax.vmap(jax.grad(gelu))(x)
    expected = jax.vmap(jax.grad(lambda x: jax.nn.gelu(x, approximate=False)))(x)
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-7)
