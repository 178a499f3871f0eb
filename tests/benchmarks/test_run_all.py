"""The table of all benchmarks holds every number of every round, says what failed, and never mixes machines in a ratio."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run_all.py"


@pytest.fixture(scope="module")
def run_all() -> Any:
    spec = importlib.util.spec_from_file_location("run_all", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_all"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_number_has_a_name_of_its_own(run_all: Any) -> None:
    found = {
        "mib": 8,
        "rows": [
            {"way": "plain", "devices": 1, "reused": 0.5},
            {"way": "plain", "devices": 4, "reused": 1.0},
        ],
        "seconds": [1.0, 3.0, 2.0],
        "checked": True,
        "nothing": None,
    }
    assert dict(run_all.numbers(found)) == {
        "mib": 8.0,
        "rows / plain, devices 1 / devices": 1.0,
        "rows / plain, devices 1 / reused": 0.5,
        "rows / plain, devices 4 / devices": 4.0,
        "rows / plain, devices 4 / reused": 1.0,
        "seconds": 2.0,
    }


def test_a_figure_is_the_median_over_rounds_with_its_range(run_all: Any) -> None:
    rounds = [{"wall": seconds} for seconds in (3.0, 1.0, 2.0)]
    table = run_all.markdown({"start": rounds}, {}, {"open": "failed: status 1"})
    assert "| start | wall | 2 | 1 to 3 | 3 |" in table
    assert "| open | failed: status 1 | | | |" in table


def test_a_ratio_to_the_peer_needs_the_peer_here(run_all: Any) -> None:
    speed = {"1": {"per_second": [50.0]}, "100": {"per_second": [100.0, 200.0, 125.0]}}
    steps = [{"tms_5-2_published": speed}]
    (row,) = (
        line
        for line in run_all.markdown({"steps": steps}, {}, {}).splitlines()
        if "| tms_5-2 " in line
    )
    assert row.endswith("| 8 | 8 to 8 | 31 to 40, 586 MiB |  |  |")
    here = {"tms_5-2": [{"milliseconds": 32.0}]}
    (row,) = (
        line
        for line in run_all.markdown({"steps": steps}, here, {}).splitlines()
        if "| tms_5-2 " in line
    )
    assert row.endswith("| 32 | 4.00 |")


def test_what_fails_is_written_down_and_the_others_go_on(
    run_all: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.py").write_text("print('[1, 3]')")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    peer = tmp_path / "peer"
    peer.write_text(f"#!{sys.executable}\nimport sys\nprint('{{\"milliseconds\": 5}}')\n")
    peer.chmod(0o755)
    benchmarks = {"bad": run_all.Benchmark("bad.py"), "good": run_all.Benchmark("good.py")}
    monkeypatch.setattr(run_all, "BENCHMARKS", benchmarks)
    monkeypatch.setattr(run_all, "QUOTED", {"tms_5-2": run_all.QUOTED["tms_5-2"]})
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    into = tmp_path / "into"
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--into", str(into), "--peer", str(peer)])
    with pytest.raises(SystemExit) as ended:
        run_all.main()
    assert ended.value.code == 1
    found = json.loads((into / "benchmarks.json").read_text())
    assert found["found"] == {"bad": [], "good": [[1, 3], [1, 3]]}
    assert found["peer"] == {"tms_5-2": [{"milliseconds": 5}] * 2}
    assert list(found["failed"]) == ["bad"]
    assert "| good |  | 2 | 2 to 2 | 2 |" in (into / "benchmarks.md").read_text()

    more = ["run_all.py", "--into", str(into), "--only", "good", "--rounds", "1", "--add"]
    monkeypatch.setattr(sys, "argv", more)
    with pytest.raises(SystemExit) as ended:
        run_all.main()
    assert ended.value.code == 1  # what failed before has still failed
    found = json.loads((into / "benchmarks.json").read_text())
    assert found["found"] == {"bad": [], "good": [[1, 3]] * 3}
    assert found["peer"] == {"tms_5-2": [{"milliseconds": 5}] * 2}
