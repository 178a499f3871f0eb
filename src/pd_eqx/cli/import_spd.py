"""`pd-eqx import-spd`: a run of goodfire-ai/spd as a run of this project."""

from pathlib import Path
from typing import Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly


def import_spd(
    checkpoint: Annotated[
        Path, typer.Argument(help="model_N.pth of goodfire-ai/spd, or the folder that it is in.")
    ],
    run_dir: Annotated[Path, typer.Option(help="The run to make; empty or absent.")],
) -> None:
    """Import a decomposition that goodfire-ai/spd trained; nothing in its files is executed."""
    from rich.console import Console

    from pd_eqx.checkpoint import CheckpointError
    from pd_eqx.cli.console import say
    from pd_eqx.runs.config_file import ConfigError
    from pd_eqx.runs.directory import RunDirectoryError
    from pd_eqx.runs.import_spd import ImportRefusedError
    from pd_eqx.runs.import_spd import import_spd as read
    from pd_eqx.targets.weights.source import WeightsError

    with told_plainly(
        CORRECTABLE,
        ImportRefusedError,
        WeightsError,
        ConfigError,
        RunDirectoryError,
        CheckpointError,
    ):
        found = read(checkpoint, run_dir)
    console = Console()
    say(console, f"{found.config.name}   step {found.step}   of goodfire-ai/spd")
    width = max(map(len, found.sites))
    for site, count in found.sites.items():
        say(console, f"{site:<{width}}   {count} components")
    for key in found.untranslated:
        say(console, f"has no counterpart here, and is left out of config.yaml: {key}")
    say(console, f"saved  {run_dir}")
    say(console, f"next   pd-eqx evaluate {run_dir}")
