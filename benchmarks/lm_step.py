"""The train step of the tiny language model: tokens a second and memory, by term, and how memory grows.

    python benchmarks/lm_step.py                 # each term switched on in turn
    python benchmarks/lm_step.py --memory        # the compiled step's memory against batch, length, components, layers
    python benchmarks/lm_step.py --vocabulary 49152 --width 576 --whole   # a real head, logits whole beside in parts

The model has the shape of `examples/tiny_lm.yaml`, with random weights and tokens, which change neither. Every figure
is the median over rounds; a round runs each arm once, in a process of its own, so that what else the machine does
falls on all of them alike. Processor time is the process's own and hardly depends on that; tokens a second do.
"""

import argparse
import dataclasses
import json
import statistics
import time
from typing import Any

from harness import MIB, Memory, parse, print_table, run_arm

# In the order in which they are switched on; each arm has those before it too.
TERMS = ("importances alone", "faithfulness", "stochastic", "adversarial")
SIZES: dict[str, int] = {
    "vocabulary": 512,
    "width": 64,
    "depth": 2,
    "components": 64,
    "batch": 16,
    "length": 64,
}
GROWTH: dict[str, list[int]] = {
    "batch": [8, 16, 32, 64],
    "length": [32, 64, 128, 256],
    "components": [32, 64, 128, 256],
    "depth": [1, 2, 4, 8],
}


def made(sizes: dict[str, int], terms: list[str], *, whole: bool) -> tuple[Any, Any]:
    """The step, and a function without arguments that gives what it runs on, to be jitted or only shaped."""
    from functools import partial

    import equinox as eqx
    import jax
    from jaxtyping import Array, Int, PRNGKeyArray

    from pd_eqx import AdamW, Objective, Optimizers, init_state, make_train_step
    from pd_eqx.adversary import AdamAscent, PersistentAdversary, Scope
    from pd_eqx.ci.transformer import init_transformers
    from pd_eqx.losses import Frequency, KLDivergence
    from pd_eqx.masks import UniformSubset
    from pd_eqx.objective import (
        Faithfulness,
        ImportanceMinimality,
        PersistentReconstruction,
        Reconstruction,
        Term,
    )
    from pd_eqx.schedule import constant
    from pd_eqx.sites import select_sites
    from pd_eqx.targets.rotary import Rotary
    from pd_eqx.targets.transformer import (
        PlainMLP,
        RMSNorm,
        TransformerConfig,
        init_transformer,
    )

    class Tokens(eqx.Module):
        """Tokens, all equally likely."""

        def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch length"]:
            shape = (sizes["batch"], sizes["length"])
            return jax.random.randint(key, shape, 0, sizes["vocabulary"])

    width = sizes["width"]
    config = TransformerConfig(
        vocabulary=sizes["vocabulary"],
        width=width,
        depth=sizes["depth"],
        heads=4,
        kv_heads=4,
        head_width=width // 4,
        mlp_width=4 * width,
        norm=RMSNorm(1e-6),
        mlp=PlainMLP("gelu"),
        rotary=Rotary(width // 4),
    )
    kl = KLDivergence(at_once=1 << 40) if whole else KLDivergence()
    adversary = PersistentAdversary(
        AdamAscent(constant(0.01), b1=0.5, b2=0.99), Scope(None, positions=True), warmups=1
    )
    known: dict[str, Term] = {
        "importances alone": ImportanceMinimality(
            3e-4, frequency=Frequency(0.5, sizes["batch"] * sizes["length"])
        ),
        "faithfulness": Faithfulness(),
        "stochastic": Reconstruction("stochastic", kl, routing=UniformSubset(), coefficient=0.5),
        "adversarial": PersistentReconstruction("adversarial", kl, adversary, coefficient=0.5),
    }
    objective = Objective(tuple(known[name] for name in terms))
    group = AdamW(constant(1e-3), clip_norm=0.1)
    optimizers = Optimizers(components=group, ci_fn=group)
    wanted = {"layers.*.attn.*": sizes["components"], "layers.*.mlp.*": 4 * sizes["components"]}
    ci_fn = partial(init_transformers, d_model=64, n_blocks=2, n_heads=4, hidden=(256,))

    def start() -> tuple[Any, ...]:
        key = jax.random.key(0)
        drawn = init_transformer(key, config)
        target = dataclasses.replace(drawn, lazy_logits=not whole)
        counts = select_sites(target.sites(), wanted)
        batches = Tokens()
        state = init_state(
            key, target, counts, ci_fn, optimizers, objective=objective, batches=batches
        )
        return state, target, batches, key, jax.numpy.int32(1)

    return make_train_step(objective, optimizers, total_steps=1000), start


def shape(sizes: dict[str, int], terms: list[str], whole: bool) -> dict[str, Any]:
    """What the compiled step needs beside its arguments, and what it carries, in MiB."""
    import equinox as eqx

    step, start = made(sizes, terms, whole=whole)
    arguments = eqx.filter_eval_shape(start)
    began = time.perf_counter()
    memory = step.lower(*arguments).compile().memory_analysis()
    return {
        "temporary": memory.temp_size_in_bytes / MIB,
        "carried": memory.argument_size_in_bytes / MIB,
        "compile": time.perf_counter() - began,
    }


def speed(sizes: dict[str, int], terms: list[str], whole: bool, seconds: float) -> dict[str, Any]:
    """Seconds, processor seconds and resident memory of a step."""
    import jax

    step, start = made(sizes, terms, whole=whole)
    state, *rest = jax.jit(start)()
    rest[-1] = 1
    compiled = step.lower(state, *rest).compile()
    memory = Memory()
    state, metrics = jax.block_until_ready(compiled(state, *rest))
    peak = memory.peak()
    walls: list[float] = []
    of_processor: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(walls) < 5:
        wall, processor = time.perf_counter(), time.process_time()
        state, metrics = jax.block_until_ready(compiled(state, *rest))
        walls.append(time.perf_counter() - wall)
        of_processor.append(time.process_time() - processor)
    analysis: Any = compiled.memory_analysis()
    return {
        "wall": statistics.median(walls),
        "processor": statistics.median(of_processor),
        "resident": peak,
        "temporary": analysis.temp_size_in_bytes / MIB,
        "loss": float(metrics["loss/total"]),
    }


def by_term(
    arguments: Any, sizes: dict[str, int], cores: int | None
) -> dict[str, dict[str, float]]:
    """The medians over rounds, by the last term that is switched on."""
    arms: dict[str, dict[str, Any]] = {
        name: {"terms": list(TERMS[: index + 1]), "whole": False}
        for index, name in enumerate(TERMS)
    }
    if arguments.whole:
        last = ["importances alone", "stochastic"]
        arms = {
            "in parts": {"terms": last, "whole": False},
            "whole": {"terms": last, "whole": True},
        }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        for name, arm in arms.items():
            found = run_arm(__file__, "speed", cores, sizes=sizes, **arm, seconds=arguments.seconds)
            rounds[name].append(found)
    return {
        name: {key: statistics.median(found[key] for found in of_arm) for key in of_arm[0]}
        for name, of_arm in rounds.items()
    }


def growth(sizes: dict[str, int], cores: int | None) -> list[dict[str, Any]]:
    """The compiled step's memory, one size changed at a time."""
    rows: list[dict[str, Any]] = []
    for size, values in GROWTH.items():
        for value in values:
            changed = {**sizes, size: value}
            found = run_arm(__file__, "shape", cores, sizes=changed, terms=list(TERMS), whole=False)
            rows.append({"size": size, "value": value, **found})
    return rows


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--memory", action="store_true", help="growth of memory instead")
        parser.add_argument("--whole", action="store_true", help="logits in parts against whole")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--seconds", type=float, default=3.0, help="how long an arm is timed")
        parser.add_argument("--cores", type=int, help="by default all that are at hand")
        for name, value in SIZES.items():
            parser.add_argument(f"--{name}", type=int, default=value)

    arguments = parse(__doc__, {"shape": shape, "speed": speed}, add)
    sizes = {name: getattr(arguments, name) for name in SIZES}
    tokens = sizes["batch"] * sizes["length"]
    if arguments.memory:
        rows = growth(sizes, arguments.cores)
        if arguments.json:
            print(json.dumps({"sizes": sizes, "rows": rows}, indent=2))
            return
        head = ["size", "value", "temporary MiB", "carried MiB", "compile s"]
        order = ("size", "value", "temporary", "carried", "compile")
        print_table(head, [[row[key] for key in order] for row in rows])
        return
    found = by_term(arguments, sizes, arguments.cores)
    if arguments.json:
        print(json.dumps({"sizes": sizes, "arms": found}, indent=2))
        return
    first = next(iter(found.values()))["processor"]
    print(f"{tokens} tokens a step; each line has the terms of those above it too")
    head = ["with", "tokens/s", "processor ms", "ratio", "temporary MiB", "resident MiB"]
    print_table(
        head,
        [
            [
                name,
                tokens / row["wall"],
                1e3 * row["processor"],
                row["processor"] / first,
                row["temporary"],
                row["resident"],
            ]
            for name, row in found.items()
        ],
    )


if __name__ == "__main__":
    main()
