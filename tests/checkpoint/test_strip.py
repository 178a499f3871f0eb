"""`pd_eqx.checkpoint.strip`: frees the process, and never touches the product's bytes."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint.small import damage, files, flip, saved, state
from pd_eqx.checkpoint import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointStore,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    StructureMismatchError,
    abstract_like,
)
from pd_eqx.checkpoint import strip as module
from pd_eqx.checkpoint.strip import strip


def kept(everything: dict[str, bytes]) -> dict[str, bytes]:
    return {
        name: content
        for name, content in everything.items()
        if "/training/" not in name and not name.endswith("manifest.json")
    }


def product_of(path: Path, step: int) -> bytes:
    with CheckpointStore(path, read_only=True) as store:
        abstract = abstract_like(state().decomposition)
        return store.restore_item("decomposition", abstract, step)["V"].tobytes()


def test_without_apply_nothing_is_touched(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    before = files(tmp_path)
    told = strip(tmp_path, "training")
    assert files(tmp_path) == before
    assert [step.step for step in told.steps] == [1, 2]
    going = sum(len(content) for name, content in before.items() if "/training/" in name)
    assert told.freed == going > 0
    assert not told.applied


def test_apply_frees_what_was_told_and_keeps_every_other_byte(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    before = files(tmp_path)
    told = strip(tmp_path, "training")
    done = strip(tmp_path, "training", apply=True)
    after = files(tmp_path)
    assert (done.freed, done.applied) == (told.freed, True)
    assert kept(after) == kept(before)
    assert not [name for name in after if "/training/" in name]
    for step in (1, 2):
        assert product_of(tmp_path, step) == state(float(step)).decomposition["V"].tobytes()
    with CheckpointStore(tmp_path, read_only=True) as store:
        assert store.steps() == [1, 2]
        assert store.describe().strays == ()
        store.verify(2)
        with pytest.raises(IncompleteCheckpointError, match="stripped of training"):
            store.restore(abstract_like(state()), 2)
        with pytest.raises(IncompleteCheckpointError, match="stripped of training"):
            store.restore_item("training", abstract_like(state().training), 2)


def test_a_second_call_finds_nothing_to_do(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    strip(tmp_path, "training", apply=True)
    before = files(tmp_path)
    again = strip(tmp_path, "training", apply=True)
    assert files(tmp_path) == before
    assert [(step.freed, step.was_stripped) for step in again.steps] == [(0, True)]


def test_a_step_that_is_not_whole_refuses_all(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "2" / "manifest.json").unlink()
    before = files(tmp_path)
    with pytest.raises(IncompleteCheckpointError, match="step 2"):
        strip(tmp_path, "training", apply=True)
    assert files(tmp_path) == before


@pytest.mark.parametrize("item", ["decomposition", "training"])
def test_a_damaged_step_refuses_all(tmp_path: Path, item: str) -> None:
    saved(tmp_path, 1, 2)
    damage(tmp_path / "2", item)
    before = files(tmp_path)
    with pytest.raises(CorruptCheckpointError):
        strip(tmp_path, "training", apply=True)
    assert files(tmp_path) == before


def test_an_item_that_is_not_there_or_is_all_there_is(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(StructureMismatchError, match="decomposition, training"):
        strip(tmp_path, "optimizer", apply=True)
    with pytest.raises(CheckpointNotFoundError, match="no step"):
        strip(tmp_path / "empty", "training", apply=True)


@pytest.mark.parametrize("place", ["_compare", "_swap"])
def test_a_failure_at_any_point_leaves_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    saved(tmp_path, 1)
    before = files(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, place, fail)
    with pytest.raises(CheckpointError, match=r"as it was: .*No space left"):
        strip(tmp_path, "training", apply=True)
    assert files(tmp_path) == before


def test_a_copy_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    before = files(tmp_path)

    def damaging(source: Path, target: Path, **how: Any) -> None:
        shutil.copytree(source, target, **how)
        flip(next((target / "decomposition").rglob("d/*")))

    patched = SimpleNamespace(copytree=damaging, rmtree=shutil.rmtree)
    monkeypatch.setattr(module, "shutil", patched)
    with pytest.raises(CheckpointError, match="differs from the original"):
        strip(tmp_path, "training", apply=True)
    assert files(tmp_path) == before


def test_without_an_exchange_a_crash_between_the_renames_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    before = files(tmp_path)

    class Killed(BaseException):
        pass

    def crash(staged: Path, original: Path, aside: Path) -> None:
        original.rename(aside)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "_swap", crash)
        with pytest.raises(Killed):
            strip(tmp_path, "training", apply=True)
    assert not (tmp_path / "1").exists()
    monkeypatch.setattr(module, "_exchange", lambda *_: False)
    strip(tmp_path, "training", apply=True)
    assert kept(files(tmp_path)) == kept(before)
    assert not [name for name in files(tmp_path) if "/training/" in name]


def test_an_exchange_leaves_no_instant_without_the_step(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    right.mkdir()
    (left / "x").touch()
    exchange = module._exchange  # pyright: ignore[reportPrivateUsage]
    if exchange(left, right):
        assert (right / "x").exists()
        assert left.exists()
        with pytest.raises(OSError, match="No such file"):
            exchange(left, tmp_path / "absent")
