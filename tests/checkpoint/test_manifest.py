"""What a step's record is read for, and the record of earlier versions."""

import json
import re
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from checkpoint.small import state
from checkpoint.states import bits
from pd_eqx.checkpoint import CheckpointStore, IncompleteCheckpointError, abstract_like, manifest
from pd_eqx.checkpoint.strip import strip

# `small.saved(FORMAT_1, 3)` by the last version whose manifest held the leaves.
FORMAT_1 = Path(__file__).parent / "format_1"


def _format(step: Path) -> int:
    return json.loads((step / manifest.NAME).read_bytes())["manifest"]["format"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(FORMAT_1, tmp_path / "old")
    assert _format(tmp_path / "old" / "3") == 1
    return tmp_path / "old"


def test_what_an_earlier_version_saved_is_restored_verified_and_stripped(old: Path) -> None:
    expected = state(3.0)
    with CheckpointStore(old) as store:
        assert bits(store.restore(abstract_like(expected))) == bits(expected)
        told = store.verify()
        assert [(item.name, len(item.arrays)) for item in told.items] == [
            ("decomposition", 2),
            ("training", 3),
        ]
    strip(old, "training", apply=True)
    assert _format(old / "3") == 1, "a version that wrote it reads it still"
    with CheckpointStore(old) as store:
        product = store.restore_item("decomposition", abstract_like(expected.decomposition))
        assert bits(product) == bits(expected.decomposition)
        assert [item.stripped for item in store.describe(3).items] == [False, True]
        store.save(4, expected)
        assert _format(old / "4") == manifest.FORMAT
        assert store.steps() == [3, 4]


def test_damage_to_what_an_earlier_version_saved_is_found(old: Path) -> None:
    path = old / "3" / manifest.NAME
    path.write_bytes(path.read_bytes().replace(b"float32", b"float16", 1))
    with CheckpointStore(old) as store, pytest.raises(Exception, match="checksum"):
        store.restore(abstract_like(state()))


def test_a_later_format_is_refused_in_a_line(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FORMAT", 7)
    with CheckpointStore(old) as store:
        store.save(4, state())
        monkeypatch.undo()
        with pytest.raises(
            IncompleteCheckpointError, match=r"format 7, .* reads formats 1 and 2; use the v"
        ):
            store.restore(abstract_like(state()), 4)


class _Run(eqx.Module):
    product: dict[str, jax.Array]
    process: list[dict[str, jax.Array]]


def _read() -> int:
    found = re.search(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.M)
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="reads Linux's /proc")
def test_a_product_is_read_once_and_little_beside_it(tmp_path: Path) -> None:
    def leaves(scale: float) -> dict[str, jax.Array]:
        ramp = jnp.arange(8192.0).reshape(128, 64)
        return {f"layers.{i}.attention.query": ramp * scale + i for i in range(57)}

    run = _Run(leaves(1.0), [leaves(float(scale)) for scale in range(2, 6)])
    product = sum(leaf.nbytes for leaf in jax.tree.leaves(run.product))
    abstract = abstract_like(run.product)
    read: list[float] = []
    with CheckpointStore(tmp_path) as store:
        store.save(1, run)
        for _ in range(2):  # what loads at the first time is no part of it
            before = _read()
            assert bits(store.restore_item("product", abstract)) == bits(run.product)
            read.append((_read() - before) / product)
    assert 1.0 <= read[-1] <= 1.02
