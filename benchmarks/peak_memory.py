"""Peak memory of a resume and of the first step after it, by several ways to restore.

    python benchmarks/peak_memory.py --mib 1024 --json

MiB above what the process had before. `restore` is the peak while reading, `transient` the peak of what is then done
to make the state reusable, `first step` the peak of the first step, and `reused` the share of the state's bytes
that this step reused. With the failure forced, every array is first put into memory that XLA can only borrow, as an
unlucky allocator would have done; without, the allocator decides. A fresh state is what the others compare to.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from harness import Memory, parse, print_table, run_arm, scratch

LEAVES = 64
WAYS = ("orbax", "device_put", "one identity jit", "pd_eqx")


def write(mib: int, path: str, devices: int) -> dict[str, Any]:
    """Saves the state that the others restore."""
    import states
    from pd_eqx.checkpoint import CheckpointStore

    with CheckpointStore(path) as store:
        store.save(1, states.fresh(states.abstract(mib, LEAVES, devices)))
    return {}


def measure(mib: int, path: str, devices: int, way: str, forced: bool) -> dict[str, Any]:
    """One row of the table."""
    import jax

    import states
    from pd_eqx.checkpoint import CheckpointStore, items
    from pd_eqx.donation import measure_reuse

    like = states.abstract(mib, LEAVES, devices)
    step = states.compiled_step(like)
    memory = Memory()
    transient = None
    match way:
        case "fresh":
            state = states.fresh(like)
            peak = memory.peak()
        case "pd_eqx":
            if forced:
                read = items.read

                def unlucky(*arguments: Any) -> list[Any]:
                    arrays = read(*arguments)
                    for position, array in enumerate(arrays):
                        arrays[position] = states.aligned(array)
                    return arrays

                items.read = unlucky
            with CheckpointStore(path, read_only=True) as store:
                state = store.restore(like)
            peak = memory.peak()
        case _:
            state = states.plain_restore(Path(path) / "1", like)
            peak = memory.peak()
            if forced:
                leaves, treedef = jax.tree.flatten(state)
                del state
                for position, leaf in enumerate(leaves):
                    leaves[position] = states.borrowed(leaf)
                    del leaf
                state = treedef.unflatten(leaves)
                del leaves
            memory.reset()
            if way == "device_put":
                state = jax.block_until_ready(
                    jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), state, like)
                )
                transient = memory.peak()
            elif way == "one identity jit":
                shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
                identity = jax.jit(lambda tree: tree, out_shardings=shardings)
                state = jax.block_until_ready(identity(state))
                transient = memory.peak()
    memory.reset()
    (_, report) = measure_reuse(step, state)
    return {
        "restore": peak,
        "transient": transient,
        "first_step": memory.peak(),
        "reused": report.fraction,
    }


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mib", type=int, default=1024, help="size of the state")
        parser.add_argument("--devices", type=int, nargs="+", default=[1, 4])

    arguments = parse(__doc__, {"write": write, "measure": measure}, add)
    rows: list[dict[str, Any]] = []
    for devices in arguments.devices:
        with scratch() as folder:
            common: dict[str, Any] = {"mib": arguments.mib, "path": str(folder), "devices": devices}
            run_arm(__file__, "write", **common)
            for way, forced in [("fresh", False), *((w, f) for f in (False, True) for w in WAYS)]:
                found = run_arm(__file__, "measure", **common, way=way, forced=forced)
                rows.append({"devices": devices, "way": way, "forced": forced, **found})
    if arguments.json:
        print(json.dumps({"mib": arguments.mib, "leaves": LEAVES, "rows": rows}, indent=2))
        return
    print(f"{arguments.mib} MiB in {LEAVES} leaves; MiB above the process's own")
    head = ["way", "devices", "failure", "restore", "transient", "first step", "reused"]
    told = [
        [
            row["way"],
            row["devices"],
            "forced" if row["forced"] else "as it falls",
            *(row[name] for name in ("restore", "transient", "first_step", "reused")),
        ]
        for row in rows
    ]
    print_table(head, told)


if __name__ == "__main__":
    main()
