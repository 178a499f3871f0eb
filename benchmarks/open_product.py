"""Time and bytes read to open a product out of a state that is nine tenths process.

    python benchmarks/open_product.py --mib 1024

`read` is in units of the product's own bytes. The first time is cold: the files are dropped from the page cache.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from harness import MIB, bytes_read, forget, parse, print_table, run_arm, scratch, timed

LEAVES = 160
WAYS = (
    "pd_eqx, the product",
    "pd_eqx, to the host",
    "pd_eqx, not verified",
    "orbax, the product",
    "orbax, the whole state",
)


def write(mib: int, path: str) -> dict[str, Any]:
    """Saves the state that the others open."""
    import jax

    import states
    from pd_eqx.checkpoint import CheckpointStore

    state = states.fresh(states.abstract(mib, LEAVES))
    with CheckpointStore(path) as store:
        store.save(1, state)
    return {"product": sum(leaf.nbytes for leaf in jax.tree.leaves(state.product))}


def measure(mib: int, path: str, way: str, cold: bool) -> dict[str, Any]:
    """One row of the table."""
    import jax
    import orbax.checkpoint as ocp

    import states
    from pd_eqx.checkpoint import CheckpointStore

    like = states.abstract(mib, LEAVES)
    if cold:
        forget(Path(path))

    def orbax_product() -> Any:
        restore_args = ocp.checkpoint_utils.construct_restore_args(like.product)
        arguments = ocp.args.PyTreeRestore(item=like.product, restore_args=restore_args)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(Path(path) / "1" / "product", args=arguments)

    def ours() -> Any:
        with CheckpointStore(path, read_only=True) as store:
            return store.restore_item(
                "product",
                like.product,
                to="host" if way == "pd_eqx, to the host" else "devices",
                verify=way != "pd_eqx, not verified",
            )

    def work() -> Any:
        match way:
            case "orbax, the product":
                return jax.block_until_ready(orbax_product())
            case "orbax, the whole state":
                return states.plain_restore(Path(path) / "1", like)
            case _:
                return ours()

    before = bytes_read()
    seconds, _ = timed(work)
    return {"seconds": seconds, "read": bytes_read() - before}


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mib", type=int, default=1024, help="size of the state")
        parser.add_argument("--repeats", type=int, default=3)

    arguments = parse(__doc__, {"write": write, "measure": measure}, add)
    rows: list[dict[str, Any]] = []
    with scratch() as folder:
        common: dict[str, Any] = {"mib": arguments.mib, "path": str(folder)}
        product: int = run_arm(__file__, "write", **common)["product"]
        for way in WAYS:
            row: dict[str, Any] = {"way": way}
            for cold in (True, False):
                found = [
                    run_arm(__file__, "measure", **common, way=way, cold=cold)
                    for _ in range(arguments.repeats)
                ]
                name = "cold" if cold else "warm"
                row[f"seconds_{name}"] = [each["seconds"] for each in found]
                row["read"] = found[-1]["read"]
            rows.append(row)
    if arguments.json:
        print(json.dumps({"mib": arguments.mib, "product": product, "rows": rows}, indent=2))
        return
    print(f"a product of {product / MIB:.0f} MiB in a state of {arguments.mib}; seconds, medians")
    told = [
        [
            row["way"],
            statistics.median(row["seconds_cold"]),
            statistics.median(row["seconds_warm"]),
            row["read"] / product,
        ]
        for row in rows
    ]
    print_table(["way", "cold", "warm", "read"], told)


if __name__ == "__main__":
    main()
