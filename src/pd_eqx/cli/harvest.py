"""`pd-eqx harvest` and `merge-harvests`: what every component did, in tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly

if TYPE_CHECKING:
    from rich.console import Console

    from pd_eqx.harvest.store import Harvest

_INTERRUPTED = 75


def harvest(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    batches: Annotated[int, typer.Option(min=1, help="How many batches.")],
    first: Annotated[int, typer.Option(min=0, help="The number of the first batch.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to; RUN/harvest by default.")] = None,
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint; the latest whole one.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="A component fires where its importance is above this.")
    ] = 0.1,
    top: Annotated[int, typer.Option(min=1, help="Best windows a component.")] = 16,
    sample: Annotated[int, typer.Option(min=1, help="Uniformly drawn windows a component.")] = 16,
    before: Annotated[int, typer.Option(min=0, help="Tokens shown before a firing.")] = 16,
    after: Annotated[int, typer.Option(min=0, help="Tokens shown after it.")] = 7,
) -> None:
    """Collect what each component did on many batches: densities, histograms, windows, tokens, companions.

    Goes on where an earlier harvest into the same directory was stopped, and adds the batches that it lacks.
    """
    from pd_eqx.runs.directory import RunDirectory, RunDirectoryError

    with told_plainly(CORRECTABLE, RunDirectoryError):
        RunDirectory(run).require()  # before anything slow is imported

    from rich.console import Console

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.cli.console import say
    from pd_eqx.harvest.settings import HarvestSettings
    from pd_eqx.harvest.store import HarvestError
    from pd_eqx.runs.config_file import ConfigError
    from pd_eqx.runs.executables import kept_executables
    from pd_eqx.runs.harvest import harvest_run
    from pd_eqx.runs.open import open_run

    console = Console()
    directory = run / "harvest" if out is None else out
    chosen = range(first, first + batches)

    def tell(index: int, positions: int) -> None:
        if console.is_terminal:
            said = f"batch {index}  ({index - first + 1} of {batches})  {positions} positions"
            console.print(said, end="\r", highlight=False)

    with (
        told_plainly(CORRECTABLE, ConfigError, CheckpointError, HarvestError, ValueError, OSError),
        kept_executables(),
    ):
        settings = HarvestSettings(
            threshold=threshold, top=top, sample=sample, before=before, after=after
        )
        try:
            found = harvest_run(open_run(run, step), directory, chosen, settings, watch=tell)
        except KeyboardInterrupt:
            say(console, f"stopped; what was saved is in {directory}; the same command goes on")
            raise SystemExit(_INTERRUPTED) from None
    _tell(console, found, directory)


def merge_harvests(
    parts: Annotated[list[Path], typer.Argument(help="Harvests of different batches.")],
    into: Annotated[Path, typer.Option(help="Where to; it must hold no harvest yet.")],
) -> None:
    """Merge harvests of one decomposition, exactly: as one harvest over the batches of all."""
    from rich.console import Console

    from pd_eqx.harvest.store import HarvestError
    from pd_eqx.runs.harvest import merge_harvests as merge

    with told_plainly(CORRECTABLE, HarvestError, OSError):
        found = merge(parts, into)
    _tell(Console(), found, into)


def _tell(console: "Console", found: "Harvest", directory: Path) -> None:
    from pd_eqx.cli.console import say

    tally = found.tally
    batches = sum(end - begin for begin, end in tally.batches)
    say(
        console,
        f"{found.source.name}   step {found.source.step}   {batches} batches   {tally.positions} positions",
    )
    width = max(len(site) for site, _ in found.source.sites)
    say(console, f"{'site':<{width}}   components   fired   firing at a position")
    begin = 0
    for site, count in found.source.sites:
        fired = tally.fired[begin : begin + count]
        begin += count
        mean = fired.sum() / tally.positions
        say(console, f"{site:<{width}}   {count:>10}   {(fired > 0).sum():>5}   {mean:>20.3g}")
    say(console, f"saved  {directory}")
    say(console, f"next   pd-eqx cluster {directory}")
