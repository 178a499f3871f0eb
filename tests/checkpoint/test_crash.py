"""A process killed at any instant of a save leaves the previous step, or the new one, and never half of one."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from checkpoint.states import bits, make_state
from pd_eqx.checkpoint import CheckpointStore, abstract_like

# Saves steps for ever; with a number, it kills itself at that change it makes to the file system.
SAVING = textwrap.dedent("""
    import itertools, os, signal, sys
    from checkpoint.states import make_state
    from pd_eqx.checkpoint import CheckpointStore
    root, fatal, asynchronous = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "asynchronous"
    changes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open"}
    left = fatal
    def hook(event, args):
        global left
        if event in changes and left and str(args[0]).startswith(root):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
    left = 0
    with CheckpointStore(root, keep_last=1, asynchronous=asynchronous) as store:
        start = (store.latest_step() or 0) + 1
        store.save(start, make_state(start))
        store.wait()
        print("first", flush=True)
        sys.addaudithook(hook)
        left = fatal
        for step in itertools.count(start + 1):
            store.save(step, make_state(step))
            print(step, flush=True)
""")


def _start(root: Path, fatal: int, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAVING, str(root), str(fatal), mode],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"},
        text=True,
    )


def _check(root: Path, done: int, mode: str) -> None:
    with CheckpointStore(root, keep_last=1) as store:
        latest = store.latest_step()
        assert latest is not None
        # An asynchronous save returns before its step is there.
        assert latest >= (done - 1 if mode == "asynchronous" else done)
        store.verify()
        assert bits(store.restore(abstract_like(make_state(0)))) == bits(make_state(latest))
        told = store.describe()
        assert all(step.is_whole for step in told.steps), told
        store.save(latest + 1, make_state(0))
        assert store.steps() == [latest + 1]


def _kill_at_change(root: Path, fatal: int, mode: str) -> None:
    process = _start(root, fatal, mode)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    lines = output.split()
    _check(root, int(lines[-1]) if len(lines) > 1 else 1, mode)


def test_a_kill_in_a_save_loses_nothing(tmp_path: Path) -> None:
    _kill_at_change(tmp_path, 30, "synchronous")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("fatal", [3, 13, 34, 55, 80, 100])
def test_a_kill_at_many_points_of_a_save_loses_nothing(
    tmp_path: Path, fatal: int, mode: str
) -> None:
    _kill_at_change(tmp_path, fatal, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_kills_at_random_instants_lose_nothing(tmp_path: Path, mode: str) -> None:
    chance = random.Random(0)
    for _ in range(3):
        process = _start(tmp_path, 0, mode)
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        time.sleep(chance.uniform(0.0, 0.6))
        os.kill(process.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        _check(tmp_path, int([0, *output.split()][-1]), mode)
