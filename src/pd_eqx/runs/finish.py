"""The end of a run: its last evaluation, its figures, and `summary.json`, whose presence says that it is finished.

Everything is measured on the product as it was read back from its checkpoint, so that what is reported is what a
consumer will open.
"""

from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax

from pd_eqx import processes
from pd_eqx.evals.evaluation import Result
from pd_eqx.runs.assembly import Assembly
from pd_eqx.runs.directory import RunDirectory, read_json, write_json
from pd_eqx.runs.inputs import recorded
from pd_eqx.runs.open import OpenedRun
from pd_eqx.runs.tracking import read_metrics
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target


def finish(run: OpenedRun, seconds: Callable[[], float]) -> dict[str, Any]:
    """Evaluates the last step in full, and writes figures and summary.

    **Arguments:**

    - `run`: opened at its last step.
    - `seconds`: how long the run has taken, all its processes together.

    **Returns:** the summary, in the first process; an empty one in the others.
    """
    report = evaluate(run)
    summary: dict[str, Any] = {}
    processes.by_first(lambda: summary.update(_written(run, report, seconds)))
    return summary


def _written(
    run: OpenedRun, report: dict[str, Any], seconds: Callable[[], float]
) -> dict[str, Any]:
    config = run.assembly.config
    record = read_json(run.directory.record)
    last = read_metrics(run.directory.metrics)[-1]
    summary = {
        "name": config.name,
        "seed": config.seed,
        "steps": run.step,
        "seconds": round(seconds(), 3),
        "resumes": record["resumes"],
        "donated_fraction": record["donated_fraction"],
        **_told_inputs(run.directory),
        **report,
        "losses": {
            name.removeprefix("loss/"): value
            for name, value in last.items()
            if name.startswith("loss/")
        },
        "versions": {name: metadata.version(name) for name in ("pd_eqx", "jax", "equinox")},
    }
    write_json(run.directory.summary, summary)
    return summary


def evaluate(run: OpenedRun) -> dict[str, Any]:
    """Evaluates an opened run in full and draws its figures.

    **Returns:** nested numbers, ready for JSON.
    """
    assembly = run.assembly
    measure = assembly.evaluation(in_full=True)
    result = measure(
        run.decomposition, run.target, assembly.evaluation_batches, assembly.keys.evaluation
    )
    draw_figures(run.directory, assembly, result, run.decomposition, run.target)
    return {"components": dict(assembly.counts), **result.report}


def _told_inputs(directory: RunDirectory) -> dict[str, Any]:
    """What the run read that lies elsewhere, in words."""
    told = {name: entry["told"] for name, entry in recorded(directory).items() if entry["told"]}
    return {"inputs": told} if told else {}


def draw_figures(
    directory: RunDirectory,
    assembly: Assembly,
    result: Result,
    decomposition: Decomposition,
    target: Target,
) -> None:
    """Writes into `figures/` what an evaluation and the run's records have the numbers for.

    Drawn once, by the first process. Of a copy of the product: whoever looks at a state itself from the host keeps it
    from being donated. Of several processes none has all of an array unless it is made whole.
    """
    product = assembly.whole(decomposition)
    if processes.count() > 1:
        product, target = jax.device_get((product, assembly.whole(target)))

    def draw() -> None:
        from pd_eqx.evals import figures

        records = read_metrics(directory.metrics)
        figures.save(figures.draw(result, product, target, records), directory.figures)

    processes.by_first(draw)
