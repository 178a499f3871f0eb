"""What was saved comes back, bit for bit, wherever it is asked for."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from checkpoint.states import Product, State, aligned, bits, make_state, place, touch
from pd_eqx.checkpoint import CheckpointStore, PlacementError, abstract_like, items
from pd_eqx.checkpoint.structure import STORED_DTYPES
from pd_eqx.donation import from_host, measure_reuse

P = PartitionSpec


class One(eqx.Module):
    item: Any


def _mesh(shape: tuple[int, ...], axis_type: AxisType = AxisType.Explicit) -> jax.sharding.Mesh:
    names = ("a", "b")[: len(shape)]
    count = int(np.prod(shape))
    return jax.make_mesh(
        shape, names, axis_types=(axis_type,) * len(shape), devices=jax.devices()[:count]
    )


def _sharded(mesh: jax.sharding.Mesh, spec: PartitionSpec) -> Any:
    def sharding_of(leaf: Any) -> NamedSharding:
        fitting = P(*spec[: leaf.ndim])
        try:
            NamedSharding(mesh, fitting).shard_shape(leaf.shape)
        except ValueError:
            fitting = P()
        return NamedSharding(mesh, fitting)

    return sharding_of


PLACEMENTS = {
    "last device": lambda: lambda _: jax.devices()[-1],
    "1 of 8": lambda: _sharded(_mesh((1,)), P("a")),
    "2, second axis": lambda: _sharded(_mesh((2,)), P(None, "a")),
    "4 x 2, automatic": lambda: _sharded(_mesh((4, 2), AxisType.Auto), P("a", "b")),
    "8, first axis": lambda: _sharded(_mesh((8,)), P("a")),
    "8, replicated": lambda: _sharded(_mesh((8,)), P()),
}


@pytest.mark.devices(8)
def test_every_placement_restores_into_every_other_bit_for_bit_and_donates(tmp_path: Path) -> None:
    expected = bits(make_state(3))
    with CheckpointStore(tmp_path) as store:
        for step, make in enumerate(PLACEMENTS.values()):
            store.save(step, place(make_state(3), make()))
        for target, make in PLACEMENTS.items():
            abstract = abstract_like(place(make_state(0), make()))
            step_function = jax.jit(touch, donate_argnums=0)
            for step, source in enumerate(PLACEMENTS):
                restored = store.restore(abstract, step)
                assert bits(restored) == expected, (source, target)
                assert abstract_like(restored) == abstract, (source, target)
                after, report = measure_reuse(step_function, restored)
                assert report.fraction == 1.0, (source, target, report)
                assert bits(after) != expected
        manifests = [store.describe(step).items for step in range(len(PLACEMENTS))]
        prints = [[node.fingerprint for item in m for node in item.arrays] for m in manifests]
        assert all(p == prints[0] for p in prints)


def test_every_stored_dtype_keeps_every_bit_pattern(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        leaves: dict[str, jax.Array] = {}
        for name in STORED_DTYPES:
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            data = random.integers(0, 256, (3, 5, dtype.itemsize), np.uint8)
            if name == "bool":
                data &= 1
            if name != "bool":
                data &= {"int2": 3, "int4": 15, "float4_e2m1fn": 15}.get(name, 255)
            leaves[name] = jnp.asarray(aligned(data).view(dtype).reshape(3, 5))
        nan = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1, 0x807FFFFF], np.uint32)
        leaves["odd floats"] = jnp.asarray(nan.view(np.float32))
        leaves["scalar"] = jnp.asarray(-0.0, jnp.float16)
        state = One(leaves)
        with CheckpointStore(tmp_path) as store:
            store.save(0, state)
            assert bits(store.restore(abstract_like(state))) == bits(state)
            host = store.restore_item("item", abstract_like(leaves), to="host")
            assert bits(host) == bits(leaves)
            assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(host))
            store.verify()


def _is_stored(path: Path, dtype: str) -> bool:
    try:
        items.write(path, {"item": {"a": jnp.zeros(3, dtype)}})
    except Exception as error:  # noqa: BLE001  whatever tensorstore and XLA raise
        return "data type" not in str(error) and "PrimitiveType" not in str(error)
    return True


def test_the_list_of_stored_dtypes_is_complete(tmp_path: Path) -> None:
    scalar_types = [getattr(jnp, name) for name in dir(jnp)]
    names = {jnp.dtype(t).name for t in scalar_types if isinstance(t, type(jnp.float32))}
    others = sorted(names - {*STORED_DTYPES})
    assert {"uint4", "float8_e4m3"} <= {*others}
    with jax.enable_x64(True):
        stored = [name for name in others if _is_stored(tmp_path / name, name)]
    assert stored == []


@pytest.mark.parametrize(
    "item",
    [
        None,
        {},
        (),
        {"a": None, "b": [(), {}]},
        jnp.arange(5.0),
        {"": jnp.arange(2), " ": jnp.arange(3), ".": jnp.arange(4), "\n\0": jnp.arange(5)},
        {"a": jnp.arange(2), "a/b": jnp.arange(3), "a/c/0": jnp.arange(4), "a/c": jnp.arange(5)},
        {"..": jnp.arange(2), "../../x": jnp.arange(3), "c" * 300: jnp.arange(4), "%41": jnp.ones(1)},
        {1: jnp.arange(2), 30: [jnp.arange(3)]},
        {"adam": {"zarr.json": jnp.arange(3), "d": jnp.arange(4)}},
        [jax.random.key(3), jax.random.key(4, impl="rbg"), jax.random.key_data(jax.random.key(5))],
        [jnp.float32(2), jnp.asarray(2.0), jnp.asarray(3), jnp.asarray(True)],
    ],
    ids=str,
)  # fmt: skip
def test_names_containers_scalars_and_keys(tmp_path: Path, item: Any) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(0, One(item))
        restored = store.restore(abstract_like(One(item)))
        assert jax.tree.structure(restored) == jax.tree.structure(One(item))
        assert bits(restored) == bits(One(item))
        assert abstract_like(restored) == abstract_like(One(item))
        by_path = {node.path: array.tobytes() for node, array in store.read_item("item")}
        assert sorted(by_path.values()) == sorted(data for _, _, data in bits(One(item)).values())
        store.verify(0)


def test_field_names_that_orbax_uses_itself(tmp_path: Path) -> None:
    class Named(eqx.Module):
        items: Any
        metrics: Any
        default: Any
        handler_registry: Any
        default_: Any

    state = Named(*(jnp.arange(3) + i for i in range(5)))
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
        assert bits(store.restore(abstract_like(state))) == bits(state)


@pytest.mark.devices(2)
def test_an_active_mesh_does_not_disturb(tmp_path: Path) -> None:
    state = make_state(1)
    mesh = _mesh((2,))
    abstract = abstract_like(place(make_state(0), _sharded(mesh, P("a"))))
    with CheckpointStore(tmp_path) as store, jax.set_mesh(mesh):
        store.save(0, state)
        restored = store.restore(abstract)
        assert jax.sharding.get_mesh() == mesh
    assert bits(restored) == bits(state)


def test_layouts_of_a_compiled_step_are_followed(tmp_path: Path) -> None:
    layout = Layout(major_to_minor=(1, 0))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    column_major = Format(layout, sharding)
    leaf = jnp.arange(12.0).reshape(3, 4)
    asked = One(jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=column_major))
    compiled = (
        jax.jit(touch, donate_argnums=0, in_shardings=column_major, out_shardings=column_major)
        .lower(asked)
        .compile()
    )
    formats = compiled.input_formats[0][0]
    asked = One(jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=formats.item))
    with CheckpointStore(tmp_path) as store:
        store.save(0, One(leaf))
        restored = store.restore(asked)
    assert restored.item.format.layout.major_to_minor == (1, 0)
    assert bits(restored) == bits(One(leaf))
    assert measure_reuse(compiled, restored)[1].fraction == 1.0


def test_a_placement_that_cannot_be_is_refused_before_reading(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        with jax.enable_x64(True):
            wide = One({"wide": jnp.arange(3.0, dtype=jnp.float64), "odd": jnp.arange(7)})
            store.save(0, wide)
        mesh = _mesh((min(2, len(jax.devices())),))
        asked = One(
            {
                "wide": jax.ShapeDtypeStruct((3,), np.float64),
                "odd": jax.ShapeDtypeStruct((7,), np.int64, sharding=NamedSharding(mesh, P("a"))),
            }
        )
        with pytest.raises(PlacementError, match=r"item\['wide'\].*jax_enable_x64"):
            store.restore(asked)
        assert store.restore_item("item", asked.item, to="host")["wide"].dtype == np.float64
        if len(jax.devices()) > 1:
            with (
                jax.enable_x64(True),
                pytest.raises(PlacementError, match=r"item\['odd'\] .*int64"),
            ):
                store.restore(asked)


@pytest.mark.devices(8)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_memory_that_device_put_borrows_is_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    state = place(make_state(2), PLACEMENTS[placement]())
    abstract = abstract_like(state)
    read = items.read

    def page_aligned(*args: Any) -> list[Any]:
        return [aligned(array) for array in read(*args)]

    monkeypatch.setattr(items, "read", page_aligned)
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
        restored = store.restore(abstract)
    step = jax.jit(touch, donate_argnums=0)
    assert bits(restored) == bits(state)
    assert measure_reuse(step, restored)[1].fraction == 1.0

    leaf = state.product.weights["fc.in"]
    host = aligned(np.asarray(leaf))
    borrowed = jax.device_put(host, leaf.sharding)
    lost = measure_reuse(step, [borrowed])[1]
    if placement not in ("2, second axis", "4 x 2, automatic"):  # no slice of these is contiguous
        assert lost.fraction < 1.0
    cured = from_host(host, abstract.product.weights["fc.in"])
    assert measure_reuse(step, [cured])[1].fraction == 1.0


def test_a_restored_state_is_no_reason_to_compile_again(tmp_path: Path) -> None:
    fresh = State(Product({"w": jnp.arange(6.0)}, jnp.asarray(1.5)), {"n": jnp.asarray(3)})
    assert fresh.product.scale.weak_type
    step: Any = jax.jit(touch)
    step(fresh)
    with CheckpointStore(tmp_path) as store:
        store.save(0, fresh)
        step(store.restore(abstract_like(fresh)))
        assert step._cache_size() == 1
        committed = abstract_like(jax.device_put(fresh, jax.devices()[0]))
        step(store.restore(committed))
        assert step._cache_size() == 2, "the test can see a compilation"


def test_plain_orbax_reads_what_we_write(tmp_path: Path) -> None:
    state = make_state(4)
    with CheckpointStore(tmp_path) as store:
        store.save(12, state)
    with ocp.CheckpointManager(tmp_path) as manager:
        assert list(manager.all_steps()) == [12]
        arguments = ocp.args.Composite(product=ocp.args.PyTreeRestore())
        product = manager.restore(12, args=arguments)["product"]
    weights = product["weights"]
    assert bits(weights) == bits(state.product.weights)
