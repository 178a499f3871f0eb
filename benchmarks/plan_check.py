"""What `pd-eqx plan` says of each example that runs here, beside what a run then takes.

    python benchmarks/plan_check.py                  # every example that runs on a laptop
    python benchmarks/plan_check.py tiny_lm --json

Each example is planned and run in a process of its own, on one device. Bytes are measured, not taken from the plan's
own source: those of the state and the target by the buffers that are alive, the checkpoint's by its files before
compression, and the step's peak by the resident memory that the second step adds to what was there. The operating
system counts pages that were touched, with what the allocator keeps, so that small steps look larger than they are.
The target's numbers are drawn, which changes no size. Products are counted in the traced program, before XLA has
seen it: what the compiler shares or drops is in that count and not in the plan's.
"""

import argparse
import json
from typing import Any

from examples import config_of
from harness import MIB, Memory, parse, print_table, run_arm, scratch

NAMES = (
    *("tms_5-2", "tms_5-2_published", "tms_40-10", "resid_mlp_1", "resid_mlp_2", "resid_mlp_3"),
    *("modular_addition", "induction", "tiny_lm"),
)


def products(jaxpr: Any) -> float:
    """Operations of all matrix products in a traced program, each as often as it runs; a loop of unknown length once."""
    import math

    import jax

    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            summed = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * summed
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for parameter in jax.tree.leaves(equation.params, is_leaf=_is_program):
            if _is_program(parameter):
                total += times * products(getattr(parameter, "jaxpr", parameter))
    return total


def _is_program(parameter: Any) -> bool:
    return hasattr(parameter, "eqns") or hasattr(parameter, "jaxpr")


def measured(example: str) -> dict[str, Any]:
    """One example: planned, then run for one update and saved."""
    import jax
    import numpy as np

    from pd_eqx.checkpoint import CheckpointStore
    from pd_eqx.donation import buffer_bytes
    from pd_eqx.runs.plan import assemble_without_data, plan

    assembly = assemble_without_data(config_of(example))
    planned = plan(assembly.config)
    abstract: Any = assembly.abstract_target()
    drawn = np.random.default_rng(0)
    target = jax.tree.map(
        lambda leaf: jax.device_put(
            (0.1 * drawn.normal(size=leaf.shape)).astype(leaf.dtype), leaf.sharding
        ),
        abstract,
    )
    state = jax.block_until_ready(assembly.fresh(target))
    found: dict[str, float] = {"state": buffer_bytes(state), "target": buffer_bytes(target)}
    with scratch() as folder:
        with CheckpointStore(folder / "checkpoints") as store:
            store.save(0, state)
            arrays = [
                array.nbytes
                for item in ("decomposition", "training")
                for _, array in store.read_item(item, 0)
            ]
        files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    found |= {"checkpoint": sum(arrays), "files": sum(files)}
    lowered = assembly.lower(target)
    step = lowered.compile()
    fixed = target, assembly.batches, assembly.keys.train, np.int32(1)
    state, _ = jax.block_until_ready(step(state, *fixed))  # threads and their stacks are there now
    memory = Memory()
    jax.block_until_ready(step(state, *fixed))
    found["step adds"] = memory.peak() * MIB
    analysis: Any = step.memory_analysis()
    cost: Any = step.cost_analysis()
    of_plan = {
        "state": planned.state_bytes,
        "target": planned.target,
        "checkpoint": planned.checkpoint,
        "step adds": planned.temporaries + planned.outputs - planned.aliased,
        "arguments": planned.arguments,
        "temporaries": planned.temporaries,
        "flops": planned.work.flops,
    }
    batches = sum(leaf.nbytes for leaf in jax.tree.leaves(assembly.batches))
    found["arguments"] = found["state"] + found["target"] + batches
    found["temporaries"] = analysis.temp_size_in_bytes
    found["xla flops"] = cost["flops"]
    return {"planned": of_plan, "measured": found}


def traced(example: str) -> dict[str, Any]:
    """The products of one update of an example, by its traced program."""
    import jax
    import numpy as np

    from pd_eqx.runs.plan import assemble_without_data
    from pd_eqx.step import make_train_step

    assembly = assemble_without_data(config_of(example))
    config, target = assembly.config, assembly.abstract_target()
    step = make_train_step(
        config.build_objective(),
        config.optimizers.build(),
        config.steps,
        compute_dtype=config.build_compute_dtype(),
        layout=assembly.layout,
    )
    arguments = (
        assembly.abstract(target),
        target,
        assembly.batches,
        assembly.keys.train,
        np.int32(1),
    )
    return {"products": products(jax.make_jaxpr(step)(*arguments).jaxpr)}


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="by default all")

    arguments = parse(__doc__, {"measured": measured, "traced": traced}, add)
    rows: list[list[Any]] = []
    everything: dict[str, Any] = {}
    for named in arguments.examples or NAMES:
        found = run_arm(__file__, "measured", example=named)
        found |= run_arm(__file__, "traced", example=named)
        everything[named] = found
        said, is_so = found["planned"], found["measured"]
        kib = [
            cell
            for key in ("state", "target", "checkpoint", "arguments")
            for cell in (said[key] / 1024, is_so[key] / 1024)
        ]
        step = [said["step adds"] / MIB, is_so["step adds"] / MIB]
        rows.append([named, *kib, *step, said["flops"] / 1e9, found["products"] / 1e9])
    if arguments.json:
        print(json.dumps(everything, indent=2))
        return
    print(
        "KiB of the state, the target, a checkpoint and the arguments; MiB that a step adds; GFLOP"
    )
    head = ["example"]
    for what in ("state", "target", "checkpoint", "arguments", "step", "products"):
        head += [what, "is"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
