"""Reproduces a published toy result: runs it, judges it, and writes its rows into published.md.

    python benchmarks/reproduce.py tms_5-2 --seeds 0 1 2

Every run has a directory of its own below `runs/reproduce`, so a command that was stopped goes on where it was, and a
run that is finished is only judged again. The exit status is 0 where all runs hold, 1 where one does not, and 75 where
one was stopped.
"""

import argparse
import difflib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import print_table
from published import TOYS, Arm

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "published.md"
HEAD = ("toy", "example", "seed", "steps", "seconds", "measured", "held")
STOPPED = 75


class Row(NamedTuple):
    """A line of the table, as text; the first three cells say which one it is."""

    toy: str
    example: str
    seed: str
    steps: str
    seconds: str
    measured: str
    held: str


def judged(toy: str, arm: Arm, summary: dict[str, Any]) -> Row:
    """What a finished run says of a published result."""
    return Row(
        toy,
        arm.example,
        str(summary["seed"]),
        str(summary["steps"]),
        f"{summary['seconds']:.0f}",
        "; ".join(check.told(summary) for check in arm.checks),
        "yes" if all(check.holds(summary) for check in arm.checks) else "no",
    )


def with_rows(text: str, rows: Sequence[Row]) -> str:
    """A page whose table has these rows: in place of those of the same toy, example and seed, or at its end.

    **Errors:** `ValueError` for a page without the table.
    """
    lines = text.splitlines()
    first = _line(HEAD)
    if first not in lines:
        raise ValueError(f"no table begins with {first!r}")
    start = lines.index(first) + 2
    end = start
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    table = {_cells(line)[:3]: line for line in lines[start:end]}
    table |= {row[:3]: _line(row) for row in rows}
    order = list(TOYS)
    ordered = sorted(
        table, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key)
    )
    lines[start:end] = [table[key] for key in ordered]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


def run(example: str, seed: int, folder: Path) -> dict[str, Any]:
    """The summary of one run, trained now or before.

    **Errors:** `SystemExit` with the run's status where it stopped or failed; it has said why.
    """
    directory = folder / example / f"seed-{seed}"
    command = [
        str(Path(sys.executable).with_name("pd-eqx")),
        "train",
        str(ROOT / "examples" / f"{example}.yaml"),
        "--run-dir",
        str(directory),
        f"seed={seed}",
    ]
    status = subprocess.run(command, check=False).returncode
    if status:
        print(f"{example}, seed {seed}: pd-eqx train ended with status {status}", file=sys.stderr)
        raise SystemExit(STOPPED if status == STOPPED else 1)
    return json.loads((directory / "summary.json").read_text())


def main(words: Sequence[str] | None = None) -> None:
    """Runs, judges, prints, writes; `words` are the command's own by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("toy", help=f"one of {', '.join(TOYS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "reproduce")
    arguments = parser.parse_args(words)
    if arguments.toy not in TOYS:
        near = difflib.get_close_matches(arguments.toy, TOYS, n=1, cutoff=0.0)[0]
        parser.error(
            f"no toy {arguments.toy!r}; the nearest is {near!r}, and all are {', '.join(TOYS)}"
        )
    toy = TOYS[arguments.toy]
    rows: list[Row] = []
    for arm in toy.arms:
        for seed in arguments.seeds:
            rows.append(judged(arguments.toy, arm, run(arm.example, seed, arguments.runs)))
            TABLE.write_text(with_rows(TABLE.read_text(), rows))
    print()
    print_table(HEAD, rows)
    print(f"published  {toy.published}")
    print(f"asked      {toy.asked}")
    print(f"written    {TABLE}")
    raise SystemExit(0 if all(row.held == "yes" for row in rows) else 1)


if __name__ == "__main__":
    main()
