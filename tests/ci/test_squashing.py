"""Squashings clip, leak where a dead component needs it, and agree on their ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from pd_eqx.ci.squashing import (
    PUBLISHED,
    Hard,
    LeakyHard,
    Logistic,
    Squashing,
    SwishHard,
    UnpairedLeakyHard,
)

LOGITS = [-2.0, -0.0, 0.0, 0.25, 1.0, 3.0]


def slopes(fn: object, cotangent: float) -> list[float]:
    x = jnp.array(LOGITS)
    assert callable(fn)
    return jax.vjp(fn, x)[1](jnp.full_like(x, cotangent))[0].tolist()


def test_the_lower_squashing_leaks_below_zero_only_where_a_larger_importance_is_wanted() -> None:
    lower = LeakyHard(0.125).lower
    assert lower(jnp.array(LOGITS)).tolist() == [0.0, 0.0, 0.0, 0.25, 1.0, 1.0]
    assert slopes(lower, -8.0) == [-1.0, -1.0, -1.0, -8.0, -8.0, 0.0]
    assert slopes(lower, 8.0) == [0.0, 0.0, 0.0, 8.0, 8.0, 0.0]


def test_the_upper_squashing_leaks_above_one_and_is_whole_at_both_ties() -> None:
    upper = LeakyHard(0.125).upper
    assert upper(jnp.array(LOGITS)).tolist() == [0.0, 0.0, 0.0, 0.25, 1.0, 1.25]
    for sign in (-8.0, 8.0):
        assert slopes(upper, sign) == [0.0, sign, sign, sign, sign, sign / 8.0]


def test_a_plain_clip_would_halve_the_gradient_at_ties() -> None:
    """The failure that these squashings are written out for; if jnp.clip changes, this says so."""
    halved = jax.grad(lambda x: jnp.clip(x, 0.0, 1.0))(0.0)
    assert float(halved) == 0.5
    assert slopes(Hard().lower, 1.0) == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("squashing", [Hard(), Logistic(), SwishHard(), UnpairedLeakyHard()])
def test_gradients_of_single_maps_are_those_of_their_values(squashing: Squashing) -> None:
    x = jnp.array([-1.3, -0.2, 0.4, 0.9, 1.7])
    step = 1e-2
    for name in ("lower", "upper"):
        fn = getattr(squashing, name)
        numeric = (fn(x + step) - fn(x - step)) / (2 * step)
        assert jnp.allclose(jax.vjp(fn, x)[1](jnp.ones(5))[0], numeric, atol=2e-2)


@jax.jit
def published(x: Array) -> tuple[Array, Array]:
    return PUBLISHED.lower(x), PUBLISHED.upper(x)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_the_published_pair_is_ordered_and_masks_stay_within_bounds(logits: list[float]) -> None:
    lower, upper = published(np.resize(np.array(logits, np.float32), 8))
    assert np.all((lower >= 0.0) & (lower <= 1.0))
    assert np.all(upper >= lower)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(
    "squashing", [PUBLISHED, Hard(), Logistic(), SwishHard(), UnpairedLeakyHard()]
)
def test_dtypes_are_kept(squashing: Squashing, dtype: jnp.dtype) -> None:
    x = jnp.array(LOGITS, dtype)
    for fn in (squashing.lower, squashing.upper):
        assert fn(x).dtype == dtype
        assert jax.vjp(fn, x)[1](x)[0].dtype == dtype
