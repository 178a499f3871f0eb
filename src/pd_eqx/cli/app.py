"""The commands of `pd-eqx`, put together.

Each command is a plain function that typer reads; a new one is imported and listed here.
"""

import typer

from pd_eqx.cli.checkpoints import diff, inspect, migrate, strip, verify
from pd_eqx.cli.cluster import cluster
from pd_eqx.cli.evaluate import evaluate
from pd_eqx.cli.export import export
from pd_eqx.cli.harvest import harvest, merge_harvests
from pd_eqx.cli.import_spd import import_spd
from pd_eqx.cli.interpret import interpret
from pd_eqx.cli.invariance import invariance
from pd_eqx.cli.plan import plan
from pd_eqx.cli.prepare import prepare
from pd_eqx.cli.report import report
from pd_eqx.cli.train import train


def build() -> typer.Typer:
    """All commands, by name."""
    app = typer.Typer(
        name="pd-eqx",
        help="Takes trained networks apart into rank-one components.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for command in (
        prepare,
        plan,
        train,
        invariance,
        evaluate,
        report,
        inspect,
        verify,
        diff,
        strip,
        migrate,
        harvest,
        merge_harvests,
        cluster,
        interpret,
        export,
        import_spd,
    ):
        app.command()(command)
    return app


def run() -> None:
    """Runs the command that the arguments name."""
    build()()
