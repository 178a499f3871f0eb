"""Compiled programs are kept for the next process, whole or not at all, whoever is killed or shares the folder."""

import copy
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from pd_eqx.runs import executables
from pd_eqx.runs.executables import Pool, kept_executables
from runs.small import Runner, leaves_of

FOLDER = "jax_compilation_cache_dir"
# Adds three files with a moment between, says so, and waits to be killed.
VICTIM = """
import os, sys, time
from pathlib import Path
from pd_eqx.runs.executables import Pool
with Pool(Path(sys.argv[1])).opened() as own:
    for index, key in enumerate(("a", "b", "c")):
        (own / f"{key}-cache").write_text(key * 100)
        os.utime(own / f"{key}-cache", (index, index))
    print("written", flush=True)
    time.sleep(60)
"""
# Compiles a function, or finds it; prints its result and how often the cache had nothing.
USER = """
import sys, jax, jax.monitoring, jax.numpy as jnp
from pathlib import Path
from pd_eqx.runs.executables import kept_executables
missed = []
jax.monitoring.register_event_listener(
    lambda event, **_: missed.append(event) if event.endswith("cache_misses") else None)
with kept_executables(Path(sys.argv[1])):
    out = jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.arange(6.0).reshape(2, 3))
print(len(missed), out.tolist())
"""


def python(code: str, *arguments: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def add(pool: Pool, **contents: str) -> None:
    with pool.opened() as own:
        for key, content in contents.items():
            (own / f"{key}-cache").write_text(content)


def found(pool: Pool) -> dict[str, str]:
    with pool.opened() as own:
        return {path.name: path.read_text() for path in own.glob("*-cache")}


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path / "pool")


def test_what_a_process_adds_the_next_one_finds(pool: Pool) -> None:
    add(pool, a="one", b="two")
    assert found(pool) == {"a-cache": "one", "b-cache": "two"}
    assert {path.suffix for path in pool.folder.iterdir()} == {".kept"}  # and nothing else is left


def test_what_was_damaged_is_removed_instead_of_used(pool: Pool) -> None:
    add(pool, a="one", b="two")
    (kept,) = pool.folder.glob("a.*")
    kept.write_text("oni")
    assert found(pool) == {"b-cache": "two"}
    assert not kept.exists()


def test_a_killed_process_loses_no_more_than_the_file_that_it_wrote_last(pool: Pool) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(pool.folder)], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "written\n"
    assert found(pool) == {}  # it lives: its folder is its own
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert set(found(pool)) == {"a-cache", "b-cache"}
    assert list(pool.folder.glob("of-*")) == []


def test_of_a_machine_that_lost_power_nothing_is_taken_over(pool: Pool) -> None:
    left = pool.folder / "of-x"
    left.mkdir(parents=True)
    (left / ".lock").write_text("an earlier boot")
    for index, key in enumerate(("a", "b")):
        (left / f"{key}-cache").write_text(key)
        os.utime(left / f"{key}-cache", (index, index))
    assert found(pool) == {}
    assert not left.exists()


def test_two_processes_that_add_the_same_keep_it_once(pool: Pool) -> None:
    with pool.opened() as first, pool.opened() as second:
        for own in (first, second):
            (own / "a-cache").write_text("one")
    assert found(pool) == {"a-cache": "one"}
    assert len(list(pool.folder.glob("a.*"))) == 1


def test_the_oldest_go_when_there_are_too_many(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executables, "MOST_BYTES", 10)
    for key in ("a", "b", "c"):
        add(pool, **{key: "4444"})
        time.sleep(0.01)
    assert set(found(pool)) == {"b-cache", "c-cache"}


def test_a_folder_that_cannot_be_used_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with kept_executables(tmp_path / "file"):
        assert int(jax.jit(lambda x: x + 1)(1)) == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [(FOLDER, "theirs"), ("jax_enable_compilation_cache", False)],
)
def test_what_the_user_told_jax_is_left_alone(option: str, value: object, tmp_path: Path) -> None:
    before = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        with kept_executables(tmp_path / "ours"):
            assert getattr(jax.config, option) == value
    finally:
        jax.config.update(option, before)
    assert not (tmp_path / "ours").exists()


def test_what_jax_was_told_before_holds_again_at_the_end(tmp_path: Path) -> None:
    with kept_executables(tmp_path):
        assert str(tmp_path) in getattr(jax.config, FOLDER)
    assert getattr(jax.config, FOLDER) is None


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_gets_the_same(tmp_path: Path) -> None:
    first, second = (python(USER, tmp_path).split(" ", 1) for _ in range(2))
    assert int(first[0]) > 0
    assert int(second[0]) == 0
    assert first[1] == second[1]


@pytest.mark.slow
def test_a_second_start_of_a_run_compiles_nothing_and_changes_no_bit(
    runner: Runner, tmp_path: Path
) -> None:
    own = copy.copy(runner)
    own.environment = {
        **{name: value for name, value in runner.environment.items() if "CACHE" not in name},
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "JAX_EXPLAIN_CACHE_MISSES": "1",
    }
    ended = [own.train(tmp_path / name, "steps=30") for name in ("first", "second")]
    assert [each.status for each in ended] == [0, 0], ended[-1].stderr
    missed = [set(re.findall(r"CACHE MISS for 'jit_(\w+)'", each.stderr)) for each in ended]
    assert len(missed[0]) > 5
    # Of leaves that a restore cannot donate as they lie in memory; which these are differs from time to time.
    assert missed[1] <= {"_copy"}
    assert leaves_of(tmp_path / "first", 30) == leaves_of(tmp_path / "second", 30)
