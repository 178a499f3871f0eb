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
from pd_eqx.unembedding import Head, Outputs, Unembedding, mean_by_position


def over_passes(
    seen: Observation,
    key: PRNGKeyArray,
    ablation: Ablation,
    distance: Distance,
    samples: int,
    measure: Callable[[Outputs], Any],
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

        def apart(outputs: Outputs) -> dict[str, Mean]:
            return {
                section: mean_of(distance(outputs, seen.clean), seen.positions)
                for section, distance in distances.items()
            }

        return over_passes(seen, key, self.ablation, self.distance, self.samples, apart)

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`{section: {name: distance}}`."""
        return {section: {self.name: float(value)} for section, value in values.items()}, {}


def next_token_cross_entropy(
    outputs: Outputs, tokens: Int[Array, "*batch sequence"], at_once: int = 1 << 24
) -> Mean:
    """The mean of `−log softmax(logits[t])[tokens[t + 1]]` in nats, at least in float32; the last position predicts nothing.

    **Arguments:**

    - `outputs`: logits `[*batch, sequence, vocabulary]`, or hidden states with their head.
    - `at_once`: see `pd_eqx.unembedding.mean_by_position`.
    """
    following = tokens[..., 1:]
    if isinstance(outputs, Unembedding):
        before = Unembedding(outputs.hidden[..., :-1, :], outputs.head)
        mean = mean_by_position(_surprise_apart, before, following, None, at_once)
    else:
        mean = jnp.mean(_surprise(outputs[..., :-1, :], following))
    return mean_of(mean, following.size)


def _surprise(
    logits: Float[Array, "*lead vocabulary"], tokens: Int[Array, "*lead"]
) -> Float[Array, "*lead"]:
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    log_p = jax.nn.log_softmax(logits.astype(dtype), axis=-1)
    return -jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]


def _surprise_apart(hidden: Array, tokens: Array, fixed: tuple[Head, None]) -> Array:
    head, _ = fixed
    return _surprise(head(hidden), tokens)


@dataclasses.dataclass(frozen=True)
class LanguageModelling(BatchMetric):
    """What masking costs a language model: the distance from its own outputs, and its next-token cross-entropy.

    One masked forward serves both. All-zero masks are always measured beside the ablations, because costs are also
    told as shares of what those cost. The inputs are the tokens.

    - `ablations`: by name. Each draws by its place, so one that is added at the end changes no other's numbers.
    - `distance`: what is reported as `reconstruction`, and what an adversary among them climbs.

    Source: golden numbers `11_metrics`, `cekl`.
    """

    ablations: tuple[tuple[str, Ablation], ...]
    distance: Distance
    samples: int = 1

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, Any]:
        """The cross-entropy of the target, and both costs of all-zero masks and of each ablation."""

        def costs(outputs: Outputs) -> dict[str, Mean]:
            return {
                "distance": mean_of(self.distance(outputs, seen.clean), seen.positions),
                "cross_entropy": next_token_cross_entropy(outputs, seen.inputs),
            }

        ablated = {
            name: over_passes(
                seen,
                jax.random.fold_in(key, index),
                ablation,
                self.distance,
                self.samples,
                costs,
            )
            for index, (name, ablation) in enumerate(self.ablations)
        }
        return {
            "target": next_token_cross_entropy(seen.clean, seen.inputs),
            "zeroed": over_passes(seen, key, Zeroed(), self.distance, 1, costs),
            "ablated": ablated,
        }

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """Distances and cross-entropies, differences of these from the target's, and the shares recovered.

        A share is 1 where masks cost nothing, 0 where they cost as much as all-zero ones, and None where
        those cost nothing.
        """
        of = {**values["ablated"], "zeroed": values["zeroed"]}
        distances = {name: float(value["distance"]) for name, value in of.items()}
        entropies = {name: float(value["cross_entropy"]) for name, value in of.items()}
        target = float(values["target"])
        added = {name: entropy - target for name, entropy in entropies.items()}
        report = {
            "reconstruction": distances,
            "reconstruction_recovered": _recovered(distances),
            "cross_entropy": {"target": target, **entropies},
            "cross_entropy_difference": added,
            "cross_entropy_recovered": _recovered(added),
        }
        return report, {}


def _recovered(costs: dict[str, float]) -> dict[str, float | None]:
    """What each keeps of the difference between all-zero masks and none."""
    worst = costs["zeroed"]
    return {
        name: 1.0 - cost / worst if worst else None
        for name, cost in costs.items()
        if name != "zeroed"
    }
