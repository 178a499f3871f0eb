"""`pd-eqx evaluate`: measures a run's product again, after the fact."""

import sys
from json import dumps as format_json
from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint; the latest by default.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all numbers as JSON instead.")
    ] = False,
) -> None:
    """Measure a run's decomposition and draw its figures again.

    Reads the product alone, so it works while the run goes on and after its process was stripped.
    """
    from pd_eqx.runs.directory import RunDirectory, RunDirectoryError

    with told_plainly(CORRECTABLE, RunDirectoryError):
        RunDirectory(run).require()  # before anything slow is imported

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.runs.config_file import ConfigError
    from pd_eqx.runs.executables import kept_executables
    from pd_eqx.runs.finish import evaluate as evaluate_opened
    from pd_eqx.runs.inputs import INPUT_ERRORS
    from pd_eqx.runs.open import open_run

    with (
        told_plainly(CORRECTABLE, ConfigError, RunDirectoryError, CheckpointError, *INPUT_ERRORS),
        kept_executables(),
    ):
        opened = open_run(run, step)
        report = {"step": opened.step, **evaluate_opened(opened)}
    if json:
        sys.stdout.write(format_json(report, indent=2) + "\n")
        return

    from rich.console import Console

    from pd_eqx.cli.console import print_evaluation

    print_evaluation(Console(), report, run)
