"""SPEC.md names tests that exist, and every invariant names at least one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _invariants(text: str) -> dict[str, str]:
    parts = re.split(r"^\*\*(S\d+) ", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def _named_tests(text: str) -> list[tuple[str, str | None]]:
    return [
        (match["file"], match["test"])
        for match in re.finditer(r"`(?P<file>tests/[\w/.]+\.py)(?:::(?P<test>\w+))?`", text)
    ]


def _missing(text: str) -> list[str]:
    missing: list[str] = []
    for file, test in _named_tests(text):
        path = ROOT / file
        if not path.is_file():
            missing.append(file)
        elif test is not None and test not in _defined(path):
            missing.append(f"{file}::{test}")
    return missing


def test_every_named_test_exists():
    assert _missing((ROOT / "SPEC.md").read_text()) == []


def test_a_test_that_does_not_exist_is_found():
    text = "`tests/test_spec.py::test_nowhere` `tests/nowhere.py` `tests/test_spec.py`"
    assert _missing(text) == ["tests/test_spec.py::test_nowhere", "tests/nowhere.py"]


def test_every_invariant_is_pinned_and_numbered_once():
    text = (ROOT / "SPEC.md").read_text()
    numbers = re.findall(r"^\*\*S(\d+) ", text, flags=re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))
    unpinned = [name for name, body in _invariants(text).items() if not _named_tests(body)]
    assert unpinned == []
