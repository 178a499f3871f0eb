"""`pd_eqx.donation`: what was reused is told truly, and everything can be made reusable."""

import mmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pd_eqx.donation import abstract_like, buffer_bytes, ensure_donatable, measure_reuse


def borrowed(array: jax.Array) -> jax.Array:
    """The same values in memory that XLA borrows from the host, and so can never reuse."""
    shards: list[jax.Array] = []
    for shard in array.addressable_shards:
        host = np.asarray(shard.data).copy()
        page = np.frombuffer(mmap.mmap(-1, host.nbytes), host.dtype).reshape(host.shape)
        page[...] = host
        shards.append(jax.device_put(page, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def tree(sharding: Any = None) -> dict[str, Any]:
    make = {f"w{i}": jnp.arange(8.0 * (i % 3 + 1)).reshape(8, -1) + i for i in range(20)}
    return make if sharding is None else jax.device_put(make, sharding)


def adding() -> Any:
    return jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)


@pytest.mark.devices(4)
@pytest.mark.parametrize("devices", [1, 4])
def test_a_borrowed_tree_is_not_reused_and_ensure_donatable_cures_it(devices: int) -> None:
    mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices])
    fresh = tree(NamedSharding(mesh, PartitionSpec("d")))
    abstract = abstract_like(fresh)
    poisoned = jax.tree.map(borrowed, fresh)
    _, report = measure_reuse(adding(), poisoned)
    assert report.reused_bytes == 0
    assert len(report.missed) == 20
    assert "copied" in report.missed[0].reason

    cured = ensure_donatable(jax.tree.map(borrowed, fresh))
    assert abstract_like(cured) == abstract
    expected = jax.tree.map(lambda x: np.asarray(x) + 1, fresh)
    result, report = measure_reuse(adding(), cured)
    assert (report.fraction, report.missed) == (1.0, ())
    assert report.total_bytes == buffer_bytes(result)
    jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_each_reason_for_a_miss_is_told_apart() -> None:
    state = ensure_donatable({"kept": jnp.arange(3.0), "dropped": jnp.arange(5), "w": jnp.ones(7)})
    step = jax.jit(lambda s: {"kept": s["kept"] + 1, "w": s["w"] * 2}, donate_argnums=0)
    _, report = measure_reuse(step, state)
    assert [(miss.path, miss.bytes) for miss in report.missed] == [("['dropped']", 20)]
    assert "no output" in report.missed[0].reason
    assert report.fraction == 40 / 60

    not_donating = jax.jit(lambda s: s * 2)
    _, report = measure_reuse(not_donating, jnp.arange(4.0))
    assert "not donated" in report.missed[0].reason


def test_swapped_leaves_count_as_reused() -> None:
    state = ensure_donatable({"a": jnp.arange(6.0), "b": jnp.arange(6.0) + 9})
    step = jax.jit(lambda s: {"a": s["b"] + 1, "b": s["a"] + 1}, donate_argnums=0)
    assert measure_reuse(step, state)[1].fraction == 1.0


def test_a_held_view_is_reported() -> None:
    state = ensure_donatable([jnp.arange(64.0)])
    view = np.asarray(state[0])
    _, report = measure_reuse(adding(), state)
    assert report.reused_bytes == 0
    assert view[-1] == 63


@pytest.mark.devices(4)
def test_bytes_count_replicas_once_per_device_and_shared_buffers_once() -> None:
    mesh = jax.make_mesh((4,), ("d",), devices=jax.devices()[:4])
    replicated = jax.device_put(jnp.arange(10.0), NamedSharding(mesh, PartitionSpec()))
    sharded = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("d")))
    key = jax.random.key(0)
    assert buffer_bytes([replicated, replicated]) == 160
    assert buffer_bytes({"s": sharded, "none": None, "k": key}) == 32 + 8


def test_ensure_donatable_consumes_places_and_keeps_what_is_not_an_array() -> None:
    device = jax.devices()[-1]
    old = jnp.arange(4.0)
    shared = jnp.arange(3)
    asked = abstract_like(jax.device_put([old, shared, shared], device))
    new = ensure_donatable([old, shared, shared], asked)
    assert old.is_deleted()
    assert shared.is_deleted()
    assert {x.device for x in new} == {device}
    assert all(x.committed for x in new)
    assert new[1] is not new[2]
    assert ensure_donatable({"f": len, "n": None}) == {"f": len, "n": None}


@pytest.mark.devices(8)
@pytest.mark.parametrize("there", [[4, 5, 6, 7], [3, 2, 1, 0], [6]])
def test_ensure_donatable_moves_between_devices(there: list[int]) -> None:
    devices = jax.devices()
    here = NamedSharding(jax.make_mesh((4,), ("d",), devices=devices[:4]), PartitionSpec("d"))
    mesh = jax.make_mesh((len(there),), ("d",), devices=[devices[i] for i in there])
    asked = abstract_like(tree(NamedSharding(mesh, PartitionSpec("d"))))
    key = jax.device_put(jax.random.key(3), NamedSharding(here.mesh, PartitionSpec()))
    asked["key"] = abstract_like(jax.device_put(key, NamedSharding(mesh, PartitionSpec())))
    moved = ensure_donatable(tree(here) | {"key": key}, asked)
    assert abstract_like(moved) == asked
    assert moved.pop("key") == jax.random.key(3)
    jax.tree.map(np.testing.assert_array_equal, moved, tree())
    assert measure_reuse(adding(), moved)[1].fraction == 1.0


def test_ensure_donatable_casts_nothing() -> None:
    with pytest.raises(ValueError, match=r"\['w'\] is int32\[3\].*float32\[3\]"):
        ensure_donatable({"w": jnp.arange(3)}, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)})


def test_weak_types_and_commitment_survive_so_that_nothing_compiles_again() -> None:
    state = {"weak": jnp.asarray(1.5), "strong": jnp.float32(2), "key": jax.random.key(5)}
    step: Any = jax.jit(lambda s: jax.tree.map(lambda x: x, s))
    step(state)
    twin = ensure_donatable(jax.tree.map(jnp.copy, state), abstract_like(state))
    assert twin["weak"].weak_type
    step(twin)
    assert step._cache_size() == 1
    committed = jax.device_put(state, jax.devices()[0])
    step(committed)
    assert step._cache_size() == 2
