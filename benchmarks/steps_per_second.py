"""Steps per second of examples, with one update a dispatch and with many.

    python benchmarks/steps_per_second.py tms_5-2 resid_mlp_1_published

Each figure is the median of repeats, with their range, in a process of its own. The target is as it was initialised:
speed does not depend on how well it was trained. Evaluation, records and checkpoints are left out.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from examples import config_of, untrained_target


@dataclasses.dataclass(frozen=True)
class Speed:
    """Steps per second of each repeat, and the seconds that the step took to compile."""

    per_second: list[float]
    compile_seconds: float

    @property
    def median(self) -> float:
        """The median repeat."""
        return statistics.median(self.per_second)

    def told(self) -> str:
        """The median and the range."""
        return f"{self.median:8.1f}  ({min(self.per_second):.1f} to {max(self.per_second):.1f})"


def measure(example: str, updates: int, repeats: int, seconds: float) -> Speed:
    """Times one example in this process, with `updates` a dispatch."""
    import jax
    import numpy as np

    from pd_eqx.runs.assembly import assemble

    assembly = assemble(config_of(example))
    target = untrained_target(assembly)
    started = time.perf_counter()
    step = assembly.compile(target)
    compile_seconds = time.perf_counter() - started
    state = assembly.fresh(target)

    def dispatches(state: Any, count: int) -> tuple[Any, float]:
        started = time.perf_counter()
        metrics: Any = None
        for _ in range(count):
            state, metrics = step(
                state, target, assembly.batches, assembly.keys.train, np.int32(updates)
            )
        jax.block_until_ready((state, metrics))
        return state, time.perf_counter() - started

    state, _ = dispatches(state, 1)
    state, once = dispatches(state, 1)
    count = max(1, round(seconds / once))
    per_second: list[float] = []
    for _ in range(repeats):
        state, took = dispatches(state, count)
        per_second.append(count * updates / took)
    return Speed(per_second, compile_seconds)


def in_a_process_of_its_own(example: str, updates: int, repeats: int, seconds: float) -> Speed:
    """Runs `measure` in a fresh Python."""
    arguments = json.dumps([example, updates, repeats, seconds])
    ended = subprocess.run(
        [sys.executable, __file__, "--measure", arguments], stdout=subprocess.PIPE, check=True
    )
    return Speed(**json.loads(ended.stdout))


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "examples", nargs="*", help="names of examples/*.yaml, with overrides after commas"
    )
    parser.add_argument("--updates", type=int, default=100, help="updates of a long dispatch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a repeat takes")
    parser.add_argument("--json", action="store_true", help="print all repeats as JSON instead")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        json.dump(dataclasses.asdict(measure(*json.loads(arguments.measure))), sys.stdout)
        return
    if not arguments.examples:
        parser.error("name at least one of examples/*.yaml")
    found: dict[str, dict[str, Any]] = {}
    for example in arguments.examples:
        speeds = {
            updates: in_a_process_of_its_own(example, updates, arguments.repeats, arguments.seconds)
            for updates in (1, arguments.updates)
        }
        found[example] = {str(n): dataclasses.asdict(speed) for n, speed in speeds.items()}
        if not arguments.json:
            one, many = speeds[1], speeds[arguments.updates]
            print(example)
            print(f"     1 update a dispatch   {one.told()} steps/s")
            print(f"  {arguments.updates:4d} updates a dispatch  {many.told()} steps/s")
            print(f"       many against one     {many.median / one.median:6.2f}")
            print(f"       compile              {one.compile_seconds:6.1f} s")
    if arguments.json:
        json.dump(found, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
