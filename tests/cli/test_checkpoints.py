"""`inspect`, `verify`, `diff`, `strip` and `migrate`: exit statuses, one line for a mistake, JSON that can be read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint.small import damage, files, saved
from pd_eqx.cli.checkpoints import diff, inspect, migrate, strip, verify

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("original"), 1, 2)


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "checkpoints"))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # nothing may be wrapped


def told(command: Callable[[], None], capsys: Captured, status: int = 0) -> str:
    """What a command prints, which has to end with `status`."""
    if status:
        with pytest.raises(SystemExit) as ended:
            command()
        assert ended.value.code == status
    else:
        command()
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def refused(command: Callable[[], None], capsys: Captured) -> str:
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pd-eqx: ")
    assert "Traceback" not in printed.err
    return printed.err


def parsed(command: Callable[[], None], capsys: Captured, status: int = 0) -> dict[str, Any]:
    return json.loads(told(command, capsys, status))


@pytest.mark.parametrize(
    "command",
    [
        inspect,
        verify,
        strip,
        lambda path: diff(path, path),
        lambda path: migrate(path, path / "new"),
    ],
)
def test_a_place_without_checkpoints(
    tmp_path: Path, capsys: Captured, command: Callable[[Path], None]
) -> None:
    assert "does not exist" in refused(lambda: command(tmp_path / "no"), capsys)
    (tmp_path / "file").touch()
    assert "is not a directory" in refused(lambda: command(tmp_path / "file"), capsys)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert "without checkpoints" in refused(lambda: command(tmp_path / "run"), capsys)


def test_inspect_names_every_array_and_everything_that_lies_there(
    store: Path, capsys: Captured
) -> None:
    (store / "notes.txt").touch()
    (store / "7").mkdir()
    said = told(lambda: inspect(store), capsys)
    assert "notes.txt" in said
    assert "7" in said
    assert "never finished" in said
    lines = said.splitlines()
    (row,) = (line for line in lines if line.startswith("decomposition['V']"))
    found = parsed(lambda: inspect(store, json=True), capsys)
    assert [(step["step"], step["whole"]) for step in found["steps"]] == [
        (1, True),
        (2, True),
        (7, False),
    ]
    product, process = found["steps"][1]["items"]
    assert (product["name"], product["bytes"]) == ("decomposition", 3 * 4 * 4 + 2 * 4 * 2)
    assert process["name"] == "training"
    leaf = next(leaf for leaf in product["leaves"] if leaf["path"] == "decomposition['V']")
    assert (leaf["dtype"], leaf["shape"]) == ("float32", [3, 4])
    assert row.split() == ["decomposition['V']", "float32[3,4]", "48", "B", leaf["fingerprint"]]
    other = parsed(lambda: inspect(store, step=1, json=True), capsys)
    assert [step["step"] for step in other["steps"]] == [1]
    assert "no step 3" in refused(lambda: inspect(store, step=3), capsys)


def test_a_run_directory_stands_for_its_checkpoints(store: Path, capsys: Captured) -> None:
    by_run = parsed(lambda: inspect(store.parent, json=True), capsys)
    assert by_run == parsed(lambda: inspect(store, json=True), capsys)


def test_verify_ends_with_one_for_damage(store: Path, capsys: Captured) -> None:
    assert told(lambda: verify(store), capsys).count("intact") == 2
    damage(store / "1", "training")
    found = parsed(lambda: verify(store, json=True), capsys, 1)
    assert [step["intact"] for step in found["steps"]] == [False, True]
    assert "training[0]" in found["steps"][0]["damaged"]
    assert "training[0]" in told(lambda: verify(store, step=1), capsys, 1)
    assert "intact" in told(lambda: verify(store, step=2), capsys)
    (store / "2" / "manifest.json").unlink()
    assert "never finished" in told(lambda: verify(store, step=2), capsys, 1)
    assert "no step 3" in refused(lambda: verify(store, step=3), capsys)


def test_diff_ends_with_one_for_a_difference(store: Path, original: Path, capsys: Captured) -> None:
    same = parsed(lambda: diff(store, original, json=True), capsys)
    assert (same["equal"], same["step_a"], same["step_b"]) == (True, 2, 2)
    assert "7 of 7 are equal" in told(lambda: diff(store, original), capsys)
    found = parsed(lambda: diff(store, original, step_a=1, json=True), capsys, 1)
    unequal = {leaf["path"]: leaf for leaf in found["leaves"] if leaf["verdict"] != "equal"}
    assert set(unequal) == {"decomposition['V']", "training[0]"}
    assert unequal["decomposition['V']"]["max_abs"] == 1.0
    said = told(lambda: diff(store, original, step_a=1), capsys, 1)
    assert "decomposition['V']" in said
    assert "5 of 7 are equal" in said
    assert "no step 9" in refused(lambda: diff(store, original, step_b=9), capsys)


def test_strip_is_a_dry_run_unless_told(store: Path, capsys: Captured) -> None:
    before = files(store)
    said = told(lambda: strip(store), capsys)
    assert files(store) == before
    freed = parsed(lambda: strip(store, json=True), capsys)["freed_bytes"]
    assert f"would free {freed} bytes" in said
    done = parsed(lambda: strip(store, apply=True, json=True), capsys)
    assert (done["applied"], done["freed_bytes"]) == (True, freed)
    assert "(stripped)" in told(lambda: inspect(store), capsys)
    assert "stripped of training" in told(lambda: verify(store), capsys)
    assert "was stripped before" in told(lambda: strip(store, apply=True), capsys)


def test_strip_refuses_a_run_that_is_not_finished(store: Path, capsys: Captured) -> None:
    run = store.parent
    (run / "config.yaml").touch()
    before = files(run)
    for path in (run, store):
        for apply in (False, True):
            said = refused(lambda path=path, apply=apply: strip(path, apply=apply), capsys)
            assert "is not finished" in said
    assert files(run) == before
    (run / "summary.json").touch()
    assert "freed" in told(lambda: strip(run, apply=True), capsys)


def test_strip_refuses_a_step_that_is_not_whole(store: Path, capsys: Captured) -> None:
    (store / "5").mkdir()
    assert "nothing was stripped" in refused(lambda: strip(store, apply=True), capsys)
    assert (store / "2" / "training").is_dir()


def test_migrate_refuses_what_is_of_todays_layout(
    store: Path, tmp_path: Path, capsys: Captured
) -> None:
    said = refused(lambda: migrate(store, tmp_path / "new"), capsys)
    assert "no item 'default' but decomposition, training" in said
    assert not (tmp_path / "new").exists()
    assert "is not empty" in refused(lambda: migrate(store, store), capsys)
