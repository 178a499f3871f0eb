"""Memory and time of a harvest against the number of tokens.

    python benchmarks/harvest_memory.py RUN --batches 16 64 256

Each row is a process of its own. `peak` is resident memory above that of the opened run, compilation included.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from harness import Memory, print_table, run_arm, scratch


def measure(run: str, batches: int) -> dict[str, Any]:
    """One row of the table."""
    from pd_eqx.runs.harvest import harvest_run
    from pd_eqx.runs.open import open_run

    opened = open_run(run)
    memory = Memory()
    after_first: list[tuple[float, float]] = []

    def watch(index: int, positions: int) -> None:
        if not after_first:
            after_first.append((time.process_time(), time.perf_counter()))

    with scratch() as folder:
        found = harvest_run(opened, folder / "harvest", range(batches), watch=watch)
        written = sum(path.stat().st_size for path in (folder / "harvest").iterdir())
    cpu, wall = after_first[0]
    return {
        "positions": found.tally.positions,
        "peak": memory.peak(),
        "written": written / (1 << 20),
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--arm", choices=["measure"], help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="arguments", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps(measure(**json.loads(arguments.arguments))))
        return
    rows: list[list[Any]] = []
    for batches in arguments.batches:
        found = run_arm(__file__, "measure", run=str(arguments.run), batches=batches)
        per_batch = found["cpu"] / max(batches - 1, 1)
        rows.append(
            [str(found["positions"]), found["peak"], found["written"], found["cpu"], per_batch]
        )
    print_table(["positions", "peak MiB", "written MiB", "cpu s", "cpu s a batch"], rows)


if __name__ == "__main__":
    main()
