"""What this machine does in a second, and so the least that the products and the traffic of a step can take.

    python benchmarks/floor.py                        # the shapes of shapes.py
    python benchmarks/floor.py tms_5-2 tiny_lm

The rates, on all cores and on one, each the best of many repeats:

- `product`: GFLOP a second of `[2048, 1000] @ [1000, 100]` in float32;
- `stream`: GiB a second, read and written, of a sum in place, of an array that fits no cache;
- `unit`: ns of what one unit of an importance function takes forwards and back: an `erf` each way and an exponential;
- `word`: ns of 32 random bits.

Of a step: its matrix products in the compiled program, and its arguments' and outputs' bytes; what both take at the
rates of all cores. Units and words are elementwise work, which the compiled program does not state.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from examples import config_of
from harness import parse, print_table, run_arm
from shapes import SHAPES


def best(work: Callable[[], Any], seconds: float = 2.0) -> float:
    """The least seconds of one call, of as many as fit."""
    import jax

    jax.block_until_ready(work())
    least, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        jax.block_until_ready(work())
        least = min(least, time.perf_counter() - started)
    return least


def rates() -> dict[str, float]:
    """Of the cores that this process may use."""
    import jax
    import jax.numpy as jnp

    from pd_eqx.random_bits import random_words

    key = jax.random.key(0)
    a, b = jax.random.normal(key, (2048, 1000)), jax.random.normal(key, (1000, 100))
    large = jnp.ones(1 << 25)
    cached = jax.random.normal(key, (1 << 18,))
    times = 16

    @jax.jit
    def units(x: Any) -> Any:
        def unit(_: Any, x: Any) -> Any:
            forwards = 0.5 * x * (1.0 + jax.lax.erf(x))
            return forwards + 0.5 * (1.0 + jax.lax.erf(forwards)) + jnp.exp(-0.5 * x * x)

        return jax.lax.fori_loop(0, times, unit, x)

    @jax.jit
    def added(x: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, x: x + 1.0, x)

    product = jax.jit(jnp.matmul)
    words = jax.jit(lambda key: random_words(key, (1 << 20,)))
    return {
        "product": 2.0 * a.size * b.shape[1] / best(lambda: product(a, b)) / 1e9,
        "stream": 2.0 * large.nbytes * times / best(lambda: added(large)) / (1 << 30),
        "unit": 1e9 * best(lambda: units(cached)) / cached.size / times,
        "word": 1e9 * best(lambda: words(key)) / (1 << 20),
    }


def step(example: str) -> dict[str, float]:
    """MFLOP of products and MiB that go in and out, of one update."""
    from pd_eqx.hlo import work_of
    from pd_eqx.runs.plan import assemble_without_data

    assembly = assemble_without_data(config_of(example))
    compiled = assembly.lower(assembly.abstract_target()).compile()
    memory: Any = compiled.memory_analysis()
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {"mflop": work_of(compiled.as_text() or "").flops / 1e6, "mib": moved / (1 << 20)}


ARMS = {"rates": rates, "step": step}


def main() -> None:
    """Prints two tables, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="by default the shapes")

    arguments = parse(__doc__, ARMS, add)
    found = {
        "all cores": run_arm(__file__, "rates"),
        "one core": run_arm(__file__, "rates", 1),
    }
    fast = found["all cores"]
    steps: dict[str, dict[str, float]] = {}
    for example in arguments.examples or SHAPES.values():
        of = run_arm(__file__, "step", example=example)
        of["products ms"] = of["mflop"] / fast["product"]
        of["traffic ms"] = 1e3 * of["mib"] / 1024 / fast["stream"]
        steps[example] = of
    if arguments.json:
        print(json.dumps({"rates": found, "steps": steps}, indent=2))
        return
    names = ("product", "stream", "unit", "word")
    head = ["", "product GFLOP/s", "stream GiB/s", "unit ns", "word ns"]
    print_table(head, [[where, *(of[name] for name in names)] for where, of in found.items()])
    columns = ("mflop", "mib", "products ms", "traffic ms")
    print_table(
        ["step", *columns], [[name, *(of[c] for c in columns)] for name, of in steps.items()]
    )


if __name__ == "__main__":
    main()
