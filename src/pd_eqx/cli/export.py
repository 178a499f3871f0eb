"""`pd-eqx export`: a decomposition to give away."""

from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly


def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    to: Annotated[Path, typer.Option(help="A folder that is empty or absent.")],
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint; the latest by default.")
    ] = None,
) -> None:
    """Write a run's decomposition as safetensors, with its configuration and a model card."""
    from pd_eqx.runs.directory import RunDirectory, RunDirectoryError

    with told_plainly(CORRECTABLE, RunDirectoryError):
        RunDirectory(run).require()  # before anything slow is imported

    from rich.console import Console

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.cli.console import readable_bytes, say
    from pd_eqx.runs.config_file import ConfigError
    from pd_eqx.runs.export import ExportError, export_run
    from pd_eqx.runs.inputs import INPUT_ERRORS
    from pd_eqx.runs.open import open_run

    with told_plainly(
        CORRECTABLE, ConfigError, CheckpointError, ExportError, OSError, *INPUT_ERRORS
    ):
        opened = open_run(run, step, mesh="host")
        size = export_run(opened, to)
    console = Console()
    say(console, f"step {opened.step} of {run}")
    say(console, f"saved  {to} ({readable_bytes(size)})")
    say(console, f"load   pd_eqx.load_export({str(to)!r})")
