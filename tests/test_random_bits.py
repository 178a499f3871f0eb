"""Random bits: drawn in another way, and the very same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.random_bits import random_uniform, random_words


@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 11), (3, 5, 2), (0, 4)])
@pytest.mark.parametrize("jitted", [True, False])
def test_the_words_are_those_of_jax(shape: tuple[int, ...], jitted: bool) -> None:
    def drawn(draw: Callable[..., Any]) -> np.ndarray:
        def of(key: Any) -> Any:
            return draw(key, shape)

        return np.asarray((jax.jit(of) if jitted else of)(jax.random.fold_in(jax.random.key(3), 5)))

    assert drawn(random_words).tobytes() == drawn(jax.random.bits).tobytes()
    assert drawn(random_uniform).tobytes() == drawn(jax.random.uniform).tobytes()
    assert drawn(random_words).dtype == np.uint32


def test_other_generators_and_wider_floats_are_left_to_jax() -> None:
    key = jax.random.key(3, impl="rbg")
    assert jnp.array_equal(random_words(key, (4, 3)), jax.random.bits(key, (4, 3)))
    key = jax.random.key(3)
    with jax.enable_x64(True):
        wide = random_uniform(key, (4, 3))
        assert wide.dtype == jnp.float64
        assert jnp.array_equal(wide, jax.random.uniform(key, (4, 3)))
    with jax.threefry_partitionable(False):
        assert jnp.array_equal(random_words(key, (4, 3)), jax.random.bits(key, (4, 3)))
