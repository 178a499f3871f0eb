"""The objective: a configured sum of terms over one batch.

A term sees the batch through a `Context`, in which the clean forward and the causal importances have been
computed once for all terms. Each term draws from a key of its own, so adding a term after the others does
not change what they draw.
"""

import abc
import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components, weight_deltas
from pd_eqx.linear import CallableWithLinear, masked
from pd_eqx.losses import Distance, faithfulness, importance_minimality
from pd_eqx.masks import (
    AllSites,
    MaskSource,
    Routes,
    Routing,
    SiteSource,
    StochasticSource,
    interpolate,
)


class Context(eqx.Module):
    """All that a term may read of one step.

    - `target`: the frozen network; `weights`: its weights `[d_in, d_out]` of the decomposed sites.
    - `inputs`, `clean`: the batch and the target's output on it.
    - `components`, `importances`: what is trained, on this batch.
    - `sources`: raw sources of the persistent adversaries, by term name and site.
    - `step`, `total_steps`: the update's number, from 0, and how many the run has.
    """

    target: CallableWithLinear
    weights: dict[str, Float[Array, "_ _"]]
    inputs: Array
    clean: Float[Array, "..."]
    components: Components
    importances: CausalImportances
    sources: dict[str, dict[str, Float[Array, "..."]]]
    step: Int[Array, ""]
    total_steps: int = eqx.field(static=True)

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of the positions that masks are drawn for."""
        return next(iter(self.importances.lower.values())).shape[:-1]

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

    - `name`: names its metric and, if it has one, its adversary.
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
class ImportanceMinimality(Term):
    """Few components matter; see `losses.importance_minimality`."""

    coefficient: float
    p: float = 1.0
    eps: float = 1e-12
    name: str = "importance_minimality"

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `Term.value`."""
        return importance_minimality(context.importances.upper, self.p, self.eps)


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
        importances = context.importances.lower
        detached = jax.lax.stop_gradient(context)
        total = jnp.zeros(())
        for sample in range(self.samples):
            key_route, key_source = jax.random.split(jax.random.fold_in(key, sample))
            passes = self.routing.passes(key_route, tuple(importances), context.lead)

            def climbed(
                sources: Mapping[str, SiteSource], passes: list[Routes] = passes
            ) -> Float[Array, ""]:
                return detached.masked_distance(self.distance, sources, passes)

            sources = self.source.draw(key_source, importances, climbed)
            total = total + context.masked_distance(self.distance, sources, passes)
        return total / self.samples


@dataclasses.dataclass(frozen=True)
class Objective:
    """The sum that is minimised.

    **Errors:** `ValueError` where two terms share a name.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        """Refuses terms whose metrics could not be told apart."""
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise ValueError(f"each term needs a name of its own, found {names}")

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
