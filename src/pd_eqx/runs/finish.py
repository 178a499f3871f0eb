"""The end of a run: its last evaluation, its figures, and `summary.json`, whose presence says that it is finished.

Reads nothing but the product out of the last checkpoint, so that what is reported is what a consumer will open.
"""

from collections.abc import Callable
from importlib import metadata
from typing import Any

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.evals.evaluation import Result
from pd_eqx.runs.assembly import Assembly
from pd_eqx.runs.directory import RunDirectory, read_json, write_json
from pd_eqx.targets.base import Target


def finish(
    directory: RunDirectory,
    assembly: Assembly,
    target: Target,
    store: CheckpointStore,
    seconds: Callable[[], float],
) -> dict[str, Any]:
    """Evaluates the last step in full and writes figures and summary.

    **Arguments:**

    - `seconds`: how long the run has taken, all its processes together.

    **Returns:** the summary.
    """
    config = assembly.config
    result = evaluate_step(assembly, target, store, config.steps)
    record = read_json(directory.record)
    summary = {
        "name": config.name,
        "seed": config.seed,
        "steps": config.steps,
        "seconds": round(seconds(), 3),
        "resumes": record["resumes"],
        "donated_fraction": record.get("donated_fraction"),
        **result.report,
        "versions": {name: metadata.version(name) for name in ("pd_eqx", "jax", "equinox")},
    }
    write_json(directory.summary, summary)
    return summary


def evaluate_step(assembly: Assembly, target: Target, store: CheckpointStore, step: int) -> Result:
    """The full evaluation of one checkpoint's product."""
    abstract = assembly.abstract(target).decomposition
    decomposition = store.restore_item("decomposition", abstract, step)
    evaluate = assembly.evaluation(in_full=True)
    return evaluate(decomposition, target, assembly.batches, assembly.keys.evaluation)
