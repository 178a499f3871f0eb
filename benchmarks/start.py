"""How long it takes until something can begin: the command's help, the library's import, a compiled step.

    python benchmarks/start.py
    python benchmarks/start.py tms_5-2 tiny_lm smollm2_mlp

Seconds, each in a fresh process, which is what a person waits for; `processor` hardly depends on what else the machine
does. `step` compiles the step of each example that is named, first with nothing kept and then as the second start of a run
does; of a published model its `config.json` is fetched if it is not here.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples import config_of
from harness import parse, print_table, run_arm, scratch

HELP = "import sys; sys.argv = ['pd-eqx', '--help']; from pd_eqx.cli import main; main()"


def process(code: str) -> dict[str, float]:
    """A Python that does nothing else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "processor": spent}


def step(example: str, kept: str) -> dict[str, float]:
    """Traces and compiles an example's step from shapes alone, or takes it from what is kept."""
    from pd_eqx.runs.executables import kept_executables
    from pd_eqx.runs.plan import assemble_without_data

    with kept_executables(Path(kept)):
        assembly = assemble_without_data(config_of(example))
        target = assembly.abstract_target()
        started, spent = time.perf_counter(), time.process_time()
        assembly.compile(target)
        return {"wall": time.perf_counter() - started, "processor": time.process_time() - spent}


ARMS = {"step": step}


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", default=["tms_5-2"], metavar="EXAMPLE")
        parser.add_argument("--repeats", type=int, default=3)

    arguments = parse(__doc__, ARMS, add)
    found: dict[str, list[dict[str, float]]] = {}

    def note(name: str, numbers: dict[str, Any]) -> None:
        found.setdefault(name, []).append(numbers)

    process(HELP)  # the first one writes the byte code
    for _ in range(arguments.repeats):
        note("pd-eqx --help", process(HELP))
        note("import pd_eqx", process("import pd_eqx"))
        for example in arguments.examples:
            with scratch() as folder:
                for start in ("nothing kept", "second start"):
                    took = run_arm(__file__, "step", example=example, kept=str(folder))
                    note(f"step of {example}, {start}", took)
    medians = {
        name: {key: statistics.median(each[key] for each in of) for key in ("wall", "processor")}
        for name, of in found.items()
    }
    if arguments.json:
        print(json.dumps(medians, indent=2))
        return
    print_table(
        ["seconds", "wall", "processor"],
        [[name, of["wall"], of["processor"]] for name, of in medians.items()],
    )


if __name__ == "__main__":
    main()
