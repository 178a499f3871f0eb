"""Masks: how much of each component stays, where, and in which of a term's forward passes.

A mask is `m = ci + (1 − ci) · source` with a source in [0, 1]: a component of importance 1 always stays,
one of importance 0 may be ablated to anywhere. The delta channel, what the components leave
unexplained, has importance 0, so its mask is the source itself. Where sources come from is a `MaskSource`;
which sites are masked at which position is a `Routing`.

Source: golden numbers `03_masks_routing`.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pd_eqx.random_bits import random_words


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

    - `component`: `[*lead, C]`, or None for all ones: the mask is then no array either.
    - `delta`: `[*lead]`, or None to leave the delta out.
    """

    component: Float[Array, "..."] | None
    delta: Float[Array, "..."] | None = None


# One forward pass of a term: the sites that are masked in it, each with its route (None: everywhere).
Routes = dict[str, Bool[Array, "..."] | None]
Importances = Mapping[str, Float[Array, "..."]]
SourceLoss = Callable[[Mapping[str, SiteSource]], Float[Array, ""]]


def interpolate(
    importances: Importances, sources: Mapping[str, SiteSource], routes: Routes
) -> dict[str, SiteMask]:
    """The masks of one forward pass: `ci + (1 − ci) · source` for each routed site.

    **Arguments:**

    - `importances`: lower-squashed importances `[*lead, C]` by site.
    - `sources`: by site; at least the routed ones.
    - `routes`: the sites of this pass.

    **Returns:** masks in the importances' dtype.

    **Errors:** `KeyError` for a routed site without importances or without a source.
    """
    masks: dict[str, SiteMask] = {}
    for site, route in routes.items():
        if site not in importances or site not in sources:
            raise KeyError(
                f"site {site!r} is routed, but importances are of {list(importances)} and sources of "
                f"{list(sources)}; route decomposed sites only"
            )
        ci, source = importances[site], sources[site]
        component, delta = source.component, source.delta
        if component is not None:
            component = ci + (1.0 - ci) * component.astype(ci.dtype)
        masks[site] = SiteMask(component, None if delta is None else delta.astype(ci.dtype), route)
    return masks


class MaskSource(abc.ABC):
    """Where the sources of a reconstruction term come from."""

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, importances: Importances, loss: SourceLoss
    ) -> dict[str, SiteSource]:
        """Sources for each site.

        **Arguments:**

        - `importances`: lower-squashed, `[*lead, C]` by site; their shapes are the masks'.
        - `loss`: the term's loss as a function of the sources alone, for those that climb it: components and
          importances are held fixed in it, and so are the routes.
        """


@dataclasses.dataclass(frozen=True)
class StochasticSource(MaskSource):
    """Uniform draws in [0, 1), independent at each position; the delta's too, if there is a delta channel.

    They have 16 random bits each; see `coarse_uniform`.
    """

    delta: bool = True

    def draw(
        self, key: PRNGKeyArray, importances: Importances, loss: SourceLoss
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        sources: dict[str, SiteSource] = {}
        for index, (site, ci) in enumerate(importances.items()):
            count = ci.shape[-1]
            shape = (*ci.shape[:-1], count + self.delta)
            drawn = coarse_uniform(jax.random.fold_in(key, index), shape, ci.dtype)
            delta = drawn[..., count] if self.delta else None
            sources[site] = SiteSource(drawn[..., :count], delta)
        return sources


@dataclasses.dataclass(frozen=True)
class BinomialSource(MaskSource):
    """Fair coins in {0, 1}, independent at each position; the delta's source stays uniform.

    A component whose coin fell on 1 gets no gradient on its importance. An objective with a source of this
    kind therefore computes its importances with noise (`Objective.importance_noise`).
    """

    delta: bool = True

    def draw(
        self, key: PRNGKeyArray, importances: Importances, loss: SourceLoss
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        sources: dict[str, SiteSource] = {}
        for index, (site, ci) in enumerate(importances.items()):
            key_c, key_d = jax.random.split(jax.random.fold_in(key, index))
            delta = jax.random.uniform(key_d, ci.shape[:-1], ci.dtype) if self.delta else None
            coins = jax.random.bernoulli(key_c, 0.5, ci.shape).astype(ci.dtype)
            sources[site] = SiteSource(coins, delta)
        return sources


@dataclasses.dataclass(frozen=True)
class ConstantSource(MaskSource):
    """One value everywhere, without the delta; 0 gives masks equal to the importances.

    **Errors:** `ValueError` for a value outside [0, 1].
    """

    constant: float

    def __post_init__(self) -> None:
        """Refuses masks that would amplify or invert a component."""
        if not 0.0 <= self.constant <= 1.0:
            raise ValueError(f"a source lies in 0 … 1, found the constant {self.constant}")

    def draw(
        self, key: PRNGKeyArray, importances: Importances, loss: SourceLoss
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        return {
            site: SiteSource(jnp.full((), self.constant, ci.dtype))
            for site, ci in importances.items()
        }


@dataclasses.dataclass(frozen=True)
class Unmasked(MaskSource):
    """All components whole, without the delta; importances are not read and no mask is made."""

    def draw(
        self, key: PRNGKeyArray, importances: Importances, loss: SourceLoss
    ) -> dict[str, SiteSource]:
        """See `MaskSource.draw`."""
        return {site: SiteSource(None) for site in importances}


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
    """At each position `k` sites, `k` uniform in 1 … n, chosen uniformly; see `uniform_subset`."""

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        """See `Routing.passes`."""
        key_k, key_noise = jax.random.split(key)
        k = jax.random.randint(key_k, lead, 1, len(sites) + 1)
        return [uniform_subset(k, jax.random.uniform(key_noise, (len(sites), *lead)), sites)]


@dataclasses.dataclass(frozen=True)
class StaticProbability(Routing):
    """Each site at each position with one probability, independently; none at all may be drawn.

    **Errors:** `ValueError` for a probability outside [0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        """Refuses what is no probability."""
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"a probability lies in 0 … 1, found {self.probability}")

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


def coarse_uniform(
    key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
) -> Float[Array, "..."]:
    """Uniform draws in (0, 1), at least in float32: the middles of 2^16 equal parts, so that their mean is ½ exactly.

    Random bits are a large part of a small step, and a mask has no use for the 23 that a float32 holds.
    """
    *lead, count = shape
    dtype = jnp.promote_types(dtype, jnp.float32)
    words = random_words(key, (*lead, (count + 1) // 2))
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*lead, -1)
    return (halves[..., :count].astype(dtype) + 0.5) * 2.0**-16


def uniform_subset(
    k: Int[Array, "..."], noise: Float[Array, "..."], sites: Sequence[str]
) -> Routes:
    """Routes `[*lead]`: site `i` at the positions where its noise ranks below `k` among the sites.

    **Arguments:**

    - `k`: how many sites to route at each position, `[*lead]`.
    - `noise`: uniform draws `[n_sites, *lead]`.
    """
    ranks = jnp.argsort(jnp.argsort(noise, axis=0), axis=0)
    return {site: ranks[index] < k for index, site in enumerate(sites)}
