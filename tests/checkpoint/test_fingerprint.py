"""A fingerprint sees every change of a leaf, and nothing of where the leaf lies."""

import itertools
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pd_eqx.checkpoint.fingerprint import device_sums, fingerprint, host_sums
from pd_eqx.checkpoint.structure import STORED_DTYPES

compiled = jax.jit(device_sums)


def _sums(array: jax.Array) -> tuple[int, int]:
    first, second = compiled(array)
    return int(first), int(second)


@pytest.mark.parametrize("name", STORED_DTYPES)
def test_device_and_host_agree_on_every_dtype(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    data = np.random.default_rng(1).integers(0, 256, (5, 3, dtype.itemsize), np.uint8)
    data &= {"bool": 1, "int2": 3, "int4": 15, "float4_e2m1fn": 15}.get(name, 255)
    host = data.view(dtype).reshape(5, 3)
    with jax.enable_x64(True):
        array = jnp.asarray(host)
        assert array.dtype == dtype
        assert _sums(array) == host_sums(host) == host_sums(np.asarray(array))
        assert _sums(array) != _sums(array.T)


def test_the_host_sums_do_not_depend_on_blocks_or_on_memory_order() -> None:
    host = np.random.default_rng(2).standard_normal((3, 70_001)).astype(np.float32)
    assert host_sums(np.asfortranarray(host)) == host_sums(host) == _sums(jnp.asarray(host))


@pytest.mark.devices(8)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_no_sharding_changes_it_and_none_gathers_the_array(kind: AxisType) -> None:
    host = np.random.default_rng(3).standard_normal((8, 16)).astype(np.float32)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))
    for spec in itertools.product((None, "a", "b", ("a", "b")), repeat=2):
        if None not in spec and set(spec) != {"a", "b"}:
            continue
        array = jax.device_put(host, NamedSharding(mesh, PartitionSpec(*spec)))
        assert _sums(array) == host_sums(host), spec
        text = compiled.lower(array).compile().as_text()
        gathered = re.findall(r"u32\[([\d,]*)\]\S* all-(?:gather|to-all)\(", text or "")
        sizes = [math.prod(int(size) for size in shape.split(",")) for shape in gathered]
        assert max(sizes, default=0) <= 8, "only partial sums may travel"


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zeroed block": lambda a: np.where(np.arange(a.size).reshape(a.shape) // 5 == 3, 0, a),
    "two elements swapped": lambda a: a.ravel()[[1, 0, *range(2, a.size)]].reshape(a.shape),
    "rows reversed": lambda a: a[::-1],
    "columns rolled": lambda a: np.roll(a, 1, axis=1),
    "sign of zero": lambda a: np.where(a == 0, -a, a),
    "opposite signs swapped": lambda a: a * np.where(np.arange(a.size).reshape(a.shape) < 2, -1, 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_content_or_order_is_seen(change: Callable[[np.ndarray], np.ndarray]) -> None:
    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    array[0, :2] = (5, -5)
    array[3, 3] = 0
    changed = np.ascontiguousarray(change(array)).astype(np.float32)
    assert changed.tobytes() != array.tobytes()
    assert host_sums(changed) != host_sums(array)
    assert host_sums(changed)[0] != host_sums(array)[0]
    assert host_sums(changed)[1] != host_sums(array)[1]


def test_every_single_bit_is_seen() -> None:
    words = np.random.default_rng(4).integers(0, 2**32, 40, np.uint32)
    sums = {host_sums(words)}
    for position, bit in itertools.product(range(words.size), range(32)):
        flipped = words.copy()
        flipped[position] ^= np.uint32(1 << bit)
        sums.add(host_sums(flipped))
    assert len(sums) == 1 + 40 * 32


@pytest.mark.parametrize("distance", [1, 2, 2**8, 2**15, 2**16])
def test_swapped_signs_are_seen_at_every_power_of_two(distance: int) -> None:
    values = np.full(distance + 1, 3.0, np.float32)
    for start in range(20):
        left, right = values.copy(), values.copy()
        left[[0, distance]] = (1 + start, -1 - start)
        right[[0, distance]] = (-1 - start, 1 + start)
        assert host_sums(left) != host_sums(right)


def test_path_dtype_and_shape_are_part_of_it() -> None:
    sums = (1, 2)
    one = fingerprint("a.b", "float32", (2, 3), sums)
    assert len(one) == 32
    others = [
        fingerprint("a.c", "float32", (2, 3), sums),
        fingerprint("a.b", "int32", (2, 3), sums),
        fingerprint("a.b", "float32", (3, 2), sums),
        fingerprint("a.b", "float32", (2, 3), (2, 1)),
    ]
    assert len({one, *others}) == 5
