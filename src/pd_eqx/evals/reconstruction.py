"""Reconstruction: how far the output moves when components are masked."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.evals.ablations import Ablation, Zeroed
from pd_eqx.evals.means import Mean, combine, mean_of
from pd_eqx.evals.metric import Arrays, BatchMetric, Report
from pd_eqx.evals.observation import Observation
from pd_eqx.losses import Distance, MeanSquaredError


def over_passes(
    seen: Observation,
    key: PRNGKeyArray,
    ablation: Ablation,
    distance: Distance,
    samples: int,
    measure: Callable[[Float[Array, "..."]], Any],
) -> Any:
    """A tree of means of `measure(masked output)`, over all passes of an ablation and all draws of it."""
    means: Any = None
    for sample in range(samples):
        for masks in ablation.passes(seen, jax.random.fold_in(key, sample), distance):
            measured = measure(seen.ablated(masks))
            means = measured if means is None else combine(means, measured)
    return means


@dataclasses.dataclass(frozen=True)
class Reconstruction(BatchMetric):
    """The distance of the masked output from the clean one, over all positions of all batches.

    - `name`: of its entry under `reconstruction`.
    - `ablation`: the masks; an adversary among them climbs `distance`.
    - `samples`: how many draws of the masks are averaged.
    - `also`: further distances, each by the name of the section that reports it.
    """

    name: str
    ablation: Ablation
    distance: Distance = MeanSquaredError()
    samples: int = 1
    also: tuple[tuple[str, Distance], ...] = ()

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, Mean]:
        """The mean of each distance, by section."""
        distances = {"reconstruction": self.distance, **dict(self.also)}

        def apart(outputs: Float[Array, "..."]) -> dict[str, Mean]:
            return {
                section: mean_of(distance(outputs, seen.clean), seen.positions)
                for section, distance in distances.items()
            }

        return over_passes(seen, key, self.ablation, self.distance, self.samples, apart)

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`{section: {name: distance}}`."""
        return {section: {self.name: float(value)} for section, value in values.items()}, {}


def next_token_cross_entropy(
    logits: Float[Array, "*batch sequence vocabulary"], tokens: Int[Array, "*batch sequence"]
) -> Mean:
    """The mean of `−log softmax(logits[t])[tokens[t + 1]]` in nats, at least in float32; the last position predicts nothing."""
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    log_p = jax.nn.log_softmax(logits[..., :-1, :].astype(dtype), axis=-1)
    chosen = jnp.take_along_axis(log_p, tokens[..., 1:, None], axis=-1)
    return mean_of(-jnp.mean(chosen), chosen.size)


@dataclasses.dataclass(frozen=True)
class CrossEntropy(BatchMetric):
    """What masking costs a language model in next-token cross-entropy; its inputs are the tokens.

    - `ablations`: by name. All-zero masks are always measured beside them.
    - `distance`: what an adversary among them climbs.

    Source: golden numbers `11_metrics`, `cekl`.
    """

    ablations: tuple[tuple[str, Ablation], ...]
    distance: Distance
    samples: int = 1

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, Any]:
        """The cross-entropy of the target, of all-zero masks, and of each ablation."""

        def of(outputs: Float[Array, "..."]) -> Mean:
            return next_token_cross_entropy(outputs, seen.inputs)

        ablated = {
            name: over_passes(
                seen,
                jax.random.fold_in(key, index),
                ablation,
                self.distance,
                self.samples,
                of,
            )
            for index, (name, ablation) in enumerate(self.ablations)
        }
        zeroed = over_passes(seen, key, Zeroed(), self.distance, 1, of)
        return {"target": of(seen.clean), "zeroed": zeroed, "ablated": ablated}

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """Cross-entropies; differences from the target's; and these as shares of what all-zero masks cost."""
        target, zeroed = float(values["target"]), float(values["zeroed"])
        ablated = {name: float(value) for name, value in values["ablated"].items()}
        lost = zeroed - target
        report = {
            "cross_entropy": {"target": target, "zeroed": zeroed, **ablated},
            "cross_entropy_difference": {name: ce - target for name, ce in ablated.items()},
            "cross_entropy_unrecovered": {
                name: (ce - target) / lost if lost else None for name, ce in ablated.items()
            },
        }
        return report, {}
