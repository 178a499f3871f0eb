"""`pd-eqx report`: one file, where it is said to be, or one line that says why not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pd_eqx.checkpoint.strip import strip
from pd_eqx.cli.report import report


def test_a_run_becomes_one_file_of_its_own(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    strip(run / "checkpoints", "training", apply=True)
    before = {path for path in run.rglob("*") if path.is_file()}
    report(run)
    assert {path for path in run.rglob("*") if path.is_file()} - before == {run / "report.html"}
    assert f"report    {run / 'report.html'} (" in capsys.readouterr().out
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<title>small · step 120</title>" in page


def test_what_cannot_be_reported_is_said_in_a_line(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: report(tmp_path), "is not a run"),
        (lambda: report(uninterrupted, step=3), "no step 3"),
        (lambda: report(uninterrupted, out=tmp_path / "no" / "a.html"), "make it first"),
    )
    for refused, said in refusals:
        with pytest.raises(SystemExit) as ended:
            refused()
        assert ended.value.code == 2
        printed = capsys.readouterr()
        assert said in printed.err
        assert printed.err.count("\n") == 1
