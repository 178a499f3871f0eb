"""A report of a run: what its files hold, and what is measured again on its product.

Numbers and curves come from the run's own records; densities and importances are measured anew, because a run keeps no
arrays. Only the product is read, and nothing is written, so a run can be looked at while it goes on.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from pd_eqx.evals.activity import Activity
from pd_eqx.evals.evaluation import make_evaluation
from pd_eqx.evals.observation import decomposed_sites, draw_batch, observe
from pd_eqx.evals.patterns import SingleFeatures
from pd_eqx.evals.reconstruction import LanguageModelling, Reconstruction
from pd_eqx.report.curves import panels
from pd_eqx.report.model import Harvested, Heat, Matrix, Reads, Report, RunFacts, SiteReport
from pd_eqx.runs.config_file import dump_config
from pd_eqx.runs.directory import read_json
from pd_eqx.runs.open import OpenedRun
from pd_eqx.runs.tracking import read_metrics

# Of a heat map: sequences of tokens, positions of each, components.
SEQUENCES = 4
POSITIONS = 64
COLUMNS = 96
FAINT = 0.05

_DISTANCES = {
    "MeanSquaredError": "mean squared error",
    "KLDivergence": "KL divergence, nats",
}


def collect(
    run: OpenedRun,
    harvest: Harvested | None = None,
    vocabulary: Mapping[int, str] | None = None,
) -> Report:
    """Everything that a report of an opened run shows.

    **Arguments:**

    - `harvest`: what a harvest of the same product found.
    - `vocabulary`: the words for tokens by id; without, tokens are shown as numbers.

    **Errors:** `RunDirectoryError` for a summary that cannot be read.
    """
    config, target = run.assembly.config, run.target
    words = dict(vocabulary or {})
    settings = config.target.evaluation(config.evaluation, run.assembly.counts, in_full=True)
    activity = next(metric for metric in settings.batch if isinstance(metric, Activity))
    probes = tuple(metric for metric in settings.product if isinstance(metric, SingleFeatures))
    narrowed = dataclasses.replace(settings, batch=(activity,), product=probes, adversaries=())
    measured = make_evaluation(narrowed)(
        run.decomposition, target, run.assembly.evaluation_batches, run.assembly.keys.evaluation
    )
    arrays, sites = measured.arrays, decomposed_sites(run.decomposition, target)
    activities = _activities(arrays, sites, activity, settings.n_batches, harvest)
    reads, tokens, sampled = _sample(run)
    numbers = _numbers(run)
    matrices = jax.device_get((run.decomposition.components, target.weights()))
    responses = arrays.get("single_features", {})
    heats = (
        _heats_of_features(responses, arrays["order"])
        if responses
        else _heats_of_sequences(tokens, sampled, arrays["mean_importance"], words, reads)
    )
    spans = _spans(run.decomposition.components.counts, sites)

    def site_report(name: str) -> SiteReport:
        weight = np.asarray(matrices[1][name])
        geometry = _at(numbers, "geometry", name)
        return SiteReport(
            name=name,
            V=np.asarray(matrices[0].V[name], np.float32),
            U=np.asarray(matrices[0].U[name], np.float32),
            weight=np.asarray(weight, np.float32),
            features=_feature_side(weight) if responses else None,
            alive=int(np.sum(activities.alive[spans[name]])),
            l0=float(np.sum(activities.density[spans[name]])),
            unexplained=_number(_at(numbers, "faithfulness_relative", name)),
            histogram=arrays.get("histogram", {}).get(name),
            response=responses.get(name),
            heats=heats[name],
            facts=_site_facts(geometry, _at(numbers, "identity_ci_error", name)),
        )

    costs = (m for m in settings.batch if isinstance(m, Reconstruction | LanguageModelling))
    distance = next(costs).distance
    return Report(
        run=_run_facts(run, _DISTANCES.get(type(distance).__name__, type(distance).__name__)),
        reads=reads,
        numbers=numbers,
        panels=panels(read_metrics(run.directory.metrics)),
        sites=tuple(site_report(name) for name in sites),
        density=activities.density,
        mean=activities.mean,
        alive=activities.alive,
        above=activity.alive_importance,
        alive_rule=activity.rule,
        measured_on=activities.measured_on,
        vocabulary=words,
        harvest=harvest,
    )


class _Activities(NamedTuple):
    """How active each of all components is, and on what that was measured."""

    density: Float[ndarray, " N"]
    mean: Float[ndarray, " N"]
    alive: Bool[ndarray, " N"]
    measured_on: str


def _activities(
    arrays: Mapping[str, Any],
    sites: Sequence[str],
    activity: Activity,
    batches: int,
    harvest: Harvested | None,
) -> _Activities:
    """Of the harvest, which saw more, if it counts what the run counts as active."""
    above = activity.alive_importance
    if harvest is not None and harvest.threshold == above:
        lives = harvest.density > activity.alive_share
        seen = f"the harvest's {harvest.positions:,} positions".replace(",", "\u202f")
        return _Activities(harvest.density, harvest.mean, lives, seen)

    def flat(of: Mapping[str, Any]) -> ndarray:
        return np.concatenate([np.asarray(of[name]) for name in sites])

    density = flat({name: of[str(above)] for name, of in arrays["density"].items()})
    means, lives = flat(arrays["mean_importance"]), flat(arrays["alive"])
    return _Activities(density, means, lives, f"{batches} batches, drawn for this report")


def _spans(counts: Mapping[str, int], sites: Sequence[str]) -> dict[str, slice]:
    """Where each site's components stand among all."""
    ends = list(itertools.accumulate(counts[site] for site in sites))
    starts = [0, *ends[:-1]]
    return {site: slice(*span) for site, *span in zip(sites, starts, ends, strict=True)}


def _sample(run: OpenedRun) -> tuple[Reads, Int[ndarray, "n length"], dict[str, ndarray]]:
    """What the target reads; and, where that is tokens, a few sequences with the importances on them, by site."""

    @eqx.filter_jit
    def look(decomposition: Any, target: Any, batches: Any, key: Any) -> Any:
        inputs, _ = draw_batch(batches, key, jnp.int32(0))
        few = inputs[:SEQUENCES]
        return few, observe(decomposition, target, few).importances.lower

    drawn, found = jax.device_get(
        look(
            run.decomposition,
            run.target,
            run.assembly.evaluation_batches,
            run.assembly.keys.evaluation,
        )
    )
    if not np.issubdtype(drawn.dtype, np.integer):
        return "features", np.zeros((0, 0), np.int32), {}
    return "tokens", drawn[:, :POSITIONS], {site: ci[:, :POSITIONS] for site, ci in found.items()}


def _heats_of_features(
    responses: Mapping[str, Matrix], orders: Mapping[str, Int[ndarray, " C"]]
) -> dict[str, tuple[Heat, ...]]:
    return {
        site: (
            _heat(
                "one feature at a time",
                matrix,
                orders[site],
                tuple(f"feature {f}" for f in range(len(matrix))),
            ),
        )
        for site, matrix in responses.items()
    }


def _heats_of_sequences(
    tokens: Int[ndarray, "n length"],
    sampled: Mapping[str, Float[ndarray, "n length C"]],
    means: Mapping[str, Float[ndarray, " C"]],
    words: Mapping[int, str],
    reads: Reads,
) -> dict[str, tuple[Heat, ...]]:
    if reads != "tokens":
        return dict.fromkeys(means, ())
    return {
        site: tuple(
            _heat(
                f"sequence {number + 1}",
                importances,
                np.argsort(-means[site], kind="stable"),
                tuple(words.get(int(token), str(token)) for token in sequence),
            )
            for number, (sequence, importances) in enumerate(
                zip(tokens, sampled[site], strict=True)
            )
            if importances.shape[0] == len(sequence)
        )
        for site in means
    }


def _heat(title: str, matrix: Matrix, order: Int[ndarray, " C"], rows: tuple[str, ...]) -> Heat:
    """The columns in order, without those at the end that are faint in every row, and `COLUMNS` of them at most."""
    ordered = matrix[:, order]
    matter = np.flatnonzero(ordered.max(axis=0) >= FAINT)
    # As wide as it is tall at least, where there are so many: the diagonal of a perfect pattern is seen as one.
    last = max(int(matter[-1]) + 1 if matter.size else 0, min(len(rows), 24))
    kept = min(last, COLUMNS, len(order))
    hidden = ordered[:, kept:]
    return Heat(
        title,
        ordered[:, :kept],
        np.asarray(order[:kept]),
        rows,
        hidden=hidden.shape[1],
        faint=max(FAINT, float(hidden.max(initial=0.0))),
    )


def _numbers(run: OpenedRun) -> dict[str, Any]:
    """The last evaluation at the shown step: of the summary, else of the records, else nothing."""
    if run.directory.summary.exists():
        summary = read_json(run.directory.summary)
        if summary.get("steps") == run.step:
            return summary
    nested: dict[str, Any] = {}
    for record in read_metrics(run.directory.metrics):
        if record["step"] != run.step:
            continue
        for name, value in record.items():
            *path, last = name.removeprefix("eval/").split("/")
            if name.startswith("eval/"):
                within = nested
                for part in path:
                    within = within.setdefault(part, {})
                within[last] = value
    return nested


def _run_facts(run: OpenedRun, distance: str) -> RunFacts:
    config, directory = run.assembly.config, run.directory
    summary = read_json(directory.summary) if directory.summary.exists() else {}
    record = read_json(directory.record) if directory.record.exists() else {}
    records = read_metrics(directory.metrics)
    seconds = summary.get("seconds") or (records[-1]["seconds"] if records else None)
    versions = summary.get("versions", {"jax": record["jax"]} if "jax" in record else {})
    facts = {
        "target": str(config.target.kind).replace("_", " "),
        "importance function": str(config.ci_fn.kind).replace("_", " "),
        "data": str(config.data.kind).replace("_", " "),
        "seed": str(config.seed),
        "resumed": f"{record.get('resumes', 0)} times",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return RunFacts(
        name=config.name,
        step=run.step,
        steps=config.steps,
        seconds=seconds,
        finished=bool(summary),
        distance=distance,
        config=dump_config(config),
        facts={name: words for name, words in facts.items() if words},
    )


def _site_facts(geometry: Any, errors: Any) -> dict[str, str]:
    facts: dict[str, str] = {}
    if isinstance(geometry, Mapping):
        facts["mean cosine to the target"] = f"{geometry['mmcs']:.4f}"
        facts["mean ratio of lengths"] = f"{geometry['ml2r']:.4f}"
    if isinstance(errors, Mapping):
        facts["pattern errors"] = ", ".join(f"{int(n)} at {at}" for at, n in errors.items())
    return facts


def _feature_side(weight: Matrix) -> Literal["in", "out"]:
    return "in" if weight.shape[0] >= weight.shape[1] else "out"


def _at(numbers: Mapping[str, Any], *path: str) -> Any:
    found: Any = numbers
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
