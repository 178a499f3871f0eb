"""`pd-eqx report`: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint; the latest by default.")
    ] = None,
    harvest: Annotated[
        Path | None,
        typer.Option(help="A harvest of the run; RUN/harvest by default, if it is there."),
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1, help="Without a harvest: how many batches to look at; as many as an evaluation."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; RUN/report.html by default.")
    ] = None,
) -> None:
    """Write a run as one HTML file: numbers, curves, sites, and a page for each component.

    The file needs no network and no server: open it from disk, or send it to somebody.
    """
    from pd_eqx.runs.directory import RunDirectory, RunDirectoryError

    path = out or RunDirectory(run).report
    with told_plainly(CORRECTABLE, RunDirectoryError, NotADirectoryError):
        RunDirectory(run).require()  # before anything slow is imported
        if not path.parent.is_dir():
            raise NotADirectoryError(
                f"--out is {path}, but {path.parent} is no directory; make it first"
            )

    from rich.console import Console

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.cli.console import readable_bytes, say
    from pd_eqx.harvest.store import HarvestError
    from pd_eqx.report.collect import collect
    from pd_eqx.report.page import render
    from pd_eqx.report.sources import find
    from pd_eqx.runs.config_file import ConfigError
    from pd_eqx.runs.directory import write_atomically
    from pd_eqx.runs.executables import kept_executables
    from pd_eqx.runs.inputs import INPUT_ERRORS
    from pd_eqx.runs.open import open_run

    console = Console()
    mistakes = (ConfigError, CheckpointError, RunDirectoryError, HarvestError, *INPUT_ERRORS)
    with told_plainly(CORRECTABLE, *mistakes, OSError), kept_executables():
        opened = open_run(run, step)
        found = find(opened, harvest, batches, lambda line: say(console, line))
        page = render(collect(opened, found.harvested, found.words))
        write_atomically(path, page)
    say(console, f"report    {path} ({readable_bytes(len(page.encode()))})")
