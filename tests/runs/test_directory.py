"""A run directory takes only what is a run's, one process at a time, and each file whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pd_eqx.runs.directory import (
    RunDirectory,
    RunDirectoryError,
    read_json,
    write_atomically,
    write_json,
)


def test_an_absent_or_empty_directory_is_prepared(run_dir: Path) -> None:
    RunDirectory(run_dir / "deep").prepare()
    RunDirectory(run_dir / "deep").prepare()
    assert list((run_dir / "deep").iterdir()) == []


def test_what_a_killed_process_left_is_no_obstacle(run_dir: Path) -> None:
    directory = RunDirectory(run_dir)
    directory.prepare()
    (run_dir / ".writing-config.yaml").write_text("na")
    directory.target.mkdir()
    directory.prepare()


def test_somebody_else_s_directory_is_refused(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"not empty and not a run .*thesis\.tex"):
        RunDirectory(run_dir).prepare()
    assert sorted(path.name for path in run_dir.iterdir()) == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="cannot use"):
        RunDirectory(tmp_path / "file").prepare()
    with pytest.raises(RunDirectoryError, match="cannot use"):
        RunDirectory(Path("/proc/nowhere")).prepare()


def test_a_directory_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is not a run"):
        RunDirectory(tmp_path).require()


def test_two_processes_do_not_share_a_run(run_dir: Path) -> None:
    directory = RunDirectory(run_dir)
    directory.prepare()
    code = (
        "import sys; from pathlib import Path; from pd_eqx.runs.directory import RunDirectory\n"
        f"with RunDirectory(Path({str(run_dir)!r})).locked(): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunDirectoryError, match="another process"), directory.locked():
            pass
        other.kill()
        other.wait()
    with directory.locked():
        pass


def test_a_reader_sees_the_old_or_the_new(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir.mkdir()
    path = run_dir / "summary.json"
    write_json(path, {"steps": 1})

    class Killed(BaseException):
        pass

    def killed(descriptor: int) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(Killed):
            write_json(path, {"steps": 2})
    assert read_json(path) == {"steps": 1}
    write_json(path, {"steps": 3})
    assert read_json(path) == {"steps": 3}
    assert [entry.name for entry in run_dir.iterdir()] == ["summary.json"]


def test_numbers_that_json_lacks_are_not_written(run_dir: Path) -> None:
    run_dir.mkdir()
    with pytest.raises(ValueError, match="JSON"):
        write_json(run_dir / "summary.json", {"mmcs": float("nan")})
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_broken_json_file_is_named(run_dir: Path, content: str) -> None:
    run_dir.mkdir()
    write_atomically(run_dir / "run.json", content)
    with pytest.raises(RunDirectoryError, match=r"run\.json"):
        read_json(run_dir / "run.json")
