"""`pd_eqx.checkpoint.diff`: equal means bit for bit, and every difference is told with its size."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from checkpoint.small import State, damage, saved, state
from pd_eqx.checkpoint import CheckpointStore, CorruptCheckpointError
from pd_eqx.checkpoint.diff import Difference, diff
from pd_eqx.checkpoint.strip import strip


def compared(path: Path, left: Any, right: Any) -> Difference:
    with CheckpointStore(path) as store:
        store.save(1, State(left, jnp.int32(0)))
        store.save(2, State(right, jnp.int32(0)))
        return diff(store, store, 1, 2)


def test_equal_states_are_equal_wherever_they_were_saved(tmp_path: Path) -> None:
    with (
        CheckpointStore(saved(tmp_path / "a", 3), read_only=True) as a,
        CheckpointStore(saved(tmp_path / "b", 3), read_only=True) as b,
    ):
        found = diff(a, b, 3, 3)
    assert found.equal
    assert [leaf.path for leaf in found.leaves] == [
        "decomposition['U']",
        "decomposition['V']",
        "decomposition['none']",
        "training[0]",
        "training[1]['count']",
        "training[1]['key']",
        "training[2]",
    ]


def test_each_difference_has_its_size(tmp_path: Path) -> None:
    left = {
        "f": jnp.array([1.0, -4.0, 8.0]),
        "i": jnp.array([1, 250], jnp.uint8),
        "same": jnp.ones(2),
    }
    right = {**left, "f": jnp.array([1.5, -4.0, 10.0]), "i": jnp.array([3, 250], jnp.uint8)}
    found = {leaf.path: leaf for leaf in compared(tmp_path, left, right).leaves}
    floats, integers = found["decomposition['f']"], found["decomposition['i']"]
    assert (floats.verdict, floats.differing, floats.max_abs) == ("differs", 2, 2.0)
    assert floats.max_rel == pytest.approx(1 / 3)
    assert (integers.max_abs, integers.max_rel) == (2.0, pytest.approx(2 / 3))
    assert found["decomposition['same']"].verdict == "equal"


def test_bits_decide_not_values(tmp_path: Path) -> None:
    numbers = ([jnp.nan, 1.0], [0.0, 1.0], [0.0, 2.0], [1.0, 2.0])
    left = dict(zip(("nan", "zero", "turned", "half"), map(jnp.array, numbers), strict=True))
    right = {**left, "nan": jnp.array([jnp.nan, 1.0]), "zero": jnp.array([-0.0, 1.0])}
    right |= {"turned": jnp.array([jnp.nan, 2.0]), "half": jnp.array([1.0, jnp.inf])}
    left["half"], right["half"] = (side["half"].astype(jnp.bfloat16) for side in (left, right))
    found = {leaf.path: leaf for leaf in compared(tmp_path, left, right).leaves}
    assert found["decomposition['nan']"].verdict == "equal"
    assert found["decomposition['turned']"].max_abs == float("inf")
    assert found["decomposition['half']"].max_abs == float("inf")
    zero = found["decomposition['zero']"]
    assert (zero.verdict, zero.differing, zero.max_abs, zero.max_rel) == ("differs", 1, 0.0, 0.0)


def test_differences_of_kind_and_of_place(tmp_path: Path) -> None:
    left = {"a": jnp.arange(3), "b": jnp.arange(3), "c": None, "k": jax.random.key(1)}
    right = {"a": jnp.arange(3.0), "d": jnp.arange(3), "c": {}, "k": jax.random.key(2)}
    found = {leaf.path: leaf for leaf in compared(tmp_path, left, right).leaves}
    assert found["decomposition['a']"].verdict == "another kind"
    assert (found["decomposition['a']"].a, found["decomposition['a']"].b) == (
        "int32[3]",
        "float32[3]",
    )
    assert found["decomposition['b']"].verdict == "only in A"
    assert found["decomposition['d']"].verdict == "only in B"
    assert found["decomposition['c']"].verdict == "another kind"
    assert (found["decomposition['k']"].verdict, found["decomposition['k']"].max_abs) == (
        "differs",
        None,
    )


def test_a_stripped_item_is_compared_by_its_record(tmp_path: Path) -> None:
    strip(saved(tmp_path / "a", 1), "training", apply=True)
    saved(tmp_path / "b", 1, 2)
    with (
        CheckpointStore(tmp_path / "a", read_only=True) as a,
        CheckpointStore(tmp_path / "b", read_only=True) as b,
    ):
        assert diff(a, b, 1, 1).equal
        differing = {leaf.path for leaf in diff(a, b, 1, 2).leaves if leaf.verdict == "differs"}
    assert differing == {"decomposition['V']", "training[0]"}


def test_damage_is_no_difference(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    damage(tmp_path / "1", "decomposition")
    with (
        CheckpointStore(tmp_path, read_only=True) as store,
        pytest.raises(CorruptCheckpointError),
    ):
        diff(store, store, 1, 1)


def test_the_state_is_not_all_equal() -> None:
    assert state(1.0).training[0].tobytes() != state(2.0).training[0].tobytes()
