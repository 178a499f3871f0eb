"""Golden parity of the squashings: forward, and backward for every sign of cotangent, ties included."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from parity.golden import Golden
from pd_eqx.ci.squashing import Hard, LeakyHard, Logistic, SwishHard, UnpairedLeakyHard

GOLDEN = "01_sigmoids"

Map = Callable[[Array], Array]


def maps(leak: float) -> dict[str, Map]:
    return {
        "lower_leaky_hard": LeakyHard(leak).lower,
        "upper_leaky_hard": LeakyHard(leak).upper,
        "leaky_hard": UnpairedLeakyHard(leak).lower,
        "hard": Hard().lower,
        "normal": Logistic().lower,
        "swish_hard": SwishHard().lower,
    }


NAMES = sorted(maps(0.0))


ROUNDED = "entries that float32 rounds onto the tie at 1"


def told_apart(golden: Golden) -> np.ndarray:
    """Where rounding to the test's precision keeps `x` on its side of 1."""
    exact, rounded = golden.numpy("x"), np.asarray(golden["x"])
    return np.sign(exact - 1.0) == np.sign(rounded - 1.0)


def backward(fn: Map, x: Array, cotangent: Array) -> Array:
    return jax.vjp(fn, x)[1](cotangent)[0]


@pytest.mark.parametrize("name", NAMES)
def test_forward(golden: Golden, name: str) -> None:
    golden.check(f"{name}/fwd", maps(golden.scalar("alpha"))[name](golden["x"]), "A")


@pytest.mark.parametrize("sign", ["pos", "neg", "mix"])
@pytest.mark.parametrize("name", NAMES)
def test_backward(golden: Golden, name: str, sign: str) -> None:
    found = backward(maps(golden.scalar("alpha"))[name], golden["x"], golden[f"g_{sign}"])
    golden.check(f"{name}/bwd_{sign}", found, "A", where=told_apart(golden), why=ROUNDED)


@pytest.mark.parametrize("name", ["lower_leaky_hard", "upper_leaky_hard"])
def test_arithmetic_of_float32(golden: Golden, name: str) -> None:
    fn = maps(golden.scalar("alpha"))[name]
    x = golden["f32/x"]
    assert x.dtype == jnp.float32
    golden.check(f"f32/{name}/fwd", fn(x), "B")
    cotangent = golden["g_mix"].astype(jnp.float32)
    golden.check(f"f32/{name}/bwd_mix", backward(fn, x, cotangent), "B")


def test_unpaired_squashings_feed_masks_and_minimality_alike(golden: Golden) -> None:
    x = golden["x"]
    for squashing in (Hard(), Logistic(), SwishHard(), UnpairedLeakyHard()):
        assert jnp.array_equal(squashing.lower(x), squashing.upper(x))
