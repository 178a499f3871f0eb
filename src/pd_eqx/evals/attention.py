"""How far attention patterns move under masks: an evaluation, never a loss that trains.

A masked model may give the right output while its heads look elsewhere. Patterns are quadratic in the length of the
sequence, so those of one layer at a time are compared, and only of layers that masks can reach.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.evals.ablations import Ablation
from pd_eqx.evals.means import Mean, combine, mean_of
from pd_eqx.evals.metric import Arrays, BatchMetric, Report
from pd_eqx.evals.observation import Observation
from pd_eqx.losses import Distance


@runtime_checkable
class Attending(Protocol):
    """A target whose attention probabilities follow from what some of its sites say."""

    def attention_sites(self) -> list[tuple[str, ...]]:
        """For each layer, the sites that its pattern follows from."""
        ...

    def attention_pattern(
        self, layer: int, site_outputs: Mapping[str, Float[Array, "..."]]
    ) -> Float[Array, "*lead heads T T"]:
        """The attention probabilities of one layer, from what its sites said before any bias."""
        ...


@dataclasses.dataclass(frozen=True)
class AttentionPatterns(BatchMetric):
    """`KL(clean ‖ masked)` of each layer's attention probabilities in nats, mean over positions and heads.

    Layers before the first decomposed site cannot move and are left out; so is a target without attention.

    - `ablations`: by name. Each draws by its place.
    - `distance`: of the outputs; what an adversary among the ablations climbs.
    """

    ablations: tuple[tuple[str, Ablation], ...]
    distance: Distance

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, dict[str, Mean]]:
        """By ablation and layer."""
        target = seen.target
        if not isinstance(target, Attending):
            return {}
        layers = reached(seen)
        if not layers:
            return {}
        recorded = [site for sites in layers.values() for site in sites]
        _, clean = seen.ablated_activations({}, recorded)
        measured: dict[str, dict[str, Mean]] = {}
        for index, (name, ablation) in enumerate(self.ablations):
            passes = ablation.passes(seen, jax.random.fold_in(key, index), self.distance)
            for masks in passes:
                _, ablated = seen.ablated_activations(masks, recorded)
                moved = {
                    _name(sites): _divergence(
                        target.attention_pattern(layer, clean),
                        target.attention_pattern(layer, ablated),
                    )
                    for layer, sites in layers.items()
                }
                measured[name] = combine(measured[name], moved) if name in measured else moved
        return measured

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`attention_patterns`: by ablation, the mean over layers as `total`, and each layer."""
        report = {
            name: {
                "total": math.fsum(map(float, by_layer.values())) / len(by_layer),
                **{layer: float(value) for layer, value in by_layer.items()},
            }
            for name, by_layer in values.items()
        }
        return ({"attention_patterns": report} if report else {}), {}


def reached(seen: Observation) -> dict[int, tuple[str, ...]]:
    """The layers whose pattern can move, each with the sites that it follows from."""
    target = seen.target
    if not isinstance(target, Attending):
        return {}
    place = {site.name: index for index, site in enumerate(seen.target.sites())}
    first = min(place[site] for site in seen.components.V)
    return {
        layer: sites
        for layer, sites in enumerate(target.attention_sites())
        if max(place[site] for site in sites) >= first
    }


def _name(sites: tuple[str, ...]) -> str:
    """What a layer's sites have in common: `layers.3.attn` of `layers.3.attn.q` and `layers.3.attn.k`."""
    return sites[0].rpartition(".")[0]


def _divergence(
    clean: Float[Array, "*lead heads T T"], masked: Float[Array, "*lead heads T T"]
) -> Mean:
    """Finite even where a masked probability is rounded to 0: it then counts as the smallest normal number."""
    tiny = jnp.finfo(clean.dtype).tiny
    log_ratio = jnp.log(jnp.maximum(clean, tiny)) - jnp.log(jnp.maximum(masked, tiny))
    kl = jnp.sum(jnp.where(clean > 0.0, clean * log_ratio, 0.0), axis=-1)
    return mean_of(jnp.mean(kl), kl.size)
