"""`pd-eqx invariance`: the same run on several numbers of devices, and how far its numbers are apart."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, FAILED, told_plainly


def invariance(
    config: Annotated[Path, typer.Argument(help="The run's configuration, a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Values instead of the file's."),
    ] = None,
    devices: Annotated[
        str, typer.Option(help="Numbers of simulated devices, the first to compare with.")
    ] = "1,2,4,8",
    bound: Annotated[float, typer.Option(help="The largest relative difference allowed.")] = 1e-4,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep the runs; by default they are not kept.")
    ] = None,
) -> None:
    """Train on 1, 2, 4, … simulated devices and print the worst relative difference of every metric and of the state.

    Exits with 1 if one is above the bound. An axis of the configured mesh should be null, to take the devices up.
    """
    from pd_eqx.runs.config_file import ConfigError, load_config

    with told_plainly(CORRECTABLE, ConfigError):
        configuration = load_config(config, overrides or ())
        if None not in configuration.mesh.model_dump().values():
            raise ConfigError(
                "mesh: every axis has a number, so every run would be on the same devices; set one to null, as in "
                "mesh.replica=null"
            )
        try:
            counts = [int(count) for count in devices.split(",")]
        except ValueError:
            raise ConfigError(
                f"--devices: expected numbers like 1,2,4,8, found {devices!r}"
            ) from None
        if len(counts) < 2 or min(counts) < 1 or len(set(counts)) < len(counts):
            raise ConfigError(f"--devices: give two different numbers or more, found {devices!r}")

    from rich.console import Console
    from rich.table import Table

    from pd_eqx.runs.invariance import InvarianceError
    from pd_eqx.runs.invariance import invariance as compare

    with tempfile.TemporaryDirectory() as temporary, told_plainly(FAILED, InvarianceError):
        found = compare(config, overrides or (), counts, folder or Path(temporary))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column(f"relative difference from {counts[0]} device{'s' if counts[0] > 1 else ''}")
    for comparison in found:
        table.add_column(f"{comparison.devices}", justify="right")
    by_name = [{d.name: d for d in comparison.metrics} for comparison in found]
    for name in sorted(by_name[0], key=lambda name: -max(d[name].relative for d in by_name)):
        table.add_row(name, *(f"{d[name].relative:.1e}" for d in by_name))
    table.add_row("state, the worst kind of leaves", *(f"{c.kinds[0].relative:.1e}" for c in found))
    table.add_row("state, the worst leaf", *(f"{c.leaves[0].relative:.1e}" for c in found))
    console = Console(width=120)
    console.print(table)
    for what in ("kinds", "leaves"):
        at = max(found, key=lambda comparison: getattr(comparison, what)[0].relative)
        console.print(
            f"the worst of the {what} is {getattr(at, what)[0].name} on {at.devices} devices",
            highlight=False,
            markup=False,
        )
    worst = max((comparison.worst for comparison in found), key=lambda found: found.relative)
    told = f"{worst.name}: {worst.relative:.1e} after {configuration.steps} steps"
    if worst.relative > bound:
        console.print(f"{told} is above the bound of {bound:.0e}", highlight=False, markup=False)
        raise SystemExit(FAILED)
    console.print(f"{told}, below the bound of {bound:.0e}", highlight=False, markup=False)
