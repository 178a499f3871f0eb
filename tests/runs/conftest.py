"""One compilation cache and one uninterrupted run for all tests that interrupt one."""

from pathlib import Path

import pytest

from runs.small import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("runner"))


@pytest.fixture(scope="session")
def uninterrupted(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a run that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
    ended = runner.train(run_dir)
    assert ended.status == 0, ended.stderr
    return run_dir
