"""`pd-eqx interpret`: labels for components, from a language model."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, FAILED, told_plainly

if TYPE_CHECKING:
    from pd_eqx.interpret.labels import Label

_INTERRUPTED = 75


def interpret(
    harvest: Annotated[Path, typer.Argument(help="What `pd-eqx harvest` made.")],
    endpoint: Annotated[str, typer.Option(help="Any OpenAI-compatible URL, up to /v1.")],
    model: Annotated[str, typer.Option(help="The model's name there.")],
    yes: Annotated[bool, typer.Option("--yes", help="Ask; without, only tell the cost.")] = False,
    price_in: Annotated[float, typer.Option(min=0.0, help="Of a million tokens asked.")] = 0.0,
    price_out: Annotated[float, typer.Option(min=0.0, help="Of a million tokens answered.")] = 0.0,
    key_variable: Annotated[
        str, typer.Option(help="The environment variable that holds the endpoint's key.")
    ] = "OPENAI_API_KEY",
    per_minute: Annotated[float, typer.Option(min=0.1, help="Requests a minute at most.")] = 60.0,
    retries: Annotated[int, typer.Option(min=0, help="Of a request that failed.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    least: Annotated[int, typer.Option(min=1, help="Firings that a component needs.")] = 10,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many components, drawn at random; more go on with them."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; HARVEST/labels by default.")] = None,
) -> None:
    """Label components by a language model, and score each label on windows that it was not made from.

    Tells what it will cost, and asks nothing before --yes. Answers are kept: the same command goes on where it was.
    """
    from pd_eqx.harvest.store import HarvestError, read_about

    with told_plainly(CORRECTABLE, HarvestError):
        about = read_about(harvest)

    from rich.console import Console

    from pd_eqx.cli.console import say
    from pd_eqx.interpret import labels
    from pd_eqx.interpret.endpoint import Endpoint, EndpointError

    console = Console()
    to = harvest / "labels" if out is None else out
    settings = labels.InterpretSettings(least=least, sample=sample)
    if to.exists() and not to.is_dir():
        sys.stderr.write(f"pd-eqx: --out is {to}, which is no directory\n")
        raise SystemExit(CORRECTABLE)
    try:
        with told_plainly(CORRECTABLE, EndpointError):
            asking = Endpoint(
                endpoint,
                model,
                to / labels.ANSWERS,
                key=os.environ.get(key_variable),
                per_minute=per_minute,
                retries=retries,
            )
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f"pd-eqx: {missing.name} is not installed: pip install 'pd_eqx[interpret]'\n"
        )
        raise SystemExit(CORRECTABLE) from None
    with told_plainly(CORRECTABLE, HarvestError):
        asked = labels.questions(harvest, settings)
    needed = labels.estimate(asked, asking)
    cost = needed.cost(price_in, price_out)
    priced = f"   {cost:.2f} at the given prices" if price_in or price_out else ""
    say(console, f"{len(asked)} components   {needed.requests} requests to {model} at {endpoint}")
    say(
        console,
        f"at most {needed.tokens_in} tokens asked and {needed.tokens_out} answered{priced}   "
        f"{needed.requests / per_minute:.0f} minutes at {per_minute:g} a minute; twice as much if no answer can be read",
    )
    if not yes and needed.requests:
        say(console, "nothing was asked; add --yes")
        return

    def tell(label: "Label") -> None:
        score = "     " if label.score is None else f"{label.score:.2f} "
        say(console, f"{score} {label.site}/{label.index}  {label.label or '(no answer)'}")

    try:
        with told_plainly(FAILED, EndpointError):
            found = labels.interpret(asked, asking, threads=threads, watch=tell)
    except KeyboardInterrupt:
        say(console, f"stopped; the answers so far are in {to}; the same command goes on")
        raise SystemExit(_INTERRUPTED) from None
    summary = labels.write_labels(to, found, asking, about["product"], settings)
    mean = "" if summary["mean_score"] is None else f"   mean score {summary['mean_score']:.3f}"
    say(console, f"{summary['labelled']} labels, {summary['scored']} scored{mean} (0.5 is chance)")
    say(console, f"saved  {to}")
