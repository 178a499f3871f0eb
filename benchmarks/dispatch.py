"""What a dispatch costs beside its arithmetic: many updates in one, one, and one by a plain `jax.jit` over the same leaves.

    python benchmarks/dispatch.py tms_5-2 tms_5-2_published

The sides are run in turn, in one process; a figure is the least of all rounds, since nothing makes a step faster than it is.
`dispatch` is what a dispatch of one takes beyond one of many's updates, in Python, JAX and XLA; `overhead` is its share of a
dispatch of many. A run makes as many updates a dispatch as take half a second, unless a record is due before.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from examples import config_of, untrained_target
from harness import parse, print_table, run_arm


def measure(example: str, updates: int, rounds: int) -> dict[str, float]:
    """Milliseconds an update, and ratios."""
    import jax
    import numpy as np

    from pd_eqx.runs.assembly import assemble
    from pd_eqx.step import make_train_step

    config = config_of(example)
    assembly = assemble(config)
    target = untrained_target(assembly)
    inner = make_train_step(config.build_objective(), config.optimizers.build(), config.steps)
    rest = (target, assembly.batches, assembly.keys.train)

    others, structure_of_others = jax.tree.flatten(rest)

    def by_leaves(leaves: list[Any], others: list[Any], n: Any) -> tuple[list[Any], Any]:
        target, batches, key = structure_of_others.unflatten(others)
        state, metrics = inner(structure.unflatten(leaves), target, batches, key, n)
        return jax.tree.leaves(state), metrics

    compiled = assembly.compile(target)
    state = assembly.fresh(target)
    leaves, structure = jax.tree.flatten(assembly.fresh(target))
    plain = jax.jit(by_leaves, donate_argnums=0)

    def ours(calls: int, n: int) -> None:
        nonlocal state
        for _ in range(calls):
            state, _ = compiled(state, *rest, np.int32(n))
        jax.block_until_ready(state)

    def theirs(calls: int) -> None:
        nonlocal leaves
        for _ in range(calls):
            leaves, _ = plain(leaves, others, np.int32(1))
        jax.block_until_ready(leaves)

    sides = {
        "many": lambda: ours(1, updates),
        "one": lambda: ours(updates, 1),
        "plain": lambda: theirs(updates),
    }
    least = in_turn(sides, rounds)
    each = {name: 1e3 * seconds / updates for name, seconds in least.items()}
    cost = each["one"] - each["many"]
    return {
        **each,
        "dispatch": cost,
        "one to many": least["one"] / least["many"],
        "one to plain": least["one"] / least["plain"],
        "overhead": cost / (1e3 * least["many"]),
    }


def in_turn(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least seconds of each side, after each has run once."""
    for work in sides.values():
        work()
    least = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, work in sides.items():
            started = time.perf_counter()
            work()
            least[name] = min(least[name], time.perf_counter() - started)
    return least


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", default=["tms_5-2", "tms_5-2_published"])
        parser.add_argument("--updates", type=int, default=100)
        parser.add_argument("--rounds", type=int, default=10)

    arguments = parse(__doc__, {"measure": measure}, add)
    found = {
        example: run_arm(
            __file__,
            "measure",
            example=example,
            updates=arguments.updates,
            rounds=arguments.rounds,
        )
        for example in arguments.examples
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    columns = ("many", "one", "plain", "dispatch", "one to many", "one to plain", "overhead")
    print_table(
        ["ms an update", *columns], [[n, *(f[c] for c in columns)] for n, f in found.items()]
    )


if __name__ == "__main__":
    main()
