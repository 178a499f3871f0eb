"""A published result holds only where every number asked for is there and in its range."""

import re
from pathlib import Path
from typing import Any

import pytest

from published import TOYS, Check
from reproduce import HEAD, TABLE, judged, main, with_rows

ROOT = Path(__file__).parents[1]
GOOD: dict[str, Any] = {
    "seed": 4,
    "steps": 4000,
    "seconds": 61.4,
    "alive": {"linear1": 5, "linear2": 5},
    "geometry": {
        "linear1": {"mmcs": 0.9991, "ml2r": 1.01},
        "linear2": {"mmcs": 0.9983, "ml2r": 0.98},
    },
}
ARM = TOYS["tms_5-2"].arms[0]


def changed(path: str, value: Any) -> dict[str, Any]:
    *outer, name = path.split("/")
    summary = {key: part.copy() if isinstance(part, dict) else part for key, part in GOOD.items()}
    summary["geometry"] = {site: found.copy() for site, found in GOOD["geometry"].items()}
    inner = summary
    for key in outer:
        inner = inner[key]
    inner[name] = value
    return summary


def test_a_run_that_holds_is_told_with_its_numbers() -> None:
    row = judged("tms_5-2", ARM, GOOD)
    assert row.held == "yes"
    assert row.measured == "mmcs 0.9991, 0.9983; ml2r 1.0100, 0.9800; alive 5, 5"
    assert row[:5] == ("tms_5-2", "tms_5-2", "4", "4000", "61")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("geometry/linear2/mmcs", 0.9979, "mmcs 0.9991, 0.9979 (!)"),
        ("geometry/linear1/ml2r", 0.8, "ml2r 0.8000, 0.9800 (!)"),
        ("alive/linear1", 6, "alive 6, 5 (!)"),
        ("alive/linear1", 4, "alive 4, 5 (!)"),
        ("geometry/linear1/mmcs", float("nan"), "mmcs nan, 0.9983 (!)"),
    ],
)
def test_one_number_out_of_its_range_is_marked_and_does_not_hold(
    path: str, value: Any, told: str
) -> None:
    row = judged("tms_5-2", ARM, changed(path, value))
    assert row.held == "no"
    assert told in row.measured
    assert row.measured.count("(!)") == 1


def test_a_number_that_is_missing_does_not_hold() -> None:
    check = Check("dense error", "identity_ci_error/*/0.2", most=0)
    assert not check.holds(GOOD)
    assert check.told(GOOD) == "dense error missing (!)"


def test_a_row_replaces_its_own_and_leaves_all_else() -> None:
    line = "| {} | {} | 4 | 1 | 1 | old | no |"
    page = [
        "# A page",
        f"| {' | '.join(HEAD)} |",
        "|---|---|---|---|---|---|---|",
        line.format("tms_5-2", "tms_5-2"),
        line.format("robustness", "tms_5-2"),
        "",
        "after it",
    ]
    once = with_rows("\n".join(page), [judged("tms_5-2", ARM, GOOD)])
    assert once.count("\n| tms_5-2 |") == 1
    assert "| tms_5-2 | tms_5-2 | 4 | 4000 | 61 | mmcs" in once
    assert line.format("robustness", "tms_5-2") in once
    assert once.startswith("# A page\n")
    assert once.endswith("\n\nafter it\n")
    assert with_rows(once, [judged("tms_5-2", ARM, GOOD)]) == once
    with pytest.raises(ValueError, match="no table"):
        with_rows("# Another page\n", [])


@pytest.mark.parametrize("toy", TOYS)
def test_every_toy_has_its_examples_and_its_place_on_the_page(toy: str) -> None:
    for arm in TOYS[toy].arms:
        assert (ROOT / "examples" / f"{arm.example}.yaml").is_file()
    page = TABLE.read_text()
    assert re.search(rf"^\| {re.escape(toy)} \| {re.escape(TOYS[toy].published)} \|", page, re.M)


def test_an_unknown_toy_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tms_52"])
    assert ended.value.code == 2
    assert "no toy 'tms_52'; the nearest is 'tms_5-2'" in capsys.readouterr().err
