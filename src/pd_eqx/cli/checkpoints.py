"""`pd-eqx inspect`, `verify`, `diff`, `strip` and `migrate`: what can be done with checkpoints without a run.

PATH is a run directory or a directory of checkpoints. Exit statuses: 0 when all is well; 1 when `verify` found
damage or `diff` a difference; 2 for what the caller can correct.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from json import dumps as format_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly

if TYPE_CHECKING:
    from pd_eqx.checkpoint import StepDescription
    from pd_eqx.checkpoint.diff import LeafDifference

_UNEQUAL = 1
_PROCESS = "training"

Place = Annotated[Path, typer.Argument(help="A run directory, or a directory of checkpoints.")]
Step = Annotated[int | None, typer.Option(help="Which step; the latest whole one by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")]


class NoCheckpointsError(ValueError):
    """A path at which there are no checkpoints."""


def inspect(path: Place, step: Step = None, json: AsJson = False) -> None:
    """List steps, items and arrays with their fingerprints; reads no data."""
    from pd_eqx.checkpoint import CheckpointError, CheckpointStore

    with (
        told_plainly(CORRECTABLE, NoCheckpointsError, CheckpointError),
        CheckpointStore(_checkpoints(path), read_only=True) as store,
    ):
        described = store.describe()
        if step is not None:
            described = dataclasses.replace(described, steps=(store.describe(step),))
    if json:
        strays = {stray.name: stray.meaning for stray in described.strays}
        steps = [_step_as_json(each) for each in described.steps]
        _print_json({"path": str(described.path), "steps": steps, "strays": strays})
        return
    tell = _teller()
    tell(str(described.path))
    rows = [
        [
            str(each.step),
            ", ".join(
                f"{item.name} {'(stripped)' if item.stripped else _size(item.bytes)}"
                for item in each.items
            ),
            each.problem or "whole",
        ]
        for each in described.steps
    ]
    _table(["step", "items", ""], rows)
    for stray in described.strays:
        tell(f"{stray.name}  {stray.meaning}")
    shown = [each for each in described.steps if each.items and (step is not None or each.is_whole)]
    if shown:
        tell("")
        tell(f"step {shown[-1].step}")
        leaves = [
            [node.path, node.told(), _size(node.bytes), node.fingerprint]
            for item in shown[-1].items
            for node in item.arrays
        ]
        _table(["array", "type", "size", "fingerprint"], leaves)
    elif not described.steps:
        tell("no steps")


def verify(
    path: Place,
    step: Annotated[int | None, typer.Option(help="Which step; all by default.")] = None,
    json: AsJson = False,
) -> None:
    """Read every byte and compare it with what was saved; exits with 1 if anything is damaged."""
    from pd_eqx.checkpoint import (
        CheckpointError,
        CheckpointNotFoundError,
        CheckpointStore,
        CorruptCheckpointError,
    )

    findings: list[dict[str, Any]] = []
    with (
        told_plainly(CORRECTABLE, NoCheckpointsError, CheckpointNotFoundError),
        CheckpointStore(_checkpoints(path), read_only=True) as store,
    ):
        numbers = [each.step for each in store.describe().steps] if step is None else [step]
        if not numbers:
            raise CheckpointNotFoundError(f"there is no step in {store.path}")
        for number in numbers:
            found: dict[str, Any] = {"step": number, "intact": True, "problem": "", "damaged": []}
            try:
                described = store.verify(number)
                found["stripped"] = [item.name for item in described.items if item.stripped]
                found["bytes"] = described.bytes
            except CheckpointNotFoundError:
                raise
            except CheckpointError as error:
                found |= {"intact": False, "problem": str(error)}
                if isinstance(error, CorruptCheckpointError):
                    found["damaged"] = list(error.leaves)
            findings.append(found)
    intact = all(found["intact"] for found in findings)
    if json:
        _print_json({"path": str(store.path), "intact": intact, "steps": findings})
    else:
        tell = _teller()
        for found in findings:
            if found["intact"]:
                without = "".join(f", stripped of {name}" for name in found["stripped"])
                tell(f"step {found['step']}  intact ({_size(found['bytes'])}{without})")
            else:
                tell(f"step {found['step']}  {found['problem']}")
    if not intact:
        raise SystemExit(_UNEQUAL)


def diff(
    path_a: Place,
    path_b: Place,
    step_a: Annotated[int | None, typer.Option(help="A's step; the latest by default.")] = None,
    step_b: Annotated[int | None, typer.Option(help="B's step; the latest by default.")] = None,
    json: AsJson = False,
) -> None:
    """Compare two steps array by array; exits with 1 if they differ."""
    from pd_eqx.checkpoint import CheckpointError, CheckpointNotFoundError, CheckpointStore
    from pd_eqx.checkpoint.diff import diff as compare

    def chosen(store: CheckpointStore, step: int | None) -> int:
        latest = store.latest_step() if step is None else step
        if latest is None:
            raise CheckpointNotFoundError(f"there is no whole step in {store.path}")
        return latest

    with (
        told_plainly(CORRECTABLE, NoCheckpointsError, CheckpointError),
        CheckpointStore(_checkpoints(path_a), read_only=True) as a,
        CheckpointStore(_checkpoints(path_b), read_only=True) as b,
    ):
        found = compare(a, b, chosen(a, step_a), chosen(b, step_b))
    unequal = [leaf for leaf in found.leaves if leaf.verdict != "equal"]
    if json:
        sides = {"a": str(a.path), "step_a": found.step_a, "b": str(b.path), "step_b": found.step_b}
        leaves = [
            {name: _finite(value) for name, value in dataclasses.asdict(leaf).items()}
            for leaf in found.leaves
        ]
        _print_json({**sides, "equal": found.equal, "leaves": leaves})
    else:
        tell = _teller()
        tell(f"A  {a.path}, step {found.step_a}")
        tell(f"B  {b.path}, step {found.step_b}")
        if unequal:
            _table(["path", "", "entries", "max abs", "max rel"], [_told(leaf) for leaf in unequal])
        tell(f"{len(found.leaves) - len(unequal)} of {len(found.leaves)} are equal, bit for bit")
    if unequal:
        raise SystemExit(_UNEQUAL)


def strip(
    path: Place,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; without, only tell what it would free.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Remove what only a resume needs from a finished run, and keep its products.

    The products are copied, compared byte for byte, and take the place of the originals; only then is anything
    removed.
    """
    import contextlib

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.checkpoint.strip import strip as remove
    from pd_eqx.runs.directory import RunDirectory, RunDirectoryError

    with (
        told_plainly(CORRECTABLE, NoCheckpointsError, RunDirectoryError, CheckpointError),
        contextlib.ExitStack() as stack,
    ):
        checkpoints = _checkpoints(path)
        run = RunDirectory(checkpoints.parent)
        if checkpoints == run.checkpoints and run.config.exists():
            if not run.summary.exists():
                raise RunDirectoryError(
                    f"{run.root} is not finished (there is no summary.json), and without its {_PROCESS} it could not "
                    "go on; nothing was stripped"
                )
            if apply:
                stack.enter_context(run.locked())
        done = remove(checkpoints, _PROCESS, apply=apply)
    if json:
        steps = [dataclasses.asdict(each) for each in done.steps]
        head = {"path": str(done.path), "item": done.item, "applied": done.applied}
        _print_json({**head, "freed_bytes": done.freed, "steps": steps})
        return
    tell = _teller()
    for each in done.steps:
        said = "was stripped before" if each.was_stripped else f"{_PROCESS} {_size(each.freed)}"
        tell(f"step {each.step}  {said}, keeps {_size(each.kept)}")
    if done.applied:
        tell(f"freed {done.freed} bytes ({_size(done.freed)})")
    else:
        tell(
            f"would free {done.freed} bytes ({_size(done.freed)}); nothing was touched: add --apply"
        )


def migrate(
    path: Place,
    into: Annotated[
        Path, typer.Option(help="Where the converted steps go; empty or absent before.")
    ],
    json: AsJson = False,
) -> None:
    """Convert checkpoints of an older layout (one item, `default`); the originals are only read."""
    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.runs.migrate import migrate as convert

    with told_plainly(CORRECTABLE, NoCheckpointsError, CheckpointError, OSError):
        steps = convert(_checkpoints(path), into)
    if json:
        _print_json({"into": str(into), "steps": [dataclasses.asdict(step) for step in steps]})
        return
    tell = _teller()
    for step in steps:
        tell(f"step {step.step}  {_size(step.bytes)}, from the layout with {step.layout}")
    tell(f"saved  {into}")


def _checkpoints(path: Path) -> Path:
    """The directory of checkpoints that a path names.

    **Errors:** `NoCheckpointsError`.
    """
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise NoCheckpointsError(f"{path} {what}; name a run directory or its checkpoints")
    inside = path.absolute() / "checkpoints"
    if inside.is_dir():
        return inside
    if (path / "config.yaml").exists():
        raise NoCheckpointsError(f"{path} is a run without checkpoints")
    return path.absolute()


def _step_as_json(step: "StepDescription") -> dict[str, Any]:
    items = [
        {
            "name": item.name,
            "stripped": item.stripped,
            "bytes": item.bytes,
            "leaves": [
                {
                    "path": node.path,
                    "dtype": node.dtype,
                    "shape": node.shape,
                    "bytes": node.bytes,
                    "fingerprint": node.fingerprint,
                }
                for node in item.arrays
            ],
        }
        for item in step.items
    ]
    return {
        "step": step.step,
        "whole": step.is_whole,
        "problem": step.problem,
        "bytes": step.bytes,
        "items": items,
    }


def _told(leaf: "LeafDifference") -> list[str]:
    if leaf.verdict == "another kind":
        return [leaf.path, f"{leaf.a} in A, {leaf.b} in B", "", "", ""]
    numbers = ["" if number is None else f"{number:.3g}" for number in (leaf.max_abs, leaf.max_rel)]
    return [leaf.path, f"{leaf.verdict} {leaf.a or leaf.b}", str(leaf.differing or ""), *numbers]


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return "inf" if value == float("inf") else value


def _print_json(value: Any) -> None:
    sys.stdout.write(format_json(value, indent=2, default=str, allow_nan=False) + "\n")


def _size(count: int) -> str:
    from pd_eqx.cli.console import readable_bytes

    return readable_bytes(count)


def _teller() -> Callable[[str], None]:
    from rich.console import Console

    from pd_eqx.cli.console import say

    console = Console()
    return lambda line: say(console, line)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what is in them, never wrapped: paths and fingerprints are there to be copied."""
    tell = _teller()
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        tell("   ".join(cells).rstrip())
