"""What a person waits for around the steps of a run: the evaluations in its loop, and a resume up to its first new record.

    python benchmarks/whole_run.py tms_5-2

`evaluation` is the seconds that a run spends in the evaluations of its loop, and the share of all of its seconds, from start
to finish, that those are; what they run was compiled beside the step. `again` is that share of the same run in another
process, which finds the executables of the first. `resume` is the seconds from the command, after a SIGTERM, to the first
record that is new, which comes after at most `log_every` updates. The resumed run keeps its executables in a folder of its
own, so the resume compiles nothing, as a second start of any run does. All runs train their target.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples import EXAMPLES, config_of
from harness import parse, print_table, run_arm, scratch

COMMAND = "import sys; from pd_eqx.cli import main; main()"


def evaluation(example: str, kept: str) -> dict[str, float]:
    """Of a run from start to finish, with executables kept in a folder."""
    import jax

    from pd_eqx.evals.evaluation import Evaluation
    from pd_eqx.runs import loop
    from pd_eqx.runs.executables import kept_executables

    seconds: list[float] = []
    evaluate = Evaluation.__call__

    def timed(self: Evaluation, *arguments: Any, **named: Any) -> Any:
        jax.block_until_ready(arguments)
        started = time.perf_counter()
        result = evaluate(self, *arguments, **named)
        seconds.append(time.perf_counter() - started)
        return result

    Evaluation.__call__ = timed
    with scratch() as folder, kept_executables(Path(kept)):
        started = time.perf_counter()
        loop.train(config_of(example), folder / "run")
        whole = time.perf_counter() - started
    *seconds, _ = seconds  # the last is that of the summary, after the loop
    return {
        "run": whole,
        "evaluations": len(seconds),
        "first": seconds[0],
        "others": sum(seconds[1:]) / max(1, len(seconds) - 1),
        "share": sum(seconds) / whole,
    }


def resume(example: str) -> dict[str, float]:
    """Stopped in the middle, and started again."""
    name, *overrides = example.split(",")
    with scratch() as folder:
        run = folder / "run"
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        command = [sys.executable, "-c", COMMAND, "train", str(EXAMPLES / f"{name}.yaml")]
        command += ["--run-dir", str(run), *overrides]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

        first = start()
        _wait(first, lambda: _records(run) >= 3)
        first.send_signal(signal.SIGTERM)
        assert first.wait() == 75, "the run ended before it could be stopped"
        before = _records(run)
        started = time.perf_counter()
        second = start()
        _wait(second, lambda: _records(run) > before)
        seconds = time.perf_counter() - started
        second.send_signal(signal.SIGTERM)
        second.wait()
        return {"resume": seconds}


def _records(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait(process: subprocess.Popen[bytes], until: Any) -> None:
    while not until():
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with status {process.returncode}")
        time.sleep(0.01)


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", default=["tms_5-2"])

    arguments = parse(__doc__, {"evaluation": evaluation, "resume": resume}, add)
    found: dict[str, dict[str, float]] = {}
    for example in arguments.examples:
        with scratch() as folder:
            first, second = (
                run_arm(__file__, "evaluation", example=example, kept=str(folder)) for _ in range(2)
            )
        found[example] = first | {"again": second["share"]}
        found[example] |= run_arm(__file__, "resume", example=example)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    columns = ("run", "evaluations", "first", "others", "share", "again", "resume")
    print_table(["seconds", *columns], [[n, *(f[c] for c in columns)] for n, f in found.items()])


if __name__ == "__main__":
    main()
