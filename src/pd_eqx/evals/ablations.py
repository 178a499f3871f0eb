"""Ablations: which masks an evaluation runs the target under."""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.evals.observation import Observation
from pd_eqx.losses import Distance
from pd_eqx.masks import (
    AllSites,
    ConstantSource,
    MaskSource,
    Routing,
    SiteMask,
    SiteSource,
    StochasticSource,
    Unmasked,
    interpolate,
)

# The masks of one forward pass.
Masks = dict[str, SiteMask]


class Ablation(abc.ABC):
    """A way of masking a batch."""

    @abc.abstractmethod
    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        """The masks of each forward pass; what is measured on them is averaged.

        **Arguments:**

        - `seen`: the batch.
        - `key`: for ablations that draw.
        - `distance`: what an adversary climbs.
        """


@dataclasses.dataclass(frozen=True)
class Interpolated(Ablation):
    """Masks `ci + (1 − ci) · source` as in training: stochastic, adversarial, or a constant source."""

    source: MaskSource
    routing: Routing = AllSites()

    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        """See `Ablation.passes`."""
        importances = seen.importances.lower
        key_route, key_source = jax.random.split(key)
        routes = self.routing.passes(key_route, tuple(importances), seen.lead)

        def loss(sources: Mapping[str, SiteSource]) -> Array:
            total = jnp.zeros(())
            for route in routes:
                outputs = seen.ablated(interpolate(importances, sources, route))
                total = total + distance(outputs, seen.clean)
            return total / len(routes)

        sources = self.source.draw(key_source, importances, loss)
        return [interpolate(importances, sources, route) for route in routes]


@dataclasses.dataclass(frozen=True)
class Rounded(Ablation):
    """Components of importance above `threshold` stay whole, all others go: what a reader of a heat map assumes."""

    threshold: float = 0.4

    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        """See `Ablation.passes`."""
        return [
            {
                site: SiteMask((ci > self.threshold).astype(ci.dtype))
                for site, ci in seen.importances.lower.items()
            }
        ]


@dataclasses.dataclass(frozen=True)
class Zeroed(Ablation):
    """Every decomposed site gives 0 (biases stay): the worst that a decomposition is compared with."""

    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        """See `Ablation.passes`."""
        return [
            {site: SiteMask(jnp.zeros((), ci.dtype)) for site, ci in seen.importances.lower.items()}
        ]


@dataclasses.dataclass(frozen=True)
class RandomMasks(Ablation):
    """Uniform masks in [0, 1) that do not look at the importances."""

    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        """See `Ablation.passes`."""
        return [
            {
                site: SiteMask(
                    jax.random.uniform(jax.random.fold_in(key, index), ci.shape, ci.dtype)
                )
                for index, (site, ci) in enumerate(seen.importances.lower.items())
            }
        ]


CI_MASKED = Interpolated(ConstantSource(0.0))
UNMASKED = Interpolated(Unmasked())
STOCHASTIC = Interpolated(StochasticSource())
