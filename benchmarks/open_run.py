"""Time and bytes to open a run, its product apart from its target.

    python benchmarks/open_run.py runs/tiny_lm

`read` is what the process asks the kernel for while it reads each part: data, index, and what records them. It is taken at a
second opening in the same process, because the first one also loads code; times are those of the first, in a fresh process
each. `arrays` is what the part's arrays hold, and `ratio` the one by the other.
"""

import argparse
import importlib
import json
import statistics
from pathlib import Path
from typing import Any

from harness import bytes_read, parse, print_table, run_arm, timed


def measure(run: str) -> dict[str, Any]:
    """The parts of one opening."""
    importing, _ = timed(_imported)

    import jax

    import pd_eqx
    from pd_eqx.checkpoint import CheckpointStore
    from pd_eqx.runs.open import restore_product
    from pd_eqx.runs.stored_target import load_target

    opening, opened = timed(lambda: _arrived(pd_eqx.open_run(run)))
    again, _ = timed(lambda: _arrived(pd_eqx.open_run(run)))

    def product() -> Any:
        with CheckpointStore(opened.directory.checkpoints, read_only=True) as store:
            return restore_product(store, opened.assembly, opened.target, opened.step)

    def target() -> Any:
        return load_target(opened.directory, opened.assembly)

    told: dict[str, Any] = {"import": importing, "open": opening, "again": again}
    for name, read, tree in (
        ("product", product, opened.decomposition),
        ("target", target, opened.target),
    ):
        before = bytes_read()
        jax.block_until_ready(read())
        told[name] = bytes_read() - before
        told[f"{name} arrays"] = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    return told


def _imported() -> None:
    for module in ("pd_eqx", "pd_eqx.runs.open"):
        importlib.import_module(module)


def _arrived(opened: Any) -> Any:
    import jax

    jax.block_until_ready((opened.target, opened.decomposition))
    return opened


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", type=Path, nargs="?")
        parser.add_argument("--repeats", type=int, default=3)

    arguments = parse(__doc__, {"measure": measure}, add)
    found = [run_arm(__file__, "measure", run=str(arguments.run)) for _ in range(arguments.repeats)]
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    seconds = [
        [name, *(told[name] for told in found), statistics.median(told[name] for told in found)]
        for name in ("import", "open", "again")
    ]
    print_table(["seconds", *(str(number + 1) for number in range(len(found))), "median"], seconds)
    last = found[-1]
    parts = [
        [name, last[f"{name} arrays"], last[name], last[name] / last[f"{name} arrays"]]
        for name in ("product", "target")
    ]
    print_table(["bytes", "arrays", "read", "ratio"], parts)


if __name__ == "__main__":
    main()
