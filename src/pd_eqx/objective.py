"""The objective: a configured sum of terms over one batch.

A term sees the batch through a `Context`, in which the clean forward and the causal importances have been
computed once for all terms. Each term draws from a key of its own, so adding a term after the others does
not change what they draw. What a term carries from step to step (a persistent adversary, a moving average) it
reads from the context and hands on through the objective; it keeps nothing itself.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.adversary import AdversaryState, PersistentAdversary, Sources
from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components, weight_deltas
from pd_eqx.linear import CallableWithLinear, masked
from pd_eqx.losses import (
    Anneal,
    Distance,
    Frequency,
    annealed,
    faithfulness,
    lp_penalty,
    mean_over_positions,
    minimality,
    relative_faithfulness,
    smooth_l0_penalty,
)
from pd_eqx.masks import (
    AllSites,
    BinomialSource,
    MaskSource,
    Routes,
    Routing,
    SiteSource,
    StochasticSource,
    interpolate,
)
from pd_eqx.schedule import Schedule
from pd_eqx.sites import sites_matching
from pd_eqx.unembedding import Outputs

# A moving average of each component's mean penalty, `[C]` by site.
Average = dict[str, Float[Array, " _"]]
# Of a batch's importances only shapes `[*lead, C]` are read where a state is made.
Shapes = Mapping[str, Array | jax.ShapeDtypeStruct]


class Context(eqx.Module):
    """All that a term may read of one step.

    - `target`: the frozen network; `weights`: its weights `[d_in, d_out]` of the decomposed sites.
    - `inputs`, `clean`: the batch and the target's output on it.
    - `components`, `importances`: what is trained, on this batch.
    - `step`, `total_steps`: the update's number, from 0, and how many the run has.
    - `sources`: raw sources of the persistent adversaries, by term name and site.
    - `averages`: moving averages as the last update left them, by term name and site.
    """

    target: CallableWithLinear
    weights: dict[str, Float[Array, "_ _"]]
    inputs: Array
    clean: Outputs
    components: Components
    importances: CausalImportances
    step: Int[Array, ""]
    total_steps: int = eqx.field(static=True)
    sources: dict[str, Sources] = eqx.field(default_factory=dict)
    averages: dict[str, Average] = eqx.field(default_factory=dict)

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of the positions that masks are drawn for."""
        return next(iter(self.importances.lower.values())).shape[:-1]

    @property
    def sites(self) -> tuple[str, ...]:
        """The decomposed sites."""
        return tuple(self.importances.lower)

    def masked_distance(
        self, distance: Distance, sources: Mapping[str, SiteSource], passes: list[Routes]
    ) -> Float[Array, ""]:
        """The distance from clean of each pass's masked output, averaged over the passes."""
        total = jnp.zeros(())
        for routes in passes:
            masks = interpolate(self.importances.lower, sources, routes)
            outputs = self.target(self.inputs, masked(self.components, masks))
            total = total + distance(outputs, self.clean)
        return total / len(passes)


class Term(abc.ABC):
    """One summand: `coefficient · value`.

    - `name`: names its metric and, if it has one, its adversary or its average.
    """

    name: str
    coefficient: float

    @abc.abstractmethod
    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """The unweighted value on this batch."""


@dataclasses.dataclass(frozen=True)
class Faithfulness(Term):
    """The components sum to the weights; see `losses.faithfulness`."""

    coefficient: float = 1.0
    name: str = "faithfulness"

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`."""
        return faithfulness(weight_deltas(context.components, context.weights))


@dataclasses.dataclass(frozen=True)
class RelativeFaithfulness(Term):
    """The same in each site's own unit: the mean over sites of `‖Δ‖² / ‖W‖²`.

    A large site does not drown a small one, nor one of large weights one of small.
    """

    coefficient: float = 1.0
    name: str = "relative_faithfulness"

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`."""
        deltas = weight_deltas(context.components, context.weights)
        shares = relative_faithfulness(deltas, context.weights)
        return sum(shares.values(), jnp.zeros(())) / len(shares)


class Minimality(Term):
    """Few components matter: a penalty on upper importances, and what its frequency term carries along.

    - `frequency`: the frequency term, or None.
    - `sites`: glob patterns of the sites that it is about.
    """

    frequency: Frequency | None
    sites: tuple[str, ...]

    @abc.abstractmethod
    def penalty(self, upper: Float[Array, "..."], context: Context) -> Float[Array, "..."]:
        """The penalty of each upper importance of one site, of their shape `[*lead, C]`."""

    def penalties(self, context: Context) -> dict[str, Float[Array, "..."]]:
        """The penalty of each importance, `[*lead, C]` by site, of the sites that the term is about."""
        upper = context.importances.upper
        return {site: self.penalty(upper[site], context) for site in self.about(tuple(upper))}

    def about(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Those of the decomposed sites that the term is about.

        **Errors:** `pd_eqx.sites.UnknownSiteError` for a pattern that matches none.
        """
        return sites_matching(sites, self.sites)

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`, and `losses.minimality`."""
        means = mean_over_positions(self.penalties(context))
        if self.frequency is None or self.frequency.decay is None:
            return minimality(means, self.frequency)
        moved = self.frequency.moved(context.averages[self.name], means)
        frequencies = self.frequency.debiased(moved, context.step + 1)
        return minimality(means, self.frequency, frequencies)

    def averaged(self, context: Context, frequency: Frequency) -> Average:
        """The moving average of the mean penalties after this batch."""
        average = context.averages[self.name]
        moved = frequency.moved(average, mean_over_positions(self.penalties(context)))
        return {
            site: jax.lax.stop_gradient(m).astype(average[site].dtype) for site, m in moved.items()
        }


@dataclasses.dataclass(frozen=True)
class ImportanceMinimality(Minimality):
    """The Lp penalty `(ci + eps)^p`; both settings may be annealed. See `losses.lp_penalty`."""

    coefficient: float
    p: float | Anneal = 1.0
    eps: float | Anneal = 1e-12
    name: str = "importance_minimality"
    frequency: Frequency | None = None
    sites: tuple[str, ...] = ("*",)

    def penalty(self, upper: Float[Array, "..."], context: Context) -> Float[Array, "..."]:
        """See `Minimality.penalty`."""
        p = annealed(self.p, context.step, context.total_steps)
        eps = annealed(self.eps, context.step, context.total_steps)
        return lp_penalty(upper, p, eps)


@dataclasses.dataclass(frozen=True)
class SmoothL0(Minimality):
    """A smooth count of importances above `width`, which may be annealed. See `losses.smooth_l0_penalty`."""

    coefficient: float
    width: float | Anneal
    name: str = "smooth_l0"
    frequency: Frequency | None = None
    sites: tuple[str, ...] = ("*",)

    def penalty(self, upper: Float[Array, "..."], context: Context) -> Float[Array, "..."]:
        """See `Minimality.penalty`."""
        return smooth_l0_penalty(upper, annealed(self.width, context.step, context.total_steps))


@dataclasses.dataclass(frozen=True)
class Reconstruction(Term):
    """The masked output stays near the clean one; averaged over `samples` draws and the routing's passes."""

    name: str
    distance: Distance
    source: MaskSource = dataclasses.field(default_factory=StochasticSource)
    routing: Routing = dataclasses.field(default_factory=AllSites)
    coefficient: float = 1.0
    samples: int = 1

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`."""
        detached = jax.lax.stop_gradient(context)
        total = jnp.zeros(())
        for sample in range(self.samples):
            key_route, key_source = jax.random.split(jax.random.fold_in(key, sample))
            passes = self.routing.passes(key_route, context.sites, context.lead)

            def climbed(
                sources: Mapping[str, SiteSource], passes: list[Routes] = passes
            ) -> Float[Array, ""]:
                return detached.masked_distance(self.distance, sources, passes)

            sources = self.source.draw(key_source, context.importances.lower, climbed)
            total = total + context.masked_distance(self.distance, sources, passes)
        return total / self.samples


class AdversarialTerm(Term):
    """A term whose sources persist: they climb its unweighted value, which trains everything else downwards.

    - `adversary`: how its sources are kept and moved.
    """

    adversary: PersistentAdversary

    @abc.abstractmethod
    def evaluate(self, context: Context, raw: Sources, key: PRNGKeyArray) -> Float[Array, ""]:
        """The value under these raw sources; whatever is drawn, is drawn anew for each evaluation's key."""

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`."""
        return self.evaluate(context, context.sources[self.name], jax.random.fold_in(key, 0))

    def warmed_up(
        self, context: Context, state: AdversaryState, key: PRNGKeyArray
    ) -> AdversaryState:
        """The adversary after this update's warm-up ascents, in which all but the sources is fixed."""
        detached = jax.lax.stop_gradient(context)

        def loss(raw: Sources, index: Int[Array, ""]) -> Float[Array, ""]:
            return self.evaluate(detached, raw, jax.random.fold_in(key, 1 + index))

        return self.adversary.warmed_up(state, loss, context.step, context.total_steps)


@dataclasses.dataclass(frozen=True)
class PersistentReconstruction(AdversarialTerm):
    """The masked output stays near the clean one under a persistent adversary's sources."""

    name: str
    distance: Distance
    adversary: PersistentAdversary
    routing: Routing = dataclasses.field(default_factory=AllSites)
    coefficient: float = 1.0

    def evaluate(self, context: Context, raw: Sources, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `AdversarialTerm.evaluate`."""
        passes = self.routing.passes(key, context.sites, context.lead)
        sources = self.adversary.sources(raw, context.importances.lower)
        return context.masked_distance(self.distance, sources, passes)


@dataclasses.dataclass(frozen=True)
class MergedReconstruction(AdversarialTerm):
    """Each batch element meets the adversary with a scheduled probability, and uniform draws otherwise.

    One masked forward serves both, where two terms would need two.

    - `probability`: that an element meets the adversary; 1 is `PersistentReconstruction`.
    """

    name: str
    distance: Distance
    adversary: PersistentAdversary
    probability: Schedule
    routing: Routing = dataclasses.field(default_factory=AllSites)
    coefficient: float = 1.0

    def evaluate(self, context: Context, raw: Sources, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `AdversarialTerm.evaluate`."""
        key_route, key_draws, key_element = jax.random.split(key, 3)
        lower, lead = context.importances.lower, context.lead
        passes = self.routing.passes(key_route, context.sites, lead)
        adversarial = self.adversary.sources(raw, lower)
        drawn = StochasticSource(self.adversary.delta).draw(
            key_draws, lower, lambda _: jnp.zeros(())
        )
        probability = self.probability.at(context.step, context.total_steps)
        chosen = jax.random.bernoulli(key_element, probability, lead[:1])

        def either(climbed: Array, drawn: Array) -> Array:
            by_element = chosen.reshape(*chosen.shape, *(1,) * (drawn.ndim - chosen.ndim))
            return jnp.where(by_element, climbed, drawn)

        sources = {site: jax.tree.map(either, adversarial[site], drawn[site]) for site in drawn}
        return context.masked_distance(self.distance, sources, passes)


@dataclasses.dataclass(frozen=True)
class Objective:
    """The sum that is minimised.

    **Errors:** `ValueError` where two terms share a name, or where an adversarial term has the coefficient 0.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        """Refuses terms that could not be told apart, and adversaries that would get no gradient."""
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise ValueError(f"each term needs a name of its own, found {names}")
        for term in self.terms:
            if isinstance(term, AdversarialTerm) and term.coefficient == 0.0:
                raise ValueError(
                    f"term {term.name!r} has the coefficient 0, but its adversary climbs the main "
                    "backward pass; leave the term out instead"
                )

    @property
    def importance_noise(self) -> bool:
        """Whether importances are computed with noise: as soon as one term's sources are binomial."""
        return any(
            isinstance(term, Reconstruction) and isinstance(term.source, BinomialSource)
            for term in self.terms
        )

    def __call__(
        self, context: Context, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The weighted sum, and the unweighted value of each term by name."""
        total = jnp.zeros(())
        values: dict[str, Array] = {}
        for index, term in enumerate(self.terms):
            values[term.name] = term.value(context, jax.random.fold_in(key, index))
            total = total + term.coefficient * values[term.name]
        return total, values

    def init_adversaries(self, key: PRNGKeyArray, importances: Shapes) -> dict[str, AdversaryState]:
        """The persistent adversaries to begin with, by term name.

        **Errors:** `ValueError` where the batch is no multiple of an adversary's sources.
        """
        return {
            term.name: term.adversary.init(jax.random.fold_in(key, index), importances)
            for index, term in self._adversarial
        }

    def check_carried(self, adversaries: Mapping[str, Any], averages: Mapping[str, Any]) -> None:
        """Refuses a state that does not carry what the terms carry from step to step, no more and no less.

        **Errors:** `ValueError` naming the terms that differ.
        """
        wanted = {
            "adversaries": {term.name for _, term in self._adversarial},
            "averages": {term.name for term, _ in self._averaging},
        }
        for field, found in (("adversaries", set(adversaries)), ("averages", set(averages))):
            if found != wanted[field]:
                raise ValueError(
                    f"training.{field} holds {sorted(found)}, but the objective's terms need "
                    f"{sorted(wanted[field])}; make the state with init_state(..., objective=objective, "
                    "batches=batches)"
                )

    def raw_sources(self, adversaries: Mapping[str, AdversaryState]) -> dict[str, Sources]:
        """The raw sources that a context needs, by term name."""
        return {
            term.name: term.adversary.raw(adversaries[term.name]) for _, term in self._adversarial
        }

    def warmed_up(
        self, context: Context, adversaries: Mapping[str, AdversaryState], key: PRNGKeyArray
    ) -> dict[str, AdversaryState]:
        """The adversaries after this update's warm-up ascents; `key` is the one that `__call__` is given."""
        return {
            term.name: term.warmed_up(
                context, adversaries[term.name], jax.random.fold_in(key, index)
            )
            for index, term in self._adversarial
        }

    def unweighted(self, grads: Mapping[str, Sources]) -> dict[str, Sources]:
        """Gradients of each adversary's own value, from those of the weighted sum."""
        return {
            term.name: jax.tree.map(lambda g, c=term.coefficient: g / c, grads[term.name])
            for _, term in self._adversarial
        }

    def ascended(
        self,
        adversaries: Mapping[str, AdversaryState],
        grads: Mapping[str, Sources],
        step: Int[Array, ""],
        total_steps: int,
    ) -> dict[str, AdversaryState]:
        """The adversaries after the ascent that reads the main backward pass.

        **Arguments:**

        - `grads`: of each adversary's own value at its raw sources; see `unweighted`.
        """
        return {
            term.name: term.adversary.ascended(
                adversaries[term.name], grads[term.name], step, total_steps
            )
            for _, term in self._adversarial
        }

    def init_averages(self, importances: Shapes) -> dict[str, Average]:
        """The moving averages to begin with, by term name."""
        return {
            term.name: {
                site: jnp.zeros(importances[site].shape[-1], jnp.float32)
                for site in term.about(tuple(importances))
            }
            for term, _ in self._averaging
        }

    def averaged(self, context: Context) -> dict[str, Average]:
        """The moving averages after this batch."""
        return {term.name: term.averaged(context, frequency) for term, frequency in self._averaging}

    @property
    def _adversarial(self) -> list[tuple[int, AdversarialTerm]]:
        return [(i, term) for i, term in enumerate(self.terms) if isinstance(term, AdversarialTerm)]

    @property
    def _averaging(self) -> list[tuple[Minimality, Frequency]]:
        return [
            (term, term.frequency)
            for term in self.terms
            if isinstance(term, Minimality)
            and term.frequency is not None
            and term.frequency.decay is not None
        ]
