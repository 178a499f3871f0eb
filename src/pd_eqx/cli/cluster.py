"""`pd-eqx cluster`: groups of components that fire together."""

from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly


def cluster(
    harvest: Annotated[Path, typer.Argument(help="What `pd-eqx harvest` made.")],
    alpha: Annotated[
        float, typer.Option(min=0.0, help="Bits to describe one component of an active group.")
    ] = 1.0,
    seeds: Annotated[
        int, typer.Option(min=0, help="Resamplings that stability is judged by; 0 for none.")
    ] = 5,
    out: Annotated[Path | None, typer.Option(help="Where to; HARVEST/clusters by default.")] = None,
) -> None:
    """Group the components that fire together, by minimum description length."""
    from rich.console import Console

    from pd_eqx.cli.console import say
    from pd_eqx.cluster.store import cluster_harvest
    from pd_eqx.harvest.store import HarvestError

    to = harvest / "clusters" if out is None else out
    with told_plainly(CORRECTABLE, HarvestError, ValueError, OSError):
        found = cluster_harvest(harvest, to, alpha, seeds)
    console = Console()
    say(console, f"{len(found['components'])} components fire at {found['positions']} positions")
    say(
        console,
        f"{found['clusters']} clusters   {found['cost']:.4g} bits, {found['cost_alone']:.4g} without clusters",
    )
    if found["agreement"] is not None:
        say(console, f"agreement of {seeds} resamplings   {found['agreement']:.3f} (adjusted Rand)")
    say(console, f"saved  {to}")
