"""Asynchronous saves store the state of the call, let the loop donate, and never fail or vanish unseen."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from checkpoint.states import bits, make_state, place, touch
from pd_eqx.checkpoint import (
    CheckpointExistsError,
    CheckpointStore,
    SaveFailedError,
    abstract_like,
    disk,
    items,
)
from pd_eqx.donation import ensure_donatable, measure_reuse

ABSTRACT = abstract_like(make_state(0))


class _Gate:
    """Holds every write of an item back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        write = items.write

        def held(*args: Any) -> None:
            assert self.open.wait(60)
            write(*args)

        monkeypatch.setattr(items, "write", held)


@pytest.mark.devices(4)
@pytest.mark.parametrize("devices", [1, 4])
def test_the_loop_donates_while_the_state_of_the_call_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int
) -> None:
    mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices])
    sharding = NamedSharding(mesh, PartitionSpec())
    state = ensure_donatable(place(make_state(3), lambda _: sharding))
    expected = bits(state)
    step = jax.jit(touch, donate_argnums=0)
    gate = _Gate(monkeypatch)
    with CheckpointStore(tmp_path, asynchronous=True) as store:
        store.save(1, state)
        for _ in range(3):
            state, report = measure_reuse(step, state)
            assert report.fraction == 1.0, report
        assert store.steps() == []  # the write has not even begun
        gate.open.set()
        store.wait()
        assert store.steps() == [1]
        store.save(2, state)
        later = bits(state)
    with CheckpointStore(tmp_path) as store:
        assert bits(store.restore(ABSTRACT, 1)) == expected
        assert bits(store.restore(ABSTRACT, 2)) == later
        assert later != expected


def test_a_synchronous_save_leaves_the_state_donatable(tmp_path: Path) -> None:
    state = ensure_donatable(make_state(3))
    with CheckpointStore(tmp_path) as store:
        store.save(1, state)
        assert measure_reuse(jax.jit(touch, donate_argnums=0), state)[1].fraction == 1.0


def _fail(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make every publication fail; the event says that one has."""
    failed = threading.Event()

    def full(*args: Any) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "publish", full)
    return failed


@pytest.mark.parametrize("call", ["save", "wait", "steps", "latest_step", "restore", "describe"])
def test_a_failure_surfaces_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    state = make_state(1)
    with CheckpointStore(tmp_path, asynchronous=True) as store:
        with monkeypatch.context() as patch:
            failed = _fail(patch)
            store.save(1, state)
            assert failed.wait(60)
            for thread in threading.enumerate():
                if thread.name == "checkpoint-save":
                    thread.join()
        arguments = {"save": (2, state), "restore": (ABSTRACT,)}.get(call, ())
        with pytest.raises(SaveFailedError, match=r"step 1 was not saved .* No space left"):
            getattr(store, call)(*arguments)
        assert store.steps() == []
        assert list(tmp_path.iterdir()) == []
        store.save(1, state)  # once told, it is over
    assert CheckpointStore(tmp_path).steps() == [1]


def test_a_failure_surfaces_at_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail(monkeypatch)
    with (
        pytest.raises(SaveFailedError, match="step 1"),
        CheckpointStore(tmp_path, asynchronous=True) as store,
    ):
        store.save(1, make_state(1))


def test_a_second_save_waits_for_the_first_and_refuses_its_step(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, asynchronous=True, keep_last=1) as store:
        store.save(1, make_state(1))
        with pytest.raises(CheckpointExistsError):
            store.save(1, make_state(2))
        store.save(2, make_state(2))
        store.wait()
        assert store.steps() == [2]


@pytest.mark.parametrize(
    "ending",
    [
        "raise RuntimeError('the loop broke')",
        pytest.param("sys.exit(3)", marks=pytest.mark.slow),
        pytest.param("pass", marks=pytest.mark.slow),
    ],
)
def test_leaving_the_program_without_waiting_still_saves(tmp_path: Path, ending: str) -> None:
    script = textwrap.dedent(f"""
        import sys, time
        from checkpoint.states import make_state
        from pd_eqx.checkpoint import CheckpointStore, items
        write = items.write
        def slow(*args):
            time.sleep(1)
            write(*args)
        items.write = slow
        store = CheckpointStore(sys.argv[1], asynchronous=True)
        store.save(1, make_state(7))
        {ending}
    """)
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        check=False,
    )
    with CheckpointStore(tmp_path) as store:
        assert bits(store.restore(ABSTRACT, 1)) == bits(make_state(7))


def test_a_failure_at_the_end_of_the_program_is_told(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from checkpoint.states import make_state
        from pd_eqx.checkpoint import CheckpointStore, disk
        def full(*args):
            raise OSError(28, "No space left on device")
        disk.publish = full
        CheckpointStore(sys.argv[1], asynchronous=True).save(1, make_state(7))
    """)
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "SaveFailedError: step 1 was not saved" in ended.stderr
