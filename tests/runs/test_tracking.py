"""`metrics.jsonl` has every logged step once, in order, after any kill."""

from pathlib import Path

import pytest

from pd_eqx.runs.tracking import MetricsFile, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *steps: int) -> None:
    with MetricsFile(path, after=0) as metrics:
        for step in steps:
            metrics.log({"step": step, "seconds": step / 2, "loss/total": 1.0 / step})


def test_records_read_back_as_they_were(path: Path) -> None:
    write(path, 3, 7)
    assert read_metrics(path) == [
        {"step": 3, "seconds": 1.5, "loss/total": 1 / 3},
        {"step": 7, "seconds": 3.5, "loss/total": 1 / 7},
    ]


def test_what_the_restored_state_has_not_seen_is_cut(path: Path) -> None:
    write(path, 5, 10, 15, 20)
    before = path.read_text().splitlines()
    with MetricsFile(path, after=12) as metrics:
        assert metrics.last is not None
        assert metrics.last["step"] == 10
        assert path.read_text().splitlines() == before[:2]
        metrics.log({"step": 15, "seconds": 9.0})
    assert [record["step"] for record in read_metrics(path)] == [5, 10, 15]


@pytest.mark.parametrize("torn", ['{"step": 15, "los', "{", '{"step": 15, "seconds": 1}'])
def test_a_torn_last_line_is_cut(path: Path, torn: str) -> None:
    write(path, 5, 10)
    whole = path.read_text()
    path.write_text(whole + torn)
    with MetricsFile(path, after=99):
        assert path.read_text() == whole


def test_a_broken_line_in_the_middle_is_no_kill_s_doing(path: Path) -> None:
    write(path, 5, 10)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "nonsense\n" + lines[1])
    with pytest.raises(ValueError, match="line 2: not a record"):
        MetricsFile(path, after=99)


@pytest.mark.parametrize("step", [10, 4])
def test_steps_increase(path: Path, step: int) -> None:
    write(path, 5, 10)
    with MetricsFile(path, after=10) as metrics, pytest.raises(ValueError, match="must increase"):
        metrics.log({"step": step, "seconds": 0.0})


def test_nothing_that_json_cannot_hold_is_written(path: Path) -> None:
    with MetricsFile(path, after=0) as metrics:
        with pytest.raises(ValueError, match="loss/b not finite"):
            metrics.log({"step": 1, "seconds": 0.0, "loss/a": 1.0, "loss/b": float("nan")})
        metrics.log({"step": 2, "seconds": 0.0})
    assert [record["step"] for record in read_metrics(path)] == [2]


def test_a_record_is_readable_as_soon_as_it_is_logged(path: Path) -> None:
    with MetricsFile(path, after=0) as metrics:
        metrics.log({"step": 1, "seconds": 0.0})
        assert [record["step"] for record in read_metrics(path)] == [1]
