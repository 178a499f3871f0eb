"""Runs all benchmarks, round by round, and writes one Markdown table and one JSON file of what they found.

    python benchmarks/run_all.py --into runs/benchmarks            # about an hour on two idle cores
    python benchmarks/run_all.py --into runs/benchmarks --quick    # small sizes: does everything run?
    python benchmarks/run_all.py --only start steps --rounds 3
    python benchmarks/run_all.py --only "lm step" --add            # more rounds of what is there already
    python benchmarks/run_all.py --peer ./peer_step

Every benchmark measures in fresh processes; a round runs each of them once, so that what else the machine does falls
on all alike. A figure is the median over rounds with its range. A benchmark that fails is written down as failed, and the
others go on; the exit status is then 1.

The peer is goodfire-ai/spd. Its figures are quoted where it is not at hand, with the machine that they are from. `--peer`
names a program that is called with one of the names in `QUOTED`, trains that configuration with the peer, evaluation left
out, and prints `{"milliseconds": 35.0, "mib": 586.0}`.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from shapes import SHAPES

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A script of this folder that prints JSON, with its arguments in earnest and in a hurry."""

    script: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


# Its step takes seconds, so few of them go to a dispatch.
_LONG = "resid_mlp_3"
_SHORT = tuple(shape for name, shape in SHAPES.items() if name != _LONG)

# Named as `--only` names them.
BENCHMARKS: Mapping[str, Benchmark] = {
    "floor": Benchmark("floor.py", (), (SHAPES["tms_5-2"],)),
    "start": Benchmark("start.py", ("tms_5-2", "tiny_lm"), ("--repeats", "1")),
    # The model's `config.json` is fetched if it is not here.
    "published model": Benchmark(
        "start.py", ("smollm2_mlp", "--repeats", "1"), ("smollm2_mlp", "--repeats", "1")
    ),
    "steps": Benchmark(
        "steps_per_second.py",
        (*_SHORT, "tms_5-2", "tms_40-10", "resid_mlp_1"),
        (SHAPES["tms_5-2"], "--repeats", "2", "--seconds", "0.5"),
    ),
    "long steps": Benchmark(
        "steps_per_second.py",
        (SHAPES[_LONG], "--updates", "4", "--repeats", "3"),
        (SHAPES[_LONG], "--updates", "2", "--repeats", "1", "--seconds", "0.5"),
    ),
    "dispatch": Benchmark("dispatch.py", (), ("tms_5-2", "--updates", "10", "--rounds", "3")),
    "whole run": Benchmark("whole_run.py"),
    "toy memory": Benchmark("toy_memory.py", (), (SHAPES["tms_5-2"],)),
    "lm step": Benchmark("lm_step.py", (), ("--rounds", "1", "--seconds", "0.5")),
    "lm memory": Benchmark("lm_step.py", ("--memory",), ("--memory", "--rounds", "1")),
    "checkpoints": Benchmark(
        "checkpoint_io.py",
        ("--mib", "1024"),
        ("--mib", "32", "--leaves", "16", "--repeats", "1"),
    ),
    "resume memory": Benchmark(
        "peak_memory.py", ("--mib", "1024"), ("--mib", "64", "--devices", "1")
    ),
    "open": Benchmark("open_product.py", ("--mib", "1024"), ("--mib", "32", "--repeats", "1")),
}


@dataclasses.dataclass(frozen=True)
class Quoted:
    """What the peer took for a step: milliseconds as `(least, most)`, MiB where it is known."""

    milliseconds: tuple[float, float]
    mib: float | None
    note: str


# Two idle cores, x86-64, Linux, 24 GiB; the peer's own configurations, evaluation left out. As quoted, not measured here.
QUOTED: Mapping[str, Quoted] = {
    "tms_5-2": Quoted((31.0, 40.0), 586.0, "batch 4096, MLP of 16 a component"),
    "tms_40-10": Quoted((524.0, 524.0), None, "200 a site, taken to be as TMS 5-2"),
    "resid_mlp_1": Quoted((141.0, 180.0), 776.0, "batch 2048, bfloat16 to float32"),
    "resid_mlp_2": Quoted((397.0, 397.0), None, ""),
    "resid_mlp_3": Quoted((16600.0, 16600.0), 7782.0, "500 a site"),
}


def main() -> None:
    """Runs, and writes after every benchmark, so that a stopped command leaves what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--only", nargs="+", choices=[*BENCHMARKS], default=[*BENCHMARKS])
    parser.add_argument("--add", action="store_true", help="to the rounds that are there already")
    parser.add_argument("--peer", type=Path, help="a program that runs the peer's step")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    found: dict[str, list[Any]] = {name: [] for name in arguments.only}
    peer: dict[str, list[Any]] = {name: [] for name in QUOTED} if arguments.peer else {}
    failed: dict[str, str] = {}
    arguments.into.mkdir(parents=True, exist_ok=True)
    if arguments.add:
        try:
            before = json.loads((arguments.into / "benchmarks.json").read_text())
        except FileNotFoundError:
            parser.error(f"--add: {arguments.into} holds no benchmarks.json yet")
        rows = {**found, **before["found"]}
        found = {name: rows[name] for name in BENCHMARKS if name in rows}  # in one order always
        peer, failed = {**peer, **before["peer"]}, before["failed"]
    for number in range(rounds):
        for name in arguments.only:
            benchmark = BENCHMARKS[name]
            chosen = benchmark.quick if arguments.quick else benchmark.arguments
            script = [sys.executable, str(HERE / benchmark.script), "--json", *chosen]
            _run(script, f"{name}, round {number + 1} of {rounds}", found[name], name, failed)
            write(arguments.into, found, peer, failed)
        for name, theirs in peer.items() if arguments.peer else ():
            command = [str(arguments.peer.absolute()), name]
            _run(command, f"the peer's {name}", theirs, f"peer {name}", failed)
            write(arguments.into, found, peer, failed)
    print(f"saved     {arguments.into / 'benchmarks.md'}, {arguments.into / 'benchmarks.json'}")
    raise SystemExit(1 if failed else 0)


def _run(
    command: Sequence[str], told: str, into: list[Any], name: str, failed: dict[str, str]
) -> None:
    started = time.monotonic()
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        into.append(json.loads(ended.stdout))
        said = "done"
    except (subprocess.CalledProcessError, ValueError, OSError) as error:
        said = failed[name] = f"failed: {error}"
    print(f"{told}: {said} in {time.monotonic() - started:.0f} s", flush=True)


def write(
    folder: Path,
    found: Mapping[str, Sequence[Any]],
    peer: Mapping[str, Sequence[Any]],
    failed: Mapping[str, str],
) -> None:
    """Both files, of all rounds so far."""
    everything = {
        "machine": machine(),
        "found": found,
        "peer": peer,
        "peer_quoted": {name: dataclasses.asdict(each) for name, each in QUOTED.items()},
        "failed": failed,
    }
    (folder / "benchmarks.json").write_text(json.dumps(everything, indent=2) + "\n")
    (folder / "benchmarks.md").write_text(markdown(found, peer, failed))


def markdown(
    found: Mapping[str, Sequence[Any]],
    peer: Mapping[str, Sequence[Any]],
    failed: Mapping[str, str],
) -> str:
    """The table of every figure, and before it ours beside the peer's."""
    here = ", ".join(f"{name} {value}" for name, value in machine().items())
    lines = ["# Benchmarks", "", f"Measured on: {here}.", ""]
    steps = [one for name in ("steps", "long steps") for one in found.get(name, ())]
    if steps:
        lines += _beside_the_peer(steps, peer)
    lines += ["| benchmark | figure | median | range | rounds |", "|---|---|---:|---:|---:|"]
    for name, rounds in found.items():
        figures: dict[str, list[float]] = {}
        for one in rounds:
            for path, value in numbers(one):
                figures.setdefault(path, []).append(value)
        for path, values in figures.items():
            spread = f"{_told(min(values))} to {_told(max(values))}"
            median = _told(statistics.median(values))
            lines.append(f"| {name} | {path} | {median} | {spread} | {len(values)} |")
    lines += [f"| {name} | {_cell(why)} | | | |" for name, why in failed.items()]
    return "\n".join(lines) + "\n"


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested JSON, by the words on the way to it; a row of a table is told by its words and sizes.

    A list of numbers alone is one figure: its median.
    """
    match value:
        case bool() | None:
            return
        case int() | float():
            yield path, float(value)
        case dict():
            for name, inner in value.items():
                yield from numbers(inner, f"{path} / {name}" if path else str(name))
        case list() if value and all(isinstance(each, int | float) for each in value):
            yield path, statistics.median(value)
        case list():
            for index, inner in enumerate(value):
                yield from numbers(inner, f"{path} / {_name_of(inner, index)}")
        case _:
            return


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "cores": str(cores),
        "memory": f"{memory:.0f} GiB",
        "machine": platform.machine(),
        "system": platform.system(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("pd_eqx", "jax", "orbax-checkpoint")},
    }


def _beside_the_peer(rounds: Sequence[Any], peer: Mapping[str, Sequence[Any]]) -> list[str]:
    """Milliseconds a step of each example that was run, beside what the peer takes."""
    lines = [
        (
            "Milliseconds a step, many to a dispatch, beside goodfire-ai/spd at the same batch, components and importance "
            "functions; the objective is the example's. Quoted is what it took on two idle cores of another machine, so "
            "no ratio to that is given; where it was run here, the ratio is of one machine."
        ),
        "",
        "| step | here, median | range | peer, quoted | peer, here | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, quoted in QUOTED.items():
        speeds = (list(one.get(SHAPES[name], {}).values()) for one in rounds)
        many = [of[-1] for of in speeds if of]  # many updates a dispatch
        ours = [1000.0 / statistics.median(speed["per_second"]) for speed in many]
        theirs = [float(one["milliseconds"]) for one in peer.get(name, ())]
        ratio = statistics.median(theirs) / statistics.median(ours) if ours and theirs else None
        least, most = quoted.milliseconds
        told = _told(least) if least == most else f"{_told(least)} to {_told(most)}"
        cells = [
            f"{name}{f' ({quoted.note})' if quoted.note else ''}",
            _told(statistics.median(ours)) if ours else "",
            f"{_told(min(ours))} to {_told(max(ours))}" if ours else "",
            told + (f", {quoted.mib:.0f} MiB" if quoted.mib else ""),
            _told(statistics.median(theirs)) if theirs else "",
            f"{ratio:.2f}" if ratio else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _name_of(row: Any, index: int) -> str:
    words = (
        [str(each) for each in row.values() if isinstance(each, str)]
        if isinstance(row, dict)
        else []
    )
    sizes = [
        f"{key} {row[key]}" for key in ("devices", "leaves") if isinstance(row, dict) and key in row
    ]
    return ", ".join([*words, *sizes]) or str(index)


def _told(value: float) -> str:
    return f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
