"""One compilation cache and one uninterrupted run for all tests that interrupt one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.small import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(_shared(tmp_path_factory, "runner"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a run keeps for others is kept for this session alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_shared(tmp_path_factory, "home")))
        yield


@pytest.fixture(scope="session")
def uninterrupted(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a run that nobody disturbed; beside it, what it printed."""
    folder = _shared(tmp_path_factory, "uninterrupted")
    if not (folder / "stdout").exists():
        ended = runner.train(folder / "run")
        assert ended.status == 0, ended.stderr
        (folder / "stdout").write_text(ended.stdout)
    return folder / "run"


def _shared(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of the session: the rooms that use these fixtures have a fixture of their own each."""
    folder = factory.getbasetemp() / name
    folder.mkdir(exist_ok=True)
    return folder
