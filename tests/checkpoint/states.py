"""States to save: two items, odd names, odd containers, and what every test compares them by."""

import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Moments(NamedTuple):
    mu: Any
    nu: Any


class Product(eqx.Module):
    weights: dict[str, Any]
    scale: Any
    name: str = eqx.field(static=True, default="product")


class State(eqx.Module):
    product: Product
    process: Any


def make_state(seed: int = 0, process: Any = None) -> State:
    """A small state whose every leaf differs from every other, and from seed to seed."""
    ramp = jnp.arange(8.0 * 6).reshape(8, 6) + 100 * seed
    return State(
        Product(
            {"fc.in": ramp + 0.25, "größe/日本": jnp.arange(8, dtype=jnp.bfloat16) - seed}, None
        ),
        {
            "adam": Moments({"w": ramp * 3}, [jnp.int32(7 + seed), (ramp[0] * 5, {}, ())]),
            "key": jax.random.split(jax.random.key(seed), 8),
            "extra": process,
        },
    )


def bits(tree: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every array's dtype, shape and bytes by path."""
    told: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        host = np.array(jax.random.key_data(leaf) if is_key else leaf, copy=True)
        told[jax.tree_util.keystr(keys)] = (str(leaf.dtype), leaf.shape, host.tobytes())
    return told


def place(tree: Any, sharding_of: Callable[[Any], Any]) -> Any:
    """The tree in the shardings that `sharding_of` gives for each leaf."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding_of(leaf)), tree)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts on a page, which `device_put` on a CPU always borrows."""
    page = np.frombuffer(mmap.mmap(-1, max(array.nbytes, 1)), np.uint8)[: array.nbytes]
    page[...] = np.frombuffer(array.tobytes(), np.uint8)
    return page.view(array.dtype).reshape(array.shape)


def touch(state: Any) -> Any:
    """A step that writes every leaf, so that donation has something to reuse."""

    def changed(leaf: jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(leaf) + jnp.uint32(1)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return (leaf + leaf.dtype.type(1)).astype(leaf.dtype)

    return jax.tree.map(changed, state)
