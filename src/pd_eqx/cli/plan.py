"""`pd-eqx plan`: what a run will need of each device, before anything is paid for."""

import sys
from json import dumps as format_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pd_eqx.cli.devices import simulate_devices
from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly

if TYPE_CHECKING:
    from pd_eqx.runs.plan import Plan


def plan(
    config: Annotated[Path, typer.Argument(help="The run's configuration, a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Values instead of the file's."),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="RxFxT",
            help="Devices along replica, fsdp and tensor, such as 4x8x2; by default the configured mesh.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print all numbers as JSON instead.")
    ] = False,
) -> None:
    """Compile a run's step for any number of devices without making a weight, and print what each device needs.

    Of a published model only its config.json is read, and of a corpus nothing.
    """
    import math

    from pd_eqx.runs.config_file import ConfigError, load_config

    with told_plainly(CORRECTABLE, ConfigError):
        configuration = load_config(config, overrides or ())
        configured = configuration.mesh.model_dump().values()
        asked = mesh or "x".join("null" if size is None else str(size) for size in configured)
        sizes = asked.split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise ConfigError(
                f"--mesh: expected three numbers like 4x8x2 (replica x fsdp x tensor), found {asked!r}"
            )
    replica, fsdp, tensor = map(int, sizes)
    simulate_devices(math.prod((replica, fsdp, tensor)))

    from pd_eqx.runs.inputs import INPUT_ERRORS
    from pd_eqx.runs.plan import plan as planned
    from pd_eqx.sharding import MeshError, MeshShape
    from pd_eqx.sites import UnknownSiteError

    with told_plainly(CORRECTABLE, ConfigError, MeshError, UnknownSiteError, *INPUT_ERRORS):
        found = planned(configuration, MeshShape(replica, fsdp, tensor))
    if json:
        sys.stdout.write(format_json(_numbers(found), indent=2) + "\n")
    else:
        _print(configuration.name, found)


def _numbers(plan: "Plan") -> dict[str, object]:
    import dataclasses

    derived = {name: getattr(plan, name) for name in ("state_bytes", "step_peak", "resume_peak")}
    return {**dataclasses.asdict(plan), **derived, "limit": plan.limit}


def _print(name: str, plan: "Plan") -> None:
    from rich.console import Console

    from pd_eqx.cli.console import readable_bytes, say

    console = Console()
    sizes = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    say(console, f"{name}   {sizes}; all bytes are of one device unless said otherwise")
    rows = [(group, size) for group, size in sorted(plan.state.items())]
    rows += [("state", plan.state_bytes), ("target", plan.target)]
    for label, size in rows:
        say(console, f"  {label:<46} {readable_bytes(size):>10}")
    if plan.copied:
        say(
            console,
            f"  of the state, copied where it does not tile     {readable_bytes(plan.copied):>10}",
        )
    for label, size in (
        ("step: arguments", plan.arguments),
        ("step: aliased with outputs", plan.aliased),
        ("step: temporaries", plan.temporaries),
        ("step: peak", plan.step_peak),
        ("resume: peak", plan.resume_peak),
        ("checkpoint, all devices together", plan.checkpoint),
    ):
        say(console, f"  {label:<46} {readable_bytes(size):>10}")
    for kind, (count, size) in plan.work.collectives.items():
        say(console, f"  {f'{kind} an update, {count} of them':<46} {readable_bytes(size):>10}")
    say(console, f"  {'matrix products an update':<46} {plan.work.flops / 1e12:>7.3g} TFLOP")
    say(console, f"the batch is limited by {plan.limit}")
