"""Evaluation of a run: a set of metrics, compiled once, over any number of batches.

An evaluation is a value that knows its metrics; its compiled functions live as long as it does, so a run makes
it once and calls it at every cadence. All numbers follow from the decomposition, the target and the key.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.evals import means
from pd_eqx.evals.metric import Arrays, BatchMetric, ProductMetric, Report
from pd_eqx.evals.observation import decomposed_sites, draw_batch, observe
from pd_eqx.evals.shared_adversary import Attack, SharedAdversary
from pd_eqx.sharding import Layout
from pd_eqx.state import Decomposition
from pd_eqx.step import BatchSource, Target


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluation measures.

    - `batch`: metrics by a name of their own, pooled over `n_batches` batches. Each draws from its own key, which
      follows from its place, so a metric added at the end changes no other's numbers.
    - `product`: metrics of the decomposition alone.
    - `adversaries`: each climbs all of the batches together, at the price of drawing them again for every step.
    """

    batch: tuple[BatchMetric, ...]
    product: tuple[ProductMetric, ...] = ()
    n_batches: int = 16
    adversaries: tuple[SharedAdversary, ...] = ()

    def __post_init__(self) -> None:
        """Refuses an evaluation without a batch to look at."""
        if self.n_batches < 1:
            raise ValueError(f"n_batches is {self.n_batches}; evaluate on at least one batch")


@dataclasses.dataclass(frozen=True)
class Result:
    """What an evaluation found.

    - `report`: nested dictionaries of numbers, ready for JSON.
    - `arrays`: nested dictionaries of numpy arrays, for figures.
    """

    report: Report
    arrays: Arrays

    def flat(self, prefix: str = "") -> dict[str, float]:
        """The report's numbers under joined names, `reconstruction/ci_masked`, for a record of a logged step."""
        flat: dict[str, float] = {}
        _flatten(self.report, prefix, flat)
        return flat


class Evaluation:
    """A compiled evaluation; made by `make_evaluation`."""

    def __init__(self, settings: EvaluationSettings, layout: Layout | None = None) -> None:
        self.settings = settings
        self._layout = layout
        # Numbers are whole on every device, so that each process can read them.
        whole = None if layout is None else layout.replicated
        batch_and_key = None if layout is None else (layout.by_batch, layout.replicated)
        self._draw = jax.jit(draw_batch, out_shardings=batch_and_key)
        self._product = jax.jit(self.measure_product, out_shardings=whole)
        self._measure = jax.jit(self.measure_batch, out_shardings=whole)
        # Apart from the measuring, which would else compile once more for the first batch.
        self._combine = jax.jit(means.combine, donate_argnums=0)
        self._attacks = tuple(
            Attack(adversary, place, layout) for place, adversary in enumerate(settings.adversaries)
        )

    def __call__(
        self,
        decomposition: Decomposition,
        target: Target,
        batches: BatchSource,
        key: PRNGKeyArray,
        between: Callable[[], None] = lambda: None,
    ) -> Result:
        """Evaluates on `n_batches` fresh batches.

        **Arguments:**

        - `batches`: where they come from, in the same form as for the train step.
        - `key`: the evaluation's own; batch `i` draws from `fold_in(key, i)` alone.
        - `between`: called before each dispatch; what it raises ends the evaluation.
        """
        between()
        product = self._product(decomposition, target)
        pooled: Any = None
        for index in range(self.settings.n_batches):
            between()
            inputs, key_metrics = self._draw(batches, key, index)
            measured = self._measure(decomposition, target, inputs, key_metrics)
            pooled = measured if pooled is None else self._combine(pooled, measured)
        result = self.finish(pooled, product, decomposed_sites(decomposition, target))
        for attack in self._attacks:
            found = attack(decomposition, target, batches, key, self.settings.n_batches, between)
            _merge(result.report, {"reconstruction": {attack.adversary.name: found}}, "report")
        return result

    def compile(
        self, decomposition: Any, target: Target, batches: BatchSource, key: PRNGKeyArray
    ) -> None:
        """Compiles what a call with such arguments needs, and draws a batch; the adversaries' programs excepted.

        It may run in a thread of its own, beside other compilations.

        **Arguments:**

        - `decomposition`: its shapes, dtypes and places are enough.
        """
        self._product.lower(decomposition, target).compile()
        inputs, key_metrics = self._draw(batches, key, 0)
        measured = self._measure.lower(decomposition, target, inputs, key_metrics)
        measured.compile()
        place = None if self._layout is None else self._layout.replicated
        pooled = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            measured.out_info,
        )
        self._combine.lower(pooled, pooled).compile()

    def measure_product(self, decomposition: Decomposition, target: Target) -> tuple[Any, ...]:
        """What the metrics of the decomposition alone measure; pure."""
        return tuple(metric.measure(decomposition, target) for metric in self.settings.product)

    def measure_batch(
        self, decomposition: Decomposition, target: Target, inputs: Array, key: PRNGKeyArray
    ) -> tuple[Any, ...]:
        """What the batch metrics measure on one batch; pure."""
        seen = observe(decomposition, target, inputs)
        return tuple(
            metric.measure(seen, jax.random.fold_in(key, index))
            for index, metric in enumerate(self.settings.batch)
        )

    def init(
        self, decomposition: Decomposition, target: Target, inputs: Array, key: PRNGKeyArray
    ) -> tuple[Any, ...]:
        """Pooled means before the first batch; pure, and reads no more than shapes.

        With `update` and `finish` it serves who has batches of their own: the pooled means are a pytree.
        """
        shapes = eqx.filter_eval_shape(self.measure_batch, decomposition, target, inputs, key)
        return means.nothing_seen(shapes)

    def update(
        self,
        pooled: tuple[Any, ...],
        decomposition: Decomposition,
        target: Target,
        inputs: Array,
        key: PRNGKeyArray,
    ) -> tuple[Any, ...]:
        """Pooled means after one more batch; pure."""
        return means.combine(pooled, self.measure_batch(decomposition, target, inputs, key))

    def finish(self, pooled: tuple[Any, ...], product: tuple[Any, ...], sites: list[str]) -> Result:
        """What the pooled means and the product's measurements say."""
        report: Report = {}
        arrays: Arrays = {}
        measured = jax.device_get((product, means.values(pooled)))
        for metrics, found in zip(
            (self.settings.product, self.settings.batch), measured, strict=True
        ):
            for metric, value in zip(metrics, found, strict=True):
                of_metric = metric.report(value, sites)
                _merge(report, of_metric[0], "report")
                _merge(arrays, of_metric[1], "arrays")
        return Result(report, arrays)


def make_evaluation(settings: EvaluationSettings, layout: Layout | None = None) -> Evaluation:
    """An evaluation that compiles at its first call, once for each shape of its arguments.

    **Arguments:**

    - `layout`: of the run, on a mesh: batches lie with its batches, and numbers on every device.
    """
    return Evaluation(settings, layout)


def _merge(into: dict[str, Any], more: Mapping[str, Any], path: str) -> None:
    """Deep, and refusing to write one number over another."""
    for name, value in more.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value, f"{path}/{name}")
        elif name in into:
            raise ValueError(f"two metrics of one evaluation report {path}/{name}; rename one")
        else:
            into[name] = value


def _flatten(report: Mapping[str, Any], prefix: str, into: dict[str, float]) -> None:
    for name, value in report.items():
        if isinstance(value, Mapping):
            _flatten(value, f"{prefix}{name}/", into)
        elif isinstance(value, int | float | np.number):
            into[f"{prefix}{name}"] = float(value)
