"""A state that does not fit is refused before data is read, and one that cannot be stored before it is written."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.states import Moments, Product, State, bits, make_state
from pd_eqx.checkpoint import (
    CheckpointExistsError,
    CheckpointStore,
    StructureMismatchError,
    UnsavableStateError,
    abstract_like,
    items,
)


class One(eqx.Module):
    item: Any


class Other(NamedTuple):
    mu: Any
    nu: Any


def _refusal(tmp_path: Path, stored: Any, asked: Any) -> list[str]:
    with CheckpointStore(tmp_path) as store:
        store.save(0, One(stored))
        with pytest.raises(StructureMismatchError) as refused:
            store.restore(abstract_like(One(asked)))
        with pytest.raises(StructureMismatchError):
            store.restore_item("item", abstract_like(asked), to="host")
    return [" ".join(line.split()) for line in str(refused.value).splitlines()[1:-1]]


A = jnp.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("stored", "asked", "line"),
    [
        (A, A.astype(jnp.int8), "item stored float32[2,3], asked int8[2,3]"),
        (jnp.int32(16777217), jnp.float32(0), "item stored int32[], asked float32[]"),
        (A, A.T, "item stored float32[2,3], asked float32[3,2]"),
        ({"a": A}, {"a": None}, "item['a'] stored float32[2,3], asked None"),
        ({"a": None}, {"a": A}, "item['a'] stored None, asked float32[2,3]"),
        ({"a": {}}, {"a": None}, "item['a'] stored dict, asked None"),
        ({"a": A}, {"a": A, "b": A + 1}, "item['b'] not stored, asked float32[2,3]"),
        ({"a": A, "b": A + 1}, {"a": A}, "item['b'] stored float32[2,3], not asked for"),
        ({"a": A}, {"b": A}, "item['b'] not stored, asked float32[2,3]"),
        ([A], (A,), "item stored list, asked tuple"),
        ([A], {0: A}, "item stored list, asked dict"),
        ({0: A}, {"0": A}, "item['0'] not stored, asked float32[2,3]"),
        (Moments(A, A + 1), {"mu": A, "nu": A + 1}, "item stored namedtuple, asked dict"),
        (A, {"deeper": A}, "item stored float32[2,3], asked dict"),
        (jax.random.key(0), jax.random.key_data(jax.random.key(0)), "item stored key<fry>[], asked uint32[2]"),
        (jax.random.key_data(jax.random.key(0)), jax.random.key(0), "item stored uint32[2], asked key<fry>[]"),
        (jax.random.key(0), jax.random.key(0, impl="rbg"), "item stored key<fry>[], asked key<rbg>[]"),
    ],
)  # fmt: skip
def test_each_kind_of_difference_is_named(
    tmp_path: Path, stored: Any, asked: Any, line: str
) -> None:
    assert line in _refusal(tmp_path, stored, asked)


def test_every_difference_is_listed_once_and_no_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = make_state(0)
    asked = make_state(0, process={"more": [jnp.arange(3), jnp.arange(4)]})
    asked = eqx.tree_at(lambda s: s.process["adam"].mu["w"], asked, jnp.arange(5))
    asked = eqx.tree_at(lambda s: s.product.weights, asked, [jnp.arange(2)])
    monkeypatch.setattr(items, "read", None)
    with CheckpointStore(tmp_path) as store:
        store.save(7, stored)
        with pytest.raises(StructureMismatchError) as refused:
            store.restore(abstract_like(asked))
    lines = [" ".join(line.split()) for line in str(refused.value).splitlines()]
    assert lines[1:-1] == [
        "product.weights stored dict, asked list",
        "process['adam'].mu['w'] stored float32[8,6], asked int32[5]",
        "process['extra'] stored None, asked dict",
    ]
    assert lines[0].startswith("step 7 of ")
    assert "restore_item" in lines[-1]


def test_a_renamed_class_is_no_difference(tmp_path: Path) -> None:
    class Renamed(eqx.Module):
        item: Any

    with CheckpointStore(tmp_path) as store:
        store.save(0, One(Moments(A, [A + 1])))
        restored = store.restore(abstract_like(Renamed(Other(A, [A]))))
    assert isinstance(restored.item, Other)
    assert bits(restored) == bits(Renamed(Other(A, [A + 1])))


def test_an_item_that_is_not_there_is_named(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(0, One(A))
        with pytest.raises(StructureMismatchError, match="has no item 'product'; it holds item"):
            store.restore_item("product", abstract_like(A))


def _deleted() -> jax.Array:
    array = jnp.arange(3) + 1
    array.delete()
    return array


SHARED = jnp.arange(4.0)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"w": jnp.zeros((0, 3))}, r"item\['w'\]  has no elements \(float32\[0, 3\]\)"),
        ({"w": jnp.zeros(3, "uint4")}, r"item\['w'\]  has dtype uint4"),
        ({"w": jnp.zeros(3, "float8_e4m3")}, r"item\['w'\]  has dtype float8_e4m3"),
        ({"w": np.zeros(3)}, r"item\['w'\]  is a numpy array"),
        ({"w": np.float32(3)}, r"item\['w'\]  is a numpy array"),
        ({"w": 3.0}, r"item\['w'\]  is no array but a float"),
        ({"w": len}, r"item\['w'\]  is no array but a builtin_function_or_method"),
        ({"w": _deleted()}, r"item\['w'\]  was deleted"),
        ({"w": SHARED, "x": [SHARED]}, r"item\['x'\]\[0\]  shares its memory with item\['w'\]"),
        ({"a.b": A, "a": {"b": A + 1}}, r"item\['a.b'\]  would be stored as 'a.b', and so would"),
        ({"1": A, "x": {"y": A + 2}, "x.y": A + 1}, r"would be stored as 'x.y'"),
        ({"\ud800": A}, "has a name that is no valid Unicode"),
        ({(1, 2): A}, r"neither string nor integer: \(1, 2\)"),
    ],
)
def test_an_unsavable_leaf_is_named_and_nothing_is_written(
    tmp_path: Path, item: Any, told: str
) -> None:
    with CheckpointStore(tmp_path / "store") as store:
        with pytest.raises(UnsavableStateError, match=told):
            store.save(0, One(item))
        assert list((tmp_path / "store").iterdir()) == []


def test_all_unsavable_leaves_are_listed_together(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(UnsavableStateError, match="2 leaves") as refused:
            store.save(0, State(Product({"a": 1}, None), [A, jnp.zeros(0)]))
        assert "product.weights['a']" in str(refused.value)
        assert "process[1]" in str(refused.value)
        with pytest.raises(UnsavableStateError, match="Equinox module"):
            store.save(0, {"a": A})
        with pytest.raises(UnsavableStateError, match="is being traced"):
            jax.jit(lambda x: store.save(0, One(x)))(A)


def test_one_memory_in_two_leaves_is_seen_behind_two_arrays(tmp_path: Path) -> None:
    whole = jax.device_put(A, jax.devices()[0])
    again = jax.make_array_from_single_device_arrays(
        whole.shape, whole.sharding, [whole.addressable_shards[0].data]
    )
    assert again is not whole
    with CheckpointStore(tmp_path) as store, pytest.raises(UnsavableStateError, match="shares"):
        store.save(0, One([whole, again]))


def test_an_existing_step_is_never_overwritten(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(3, make_state(1))
        with pytest.raises(CheckpointExistsError, match="step 3 is already"):
            store.save(3, make_state(2))
        store.save(1, make_state(5))  # an older one is saved, not silently dropped
        assert store.steps() == [1, 3]
        assert bits(store.restore(abstract_like(make_state(0)), 3)) == bits(make_state(1))
        with pytest.raises(ValueError, match="negative"):
            store.save(-1, make_state(0))
