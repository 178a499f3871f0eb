"""A step exists only when it is whole; nothing else is chosen, and nothing is removed unasked."""

import resource
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoint.states import bits, make_state
from pd_eqx.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointStore,
    IncompleteCheckpointError,
    SaveFailedError,
    abstract_like,
    disk,
)

# Orbax abandons the other writes of a step when one fails, and asyncio complains of each.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ABSTRACT = abstract_like(make_state(0))


def test_what_is_not_whole_is_never_chosen_never_removed_and_always_reported(
    tmp_path: Path,
) -> None:
    with CheckpointStore(tmp_path, keep_last=1) as store:
        store.save(2, make_state(2))
        store.save(3, make_state(3))
        assert store.steps() == [3]
        shutil.copytree(tmp_path / "3", tmp_path / "9")  # by hand, under another number
        shutil.copytree(tmp_path / "3", tmp_path / "007")
        shutil.copytree(tmp_path / "3", tmp_path / "8")
        (tmp_path / "8" / "manifest.json").unlink()
        (tmp_path / "10").mkdir()
        shutil.copytree(tmp_path / "3", tmp_path / "11")
        shutil.rmtree(tmp_path / "11" / "process")
        (tmp_path / "12.orbax-checkpoint-tmp").mkdir()
        (tmp_path / ".saving-13-0a1b2c3d").mkdir()
        (tmp_path / ".removing-1").mkdir()
        (tmp_path / "14").write_text("a file")
        (tmp_path / "notes.txt").write_text("mine")
        before = {path.name for path in tmp_path.iterdir()}

        assert store.steps() == [3]
        assert store.latest_step() == 3
        with pytest.warns(UserWarning, match="passed over"):
            assert bits(store.restore(ABSTRACT)) == bits(make_state(3))
        for step, reason in {8: "no readable", 9: "holds step 3", 10: "no readable"}.items():
            with pytest.raises(IncompleteCheckpointError, match=reason):
                store.restore(ABSTRACT, step)
            with pytest.raises(CheckpointExistsError):
                store.save(step, make_state(0))

        told = store.describe()
        assert [(step.step, step.is_whole) for step in told.steps] == [
            (3, True), (8, False), (9, False), (10, False), (11, False),
        ]  # fmt: skip
        assert all(step.problem for step in told.steps if not step.is_whole)
        meanings = {stray.name: stray.meaning for stray in told.strays}
        assert meanings.keys() == before - {"3", "8", "9", "10", "11"}
        assert "unfinished save of step 13" in meanings[".saving-13-0a1b2c3d"]
        assert "removal was cut short" in meanings[".removing-1"]
        assert "orbax" in meanings["12.orbax-checkpoint-tmp"]

        store.save(4, make_state(4))  # retention counts whole steps only
        after = {path.name for path in tmp_path.iterdir()}
        assert after == before - {"3", ".removing-1"} | {"4"}


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [
        (None, None, [1, 2, 3, 4, 5, 6, 7]),
        (2, None, [6, 7]),
        (1, 3, [3, 6, 7]),
        (None, 4, [4, 7]),
        (9, 2, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_retention(
    tmp_path: Path, keep_last: int | None, keep_every: int | None, kept: list[int]
) -> None:
    state = make_state(0)
    with CheckpointStore(tmp_path, keep_last=keep_last, keep_every=keep_every) as store:
        for step in range(1, 8):
            store.save(step, state)
        assert store.steps() == kept
        assert sorted(int(path.name) for path in tmp_path.iterdir()) == kept


def test_an_older_step_saved_last_survives_its_own_save(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep_last=2) as store:
        for step in (5, 6, 1):
            store.save(step, make_state(step))
        assert store.steps() == [1, 5, 6]
        assert bits(store.restore(ABSTRACT, 1)) == bits(make_state(1))


def test_the_old_step_goes_only_after_the_new_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    remove, flush, rename = disk.remove, disk.flush, disk.publish

    def note(name: str, function: Any) -> Any:
        def noted(*args: Any) -> Any:
            order.append(name if name != "flush" else f"flush {args[0].name}")
            return function(*args)

        return noted

    monkeypatch.setattr(disk, "remove", note("remove", remove))
    monkeypatch.setattr(disk, "flush", note("flush", flush))
    monkeypatch.setattr(disk, "publish", note("publish", rename))
    with CheckpointStore(tmp_path, keep_last=1) as store:
        store.save(1, make_state(1))
        order.clear()
        store.save(2, make_state(2))
    published, removed = order.index("publish"), order.index("remove")
    assert published < order.index(f"flush {tmp_path.name}") < removed
    flushed = {name.removeprefix("flush ") for name in order[:published]}
    assert {"2", "product", "process", "_METADATA", "d"} <= flushed


def test_missing_steps_and_bad_options(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(CheckpointNotFoundError, match="no whole step"):
            store.restore(ABSTRACT)
        store.save(1, make_state(1))
        with pytest.raises(CheckpointNotFoundError, match=r"no step 2 .* whole steps: \[1\]"):
            store.restore(ABSTRACT, 2)
        with pytest.raises(CheckpointNotFoundError):
            store.describe(2)
    with pytest.raises(ValueError, match="keep_last is 0"):
        CheckpointStore(tmp_path, keep_last=0)


def test_a_relative_path_holds_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("here/checkpoints")
    monkeypatch.chdir("/")
    store.save(1, make_state(1))
    assert CheckpointStore(tmp_path / "here" / "checkpoints").steps() == [1]


@contextmanager
def _small_disk(limit: int) -> Generator[None]:
    """No file may grow beyond `limit` bytes, for Python and for what it calls."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 150, 600, 2500])
def test_after_a_full_disk_the_same_step_can_be_saved(tmp_path: Path, limit: int) -> None:
    with CheckpointStore(tmp_path, keep_last=1) as store:
        store.save(1, make_state(1))
        with _small_disk(limit), pytest.raises(SaveFailedError, match="step 2 was not saved"):
            store.save(2, make_state(2))
        assert store.steps() == [1]
        # Writers in the background may still put a file into what the failed save has removed.
        left = {path.name for path in tmp_path.iterdir()} - {"1"}
        assert all(name.startswith(".saving-2-") for name in left)
        store.save(2, make_state(2))
        assert store.steps() == [2]
        assert bits(store.restore(ABSTRACT)) == bits(make_state(2))


class _FailingDisk:
    """Fails the n-th change that this process makes to the file system, while it is switched on."""

    _CHANGES = frozenset({"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open", "os.truncate"})

    def __init__(self) -> None:
        self.countdown: int | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.countdown is None or event not in self._CHANGES:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & 0o3):
            return
        self.countdown -= 1
        if self.countdown == 0:
            raise PermissionError(f"made to fail: {event} {args[0]}")


FAILING_DISK = _FailingDisk()


def _fail_at(store: CheckpointStore, step: int, change: int) -> bool:
    """Save with the n-th change failing, prove that nothing is lost, save again; was it reached?"""
    FAILING_DISK.countdown = change
    try:
        store.save(step, make_state(step))
        failed = False
    except CheckpointError:
        failed = True
    left, FAILING_DISK.countdown = FAILING_DISK.countdown, None
    whole = store.latest_step()
    assert whole in ({step - 1, step} if failed else {step})
    assert bits(store.restore(ABSTRACT, whole)) == bits(make_state(whole))
    if whole != step:
        store.save(step, make_state(step))
    assert store.latest_step() == step
    return left <= 0


@pytest.mark.parametrize("change", [1, 2, 5, 10, 20, 40])
def test_a_failure_in_a_save_leaves_the_old_step_and_lets_the_new_one_be_saved(
    tmp_path: Path, change: int
) -> None:
    with CheckpointStore(tmp_path, keep_last=1) as store:
        store.save(0, make_state(0))
        assert _fail_at(store, 1, change)


@pytest.mark.slow
def test_a_failure_at_any_point_of_a_save_loses_nothing(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep_last=1) as store:
        store.save(0, make_state(0))
        step = 1
        while _fail_at(store, step, change=step):
            step += 1
        assert step > 40
