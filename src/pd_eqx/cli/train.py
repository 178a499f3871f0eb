"""`pd-eqx train`: runs a configuration, or resumes it where it was."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pd_eqx.cli.devices import (
    Coordinator,
    Heartbeat,
    Process,
    Processes,
    Simulate,
    joined,
    simulate_devices,
)
from pd_eqx.cli.mistakes import CORRECTABLE, FAILED, told_plainly

if TYPE_CHECKING:
    from pd_eqx.runs.config import Config

_INTERRUPTED = 75


def train(
    config: Annotated[Path, typer.Argument(help="The run's configuration, a YAML file.")],
    run_dir: Annotated[
        Path,
        typer.Option(
            help="Where the run lives: empty or absent for a fresh one, else it is resumed."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Values instead of the file's."),
    ] = None,
    simulate: Simulate = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
    heartbeat: Heartbeat = 60,
) -> None:
    """Decompose a network, or go on where a run was stopped.

    SIGTERM, or SIGINT once, saves what is complete and exits with 75; the same command then resumes. Of a run in several
    processes each gets the same command but for --process; a signal to one of them stops all.
    """
    from pd_eqx.runs.preemption import SignalStop

    again = shlex.join(
        [
            *("pd-eqx", "train", str(config), "--run-dir", str(run_dir)),
            *(() if simulate is None else ("--simulate", str(simulate))),
            *(() if coordinator is None else ("--coordinator", coordinator)),
            *(() if processes is None else ("--processes", str(processes))),
            *(() if process is None else ("--process", str(process))),
            *(overrides or ()),
        ]
    )
    with SignalStop(f"go on with: {again}") as stop:
        configuration = _read(config, overrides or ())
        simulate_devices(simulate)

        from rich.console import Console

        from pd_eqx.checkpoint import CheckpointError
        from pd_eqx.cli.console import ConsoleWatcher, print_summary, say
        from pd_eqx.runs import loop
        from pd_eqx.runs.config_file import ConfigError
        from pd_eqx.runs.directory import RunDirectoryError
        from pd_eqx.runs.executables import kept_executables
        from pd_eqx.runs.inputs import INPUT_ERRORS
        from pd_eqx.sharding import MeshError
        from pd_eqx.sites import UnknownSiteError
        from pd_eqx.targets.training import BadTargetError

        with (
            joined(coordinator, processes, process, heartbeat),
            told_plainly(
                CORRECTABLE,
                ConfigError,
                RunDirectoryError,
                UnknownSiteError,
                MeshError,
                *INPUT_ERRORS,
            ),
            told_plainly(FAILED, loop.NonFiniteError, BadTargetError, CheckpointError),
            kept_executables(),
        ):
            from pd_eqx.processes import is_first

            console = Console(quiet=not is_first())
            with ConsoleWatcher(console, configuration.name) as watcher:
                outcome = loop.train(configuration, run_dir, stop=stop, watcher=watcher)
    if outcome.summary is None:
        say(console, f"stopped; step {outcome.step} of {configuration.steps} is saved in {run_dir}")
        say(console, f"go on with: {again}")
        raise SystemExit(_INTERRUPTED)
    if not outcome.summary:
        return  # in all processes but the first
    if outcome.was_finished:
        say(console, f"{run_dir} is finished; there is nothing to do")
    print_summary(console, outcome.summary, run_dir)


def _read(path: Path, overrides: Sequence[str]) -> "Config":
    """The configuration, refused before anything slow is imported."""
    from pd_eqx.runs.config_file import ConfigError, load_config

    with told_plainly(CORRECTABLE, ConfigError):
        return load_config(path, overrides)
