"""Damage anywhere in a step ends in an error of ours, or in exactly the numbers that were saved."""

import random
from collections import Counter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.states import State, bits, make_state
from pd_eqx.checkpoint import (
    CheckpointError,
    CheckpointStore,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    abstract_like,
)

# Orbax abandons the other reads of an item when one fails, and asyncio complains of each.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _damaged(good: bytes, kind: str, chance: random.Random) -> bytes | None:
    data = bytearray(good)
    position = chance.randrange(len(data))
    match kind:
        case "flipped bit":
            data[position] ^= 1 << chance.randrange(8)
        case "zeroed block":
            data[position : position + 24] = bytes(len(data[position : position + 24]))
        case "truncated":
            del data[position:]
        case "longer":
            data += b"\0\0\0"
        case _:
            return None
    return bytes(data)


KINDS = ("flipped bit", "zeroed block", "truncated", "longer", "missing")


def _outcomes(root: Path, state: State, tries: int, seed: int) -> Counter[tuple[str, str]]:
    """Damage a file, restore, mend, `tries` times; what happened, counted by file and outcome."""
    expected, abstract = bits(state), abstract_like(state)
    chance = random.Random(seed)
    counted: Counter[tuple[str, str]] = Counter()
    with CheckpointStore(root) as store:
        files = sorted(path for path in (root / "0").rglob("*") if path.is_file())
        for number in range(tries):
            path = files[number % len(files)]
            good = path.read_bytes()
            bad = _damaged(good, chance.choice(KINDS), chance)
            if bad is None:
                path.unlink()
            else:
                path.write_bytes(bad)
            holds_data = path.parent.name == "d"
            try:
                same = bits(store.restore(abstract, 0)) == expected
                outcome = "right" if same else "wrong"
            except CorruptCheckpointError as error:
                outcome = "corrupt, leaf named" if error.leaves else "corrupt"
            except CheckpointError as error:
                outcome = type(error).__name__
            counted["data" if holds_data else path.name, outcome] += 1
            path.write_bytes(good)
        assert bits(store.restore(abstract, 0)) == expected
    return counted


def _check(counted: Counter[tuple[str, str]]) -> None:
    assert not [key for key in counted if key[1] == "wrong"], counted
    assert counted["data", "corrupt, leaf named"] > 0
    assert counted["data", "corrupt"] == 0
    assert counted["manifest.json", "right"] <= 1  # a blank turned into another


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    state = make_state(1)
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
    _check(_outcomes(tmp_path, state, 120, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_much_damage_is_found(tmp_path: Path, seed: int) -> None:
    state = make_state(seed)
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
    _check(_outcomes(tmp_path, state, 1500, seed=seed + 1))


def _flip_data(item: Path, value: np.ndarray) -> None:
    """Flip a low bit of a float32 array's stored bytes."""
    needle = value.tobytes()
    for path in item.rglob("d/*"):
        content = path.read_bytes()
        if needle in content:
            start = content.index(needle)
            path.write_bytes(content[:start] + bytes([needle[0] ^ 1]) + content[start + 1 :])
            return
    raise AssertionError("the array's bytes are in no file")


def test_a_flipped_number_names_its_leaf_and_verify_can_be_skipped(tmp_path: Path) -> None:
    # Smaller arrays lie inside orbax's own checksummed index, where a flip cannot go unnoticed.
    weight = np.random.default_rng(0).standard_normal((64, 70)).astype(np.float32)
    state = eqx.tree_at(lambda s: s.product.weights["fc.in"], make_state(2), jnp.asarray(weight))
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
        _flip_data(tmp_path / "0" / "product", weight)
        with pytest.raises(CorruptCheckpointError, match=r"product\.weights\['fc\.in'\]") as found:
            store.restore(abstract_like(state))
        assert found.value.leaves == ("product.weights['fc.in']",)
        item = abstract_like(state.product)
        with pytest.raises(CorruptCheckpointError):
            store.restore_item("product", item, to="host")
        with pytest.raises(CorruptCheckpointError) as found:
            store.verify()
        assert found.value.leaves == ("product.weights['fc.in']",)
        with pytest.raises(CorruptCheckpointError):
            dict(store.read_item("product"))
        unverified = store.restore_item("product", item, to="host", verify=False)
        flipped = np.frombuffer(unverified.weights["fc.in"].tobytes(), np.uint8)
        assert np.count_nonzero(flipped != np.frombuffer(weight.tobytes(), np.uint8)) == 1
        store.restore_item("process", abstract_like(state.process))  # the other item is intact


def test_two_items_that_changed_places_are_found(tmp_path: Path) -> None:
    class Pair(eqx.Module):
        left: jax.Array
        right: jax.Array

    pair = Pair(jnp.arange(4.0), jnp.arange(4.0) + 9)
    with CheckpointStore(tmp_path) as store:
        store.save(0, pair)
        step = tmp_path / "0"
        (step / "left").rename(step / "x")
        (step / "right").rename(step / "left")
        (step / "x").rename(step / "right")
        with pytest.raises(CheckpointError):
            store.restore(abstract_like(pair), 0)


def test_a_lost_item_or_manifest_is_an_incomplete_step(tmp_path: Path) -> None:
    state = make_state(1)
    with CheckpointStore(tmp_path) as store:
        store.save(0, state)
        (tmp_path / "0" / "process").rename(tmp_path / "away")
        with pytest.raises(IncompleteCheckpointError, match="lost its item process"):
            store.restore(abstract_like(state), 0)
        product = store.restore_item("product", abstract_like(state.product), 0)
        assert bits(product) == bits(state.product)
        (tmp_path / "0" / "manifest.json").unlink()
        with pytest.raises(IncompleteCheckpointError, match=r"no readable manifest\.json"):
            store.restore(abstract_like(state), 0)


@pytest.mark.parametrize(
    ("file", "written", "damaged"),
    [
        ("manifest.json", b'"stripped":false', b'"stripped":true '),
        ("process.leaves.json", b"float32", b"float16"),
    ],
)
def test_the_newest_step_is_not_silently_passed_over_when_it_is_damaged(
    tmp_path: Path, file: str, written: bytes, damaged: bytes
) -> None:
    state = make_state(1)
    with CheckpointStore(tmp_path) as store:
        store.save(1, make_state(0))
        store.save(2, state)
        path = tmp_path / "2" / file
        content = path.read_bytes().replace(written, damaged, 1)
        assert content != path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpointError, match=rf"{file} is damaged: its checksum"):
            store.restore(abstract_like(state))
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            store.verify(2)
        assert "checksum" in store.describe(2).problem
        assert bits(store.restore(abstract_like(state), 1)) == bits(make_state(0))


def test_a_lost_record_is_an_incomplete_step_that_serves_its_other_item(tmp_path: Path) -> None:
    state = make_state(1)
    with CheckpointStore(tmp_path) as store:
        store.save(1, state)
        (tmp_path / "1" / "process.leaves.json").unlink()
        assert store.steps() == []
        with pytest.raises(IncompleteCheckpointError, match=r"lost process\.leaves\.json"):
            store.restore(abstract_like(state), 1)
        product = store.restore_item("product", abstract_like(state.product), 1)
        assert bits(product) == bits(state.product)
