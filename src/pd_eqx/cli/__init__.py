"""The command line: `pd-eqx COMMAND`.

Each module here holds one group of commands, as plain functions that typer reads. What a command works with is
imported inside it: `pd-eqx --help` has to answer before JAX could be imported.
"""

import typer

from pd_eqx.cli.checkpoints import diff, inspect, migrate, strip, verify
from pd_eqx.cli.evaluate import evaluate
from pd_eqx.cli.train import train

__all__ = ["main"]


def main() -> None:
    """Runs the command that the arguments name."""
    app = typer.Typer(
        name="pd-eqx",
        help="Takes trained networks apart into rank-one components.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for command in (train, evaluate, inspect, verify, diff, strip, migrate):
        app.command()(command)
    app()
