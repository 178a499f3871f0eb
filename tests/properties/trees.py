"""Random trees of random modules, and random places to put them."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from pd_eqx.checkpoint.structure import STORED_DTYPES

# 64-bit types need a setting of the whole process; tests/checkpoint has them.
DTYPES = tuple(
    name for name in STORED_DTYPES if name == "complex64" or not name.endswith(("64", "128"))
)
# Entries of less than a byte take a byte each on the host; its other bits mean nothing.
USED_BITS = {"int2": 3, "int4": 15, "float4_e2m1fn": 15}
NAMES = st.sampled_from(("w", "b", "layers/0", "größe", "日本", "0", "a b", "é'\"", "V", "x.y"))
MESHES = ((1,), (2,), (4,), (8,), (2, 2), (4, 2), (2, 4), (2, 2, 2))


class Pair(eqx.Module):
    left: Any
    right: Any


class Labelled(eqx.Module):
    inside: dict[str, Any]
    gain: Any
    label: str = eqx.field(static=True, default="kept out of the checkpoint")


class Moments(NamedTuple):
    count: Any
    mu: Any


class State(eqx.Module):
    product: Any
    process: Any


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Random bits of a random dtype: NaNs with payloads, negative zeros and subnormals among them."""
    name = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 8, 16)), max_size=3)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype, count = jnp.dtype(name), math.prod(shape)
    if name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    raw = np.frombuffer(generator.bytes(count * dtype.itemsize), np.uint8)
    return (raw & USED_BITS.get(name, 255)).view(dtype).reshape(shape)


@st.composite
def keys(draw: st.DrawFn) -> Any:
    """Typed PRNG keys, one or several."""
    implementation = draw(st.sampled_from(("threefry2x32", "rbg")))
    key = jax.random.key(draw(st.integers(0, 99)), impl=implementation)
    return draw(st.sampled_from((key, jax.random.split(key, 8))))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One level of some container."""
    named = st.dictionaries(NAMES, children, max_size=3)
    return st.one_of(
        named,
        st.dictionaries(st.integers(0, 20), children, max_size=2),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.builds(Pair, children, children),
        st.builds(Labelled, named, children),
        st.builds(Moments, children, children),
    )


def items() -> st.SearchStrategy[Any]:
    """A tree of numpy arrays, keys and None."""
    leaves = st.one_of(arrays(), arrays(), arrays(), keys(), st.none())
    return st.recursive(leaves, containers, max_leaves=8)


def states() -> st.SearchStrategy[State]:
    """Two items of at least one container each."""
    return st.builds(State, containers(items()), containers(items()))


@st.composite
def placements(draw: st.DrawFn, shapes: list[tuple[int, ...]]) -> list[Any]:
    """A sharding for each shape: a mesh for all, and axes of it for each that the shape can be cut by."""
    sizes = draw(st.sampled_from(MESHES))
    names = ("a", "b", "c")[: len(sizes)]
    count = math.prod(sizes)
    if count == 1 and draw(st.booleans()):
        return [SingleDeviceSharding(jax.devices()[draw(st.integers(0, 7))])] * len(shapes)
    types = (draw(st.sampled_from(tuple(jax.sharding.AxisType)[:2])),) * len(sizes)
    mesh = jax.make_mesh(sizes, names, axis_types=types, devices=jax.devices()[:count])
    chosen: list[Any] = []
    for shape in shapes:
        free: dict[str, int] = dict(zip(names, sizes, strict=True))
        spec: list[str | None] = []
        for dimension in shape:
            fitting = [name for name, size in free.items() if dimension % size == 0]
            axis = draw(st.sampled_from([*fitting, None]))
            spec.append(axis)
            free = {name: size for name, size in free.items() if name != axis}
        chosen.append(NamedSharding(mesh, PartitionSpec(*spec)))
    return chosen


def placed(leaf: Any, sharding: Any) -> jax.Array:
    """A leaf on its devices, in memory that is XLA's own."""
    return jax.jit(jnp.copy, out_shardings=sharding)(jax.device_put(leaf, sharding))
