"""Masks: how much of each component stays, where, and in which of a term's forward passes.

A mask is `m = ci + (1 − ci) · source` with a source in [0, 1]: a component of importance 1 always stays,
one of importance 0 may be ablated to anywhere. The delta channel, what the components leave
unexplained, has importance 0, so its mask is the source itself. Where sources come from is a `MaskSource`;
which sites are masked at which position is a `Routing`.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


class SiteMask(eqx.Module):
    """How one site is masked; shapes need only broadcast against the site's positions `*lead`.

    - `component`: factor of each component `[*lead, C]`, or None for all ones.
    - `delta`: factor of the delta `[*lead]`, or None to leave the delta out.
    - `route`: positions that take the masked path `[*lead]`, or None for all.
    """

    component: Float[Array, "..."] | None
    delta: Float[Array, "..."] | None = None
    route: Bool[Array, "..."] | None = None


class SiteSource(eqx.Module):
    """Sources in [0, 1] of one site; shapes need only broadcast against its positions `*lead`.

    - `component`: `[*lead, C]`.
    - `delta`: `[*lead]`, or None to leave the delta out.
    """

    component: Float[Array, "..."]
    delta: Float[Array, "..."] | None = None


# One forward pass of a term: the sites that are masked in it, each with its route (None: everywhere).
Routes = dict[str, Bool[Array, "..."] | None]


def interpolate(
    importances: Mapping[str, Float[Array, "..."]],
    sources: Mapping[str, SiteSource],
    routes: Routes,
) -> dict[str, SiteMask]:
    """The masks of one forward pass: `ci + (1 − ci) · source` for each routed site.

    **Arguments:**

    - `importances`: lower-squashed importances `[*lead, C]` by site.
    - `sources`: by site; at least the routed ones.
    - `routes`: the sites of this pass.

    Source: golden numbers `03_masks_routing`.
    """
    masks: dict[str, SiteMask] = {}
    for site, route in routes.items():
        ci, source = importances[site], sources[site]
        component = ci + (1.0 - ci) * source.component.astype(ci.dtype)
        delta = None if source.delta is None else source.delta.astype(ci.dtype)
        masks[site] = SiteMask(component, delta, route)
    return masks


class MaskSource(abc.ABC):
    """Where the sources of a reconstruction term come from."""

    @abc.abstractmethod
    def draw(
        self,
        key: PRNGKeyArray,
        importances: Mapping[str, Float[Array, "..."]],
        loss: Callable[[Mapping[str, SiteSource]], Float[Array, ""]],
    ) -> dict[str, SiteSource]:
        """Sources for each site.

        **Arguments:**

        - `importances`: lower-squashed, `[*lead, C]` by site; their shapes are the masks'.
        - `loss`: the term's loss as a function of the sources alone, for those that climb it: components and
          importances are held fixed in it, and so are the routes.
        """


@dataclasses.dataclass(frozen=True)
class StochasticSource(MaskSource):
    """Uniform draws in [0, 1), independent at each position; the delta's too, if there is a delta channel."""

    delta: bool = True

    def draw(
        self,
        key: PRNGKeyArray,
        importances: Mapping[str, Float[Array, "..."]],
        loss: Callable[[Mapping[str, SiteSource]], Float[Array, ""]],
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        sources: dict[str, SiteSource] = {}
        for index, (site, ci) in enumerate(importances.items()):
            key_c, key_d = jax.random.split(jax.random.fold_in(key, index))
            delta = jax.random.uniform(key_d, ci.shape[:-1], ci.dtype) if self.delta else None
            sources[site] = SiteSource(jax.random.uniform(key_c, ci.shape, ci.dtype), delta)
        return sources


@dataclasses.dataclass(frozen=True)
class ConstantSource(MaskSource):
    """One value everywhere, without the delta: 0 gives masks equal to the importances, 1 leaves all unmasked."""

    constant: float

    def draw(
        self,
        key: PRNGKeyArray,
        importances: Mapping[str, Float[Array, "..."]],
        loss: Callable[[Mapping[str, SiteSource]], Float[Array, ""]],
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        return {
            site: SiteSource(jnp.full((), self.constant, ci.dtype))
            for site, ci in importances.items()
        }


class Routing(abc.ABC):
    """Which sites are masked, where, in each forward pass of a term."""

    @abc.abstractmethod
    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """The passes of one evaluation; their distances are averaged.

        **Arguments:**

        - `key`: for routings that draw.
        - `sites`: all decomposed sites.
        - `lead`: the positions' shape.
        """


@dataclasses.dataclass(frozen=True)
class AllSites(Routing):
    """Every site at every position, in one pass."""

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """See `Routing.passes`."""
        return [dict.fromkeys(sites)]


@dataclasses.dataclass(frozen=True)
class OneSiteAtATime(Routing):
    """As many passes as sites, each with one site masked: the layerwise terms."""

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """See `Routing.passes`."""
        return [{site: None} for site in sites]


@dataclasses.dataclass(frozen=True)
class UniformSubset(Routing):
    """At each position `k` sites, `k` uniform in 1 … n, chosen uniformly: the ranks of uniform noise below `k`."""

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """See `Routing.passes`."""
        key_k, key_noise = jax.random.split(key)
        k = jax.random.randint(key_k, lead, 1, len(sites) + 1)
        noise = jax.random.uniform(key_noise, (len(sites), *lead))
        return [uniform_subset(k, noise, sites)]


def uniform_subset(k: Array, noise: Array, sites: Sequence[str]) -> Routes:
    """Routes `[*lead]` from counts `k [*lead]` and noise `[n_sites, *lead]`."""
    ranks = jnp.argsort(jnp.argsort(noise, axis=0), axis=0)
    return {site: ranks[index] < k for index, site in enumerate(sites)}


@dataclasses.dataclass(frozen=True)
class StaticProbability(Routing):
    """Each site at each position with one probability, independently; none at all may be drawn."""

    probability: float

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """See `Routing.passes`."""
        return [
            {
                site: jax.random.uniform(jax.random.fold_in(key, index), lead) < self.probability
                for index, site in enumerate(sites)
            }
        ]
