"""A reader writes nothing, opens what it needs, and gets a clear error when a step goes away under it."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from checkpoint.states import bits, make_state, place
from pd_eqx.checkpoint import (
    CheckpointNotFoundError,
    CheckpointStore,
    ReadOnlyError,
    abstract_like,
    items,
)

ABSTRACT = abstract_like(make_state(0))


def _snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in [root, *root.rglob("*")]
    }


def test_a_reader_changes_nothing_and_sees_new_steps(tmp_path: Path) -> None:
    with (
        CheckpointStore(tmp_path, keep_last=2) as writer,
        CheckpointStore(tmp_path, read_only=True, keep_last=1) as reader,
    ):
        assert reader.steps() == []
        writer.save(1, make_state(1))
        writer.save(2, make_state(2))
        (tmp_path / ".saving-3-0a1b2c3d").mkdir()
        (tmp_path / ".removing-0").mkdir()
        before = _snapshot(tmp_path)
        assert reader.steps() == [1, 2]
        assert bits(reader.restore(ABSTRACT)) == bits(make_state(2))
        assert bits(reader.restore(ABSTRACT, 1)) == bits(make_state(1))
        reader.restore_item("product", ABSTRACT.product, to="host")
        reader.verify()
        reader.describe()
        dict(reader.read_item("process"))
        with pytest.raises(ReadOnlyError, match="read_only"):
            reader.save(3, make_state(3))
        reader.close()
        assert _snapshot(tmp_path) == before
        writer.save(3, make_state(3))
        assert reader.latest_step() == 3


def test_a_reader_makes_no_directory(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "absent", read_only=True) as reader:
        assert reader.latest_step() is None
        assert reader.describe().steps == ()
        with pytest.raises(CheckpointNotFoundError, match="no whole step"):
            reader.restore(ABSTRACT)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("what", ["restore", "restore_item", "read_item", "verify"])
def test_a_step_pruned_under_a_reader_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    read = items.read
    with (
        CheckpointStore(tmp_path, keep_last=1) as writer,
        CheckpointStore(tmp_path, read_only=True) as reader,
    ):
        writer.save(1, make_state(1))

        def pruned_first(*args: Any) -> list[Any]:
            if writer.latest_step() == 1:
                writer.save(2, make_state(2))
            return read(*args)

        monkeypatch.setattr(items, "read", pruned_first)
        calls = {
            "restore": lambda: reader.restore(ABSTRACT, 1),
            "restore_item": lambda: reader.restore_item("product", ABSTRACT.product, 1, to="host"),
            "read_item": lambda: dict(reader.read_item("product", 1)),
            "verify": lambda: reader.verify(1),
        }
        with pytest.raises(CheckpointNotFoundError, match=r"removed while .* now: \[2\]"):
            calls[what]()
        assert bits(reader.restore(ABSTRACT)) == bits(make_state(2))


def test_one_item_is_enough_for_its_consumer(tmp_path: Path) -> None:
    state = make_state(5)
    with CheckpointStore(tmp_path) as store:
        store.save(1, state)
        for path in (tmp_path / "1" / "process").rglob("*"):
            if path.is_file():
                path.write_bytes(b"x" * path.stat().st_size)
        product = store.restore_item("product", ABSTRACT.product)
        assert bits(product) == bits(state.product)
        shutil.rmtree(tmp_path / "1" / "process")
        host = store.restore_item("product", ABSTRACT.product, 1, to="host")
        assert bits(host) == bits(state.product)
        assert isinstance(host.weights["fc.in"], np.ndarray)


@pytest.mark.devices(8)
def test_what_eight_devices_wrote_one_reads(tmp_path: Path) -> None:
    mesh = jax.make_mesh((8,), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    product = make_state(6).product
    sharded = place(product, lambda _: sharding)
    state = make_state(6)
    with CheckpointStore(tmp_path) as store:
        store.save(1, type(state)(sharded, state.process))
        for restored in (
            store.restore_item("product", abstract_like(product)),
            store.restore_item("product", abstract_like(product), to="host"),
        ):
            assert bits(restored) == bits(product)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see what is opened")
def test_no_file_of_another_item_is_opened(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "store") as store:
        store.save(1, make_state(1))
    script = textwrap.dedent("""
        import sys
        from checkpoint.states import make_state
        from pd_eqx.checkpoint import CheckpointStore, abstract_like
        abstract = abstract_like(make_state(0))
        with CheckpointStore(sys.argv[1], read_only=True) as store:
            store.restore_item("product", abstract.product)
    """)
    log = tmp_path / "opened"
    strace = ["strace", "-f", "-e", "trace=open,openat", "-o", str(log)]
    subprocess.run(
        [*strace, sys.executable, "-c", script, str(tmp_path / "store")],
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin", "JAX_PLATFORMS": "cpu"},
    )
    opened = log.read_text()
    assert f"{tmp_path}/store/1/product/" in opened
    assert f"{tmp_path}/store/1/process" not in opened
