"""One compilation cache and one uninterrupted run for all tests that interrupt one."""

import fcntl
import os
from pathlib import Path

import pytest

from runs.small import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(_shared(tmp_path_factory, "runner"))


@pytest.fixture(scope="session")
def uninterrupted(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a run that nobody disturbed; beside it, what it printed. Only to be read."""
    folder = _shared(tmp_path_factory, "uninterrupted")
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "stdout").exists():
            ended = runner.train(folder / "run")
            assert ended.status == 0, ended.stderr
            (folder / "stdout").write_text(ended.stdout)
    return folder / "run"


def _shared(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of the whole test run, whatever room or worker asks for it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder
