"""Ratios that hold on any machine: donated against not, this restore against a plain one, many steps a dispatch against one."""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.donation import measure_reuse
from pd_eqx.runs.assembly import assemble
from pd_eqx.runs.config_file import load_config
from pd_eqx.step import make_train_step

ROOT = Path(__file__).parents[2]


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_a_donated_step_needs_one_state_less() -> None:
    config = load_config(ROOT / "examples" / "tms_5-2.yaml")
    assembly = assemble(config)
    step = make_train_step(config.build_objective(), config.optimizers.build(), config.steps)
    target = assembly.abstract_target()
    state = assembly.abstract(target)
    arguments = (state, target, assembly.batches, assembly.keys.train, np.int32(1))

    def needed(compiled: Any) -> int:
        found = compiled.memory_analysis()
        made = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        return made - found.alias_size_in_bytes

    donated = needed(step.lower(*arguments).compile())
    kept = needed(jax.jit(step).lower(*arguments).compile())
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert kept - donated == size


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="reads Linux's /proc")
def test_a_restore_reads_no_more_than_a_plain_one_and_is_reused_where_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, harness = script("states", monkeypatch), script("harness", monkeypatch)
    like = states.abstract(32, 16)
    step = states.compiled_step(like)
    with CheckpointStore(tmp_path) as store:
        store.save(1, states.fresh(like))

        def bytes_of(restore: Callable[[], Any]) -> tuple[int, Any]:
            before = harness.bytes_read()
            restored = jax.block_until_ready(restore())
            return harness.bytes_read() - before, restored

        # The first of each reads code too.
        bytes_of(lambda: states.plain_restore(tmp_path / "1", like))
        by_plain, plain = bytes_of(lambda: states.plain_restore(tmp_path / "1", like))
        bytes_of(lambda: store.restore(like))
        by_ours, ours = bytes_of(lambda: store.restore(like))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, plain))
    assert by_ours <= 1.1 * by_plain, (by_ours, by_plain)
    unlucky = jax.tree.map(states.borrowed, plain)
    assert measure_reuse(step, unlucky)[1].fraction == 0.0
    assert measure_reuse(step, ours)[1].fraction == 1.0


def test_many_updates_a_dispatch_take_less_time_than_one_a_dispatch() -> None:
    config = load_config(
        ROOT / "examples" / "tms_5-2.yaml", ["data.batch_size=64", "max_updates_per_dispatch=50"]
    )
    assembly = assemble(config)
    target = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), assembly.abstract_target()
    )
    step = assembly.compile(target)
    fresh = assembly.fresh(target)

    def seconds(updates: int, dispatches: int) -> float:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, fresh))
        started = time.perf_counter()
        for _ in range(dispatches):
            # As the loop does, which reads what came out of every dispatch.
            state, found = step(
                state, target, assembly.batches, assembly.keys.train, np.int32(updates)
            )
            jax.block_until_ready(found)
        return time.perf_counter() - started

    seconds(1, 2)
    rounds = [(seconds(50, 1), seconds(1, 50)) for _ in range(5)]
    many, one = (min(each) for each in zip(*rounds, strict=True))
    assert many < one, rounds
