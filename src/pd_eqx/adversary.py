"""Adversaries: mask sources that climb the reconstruction loss they are fed to.

A fresh adversary starts anew at every evaluation and climbs by signs of gradients. A persistent adversary
lives in the training item, because its sources are carried from step to step.

An ascent is no part of the loss: nothing is differentiated through it, and the loss that it climbs holds
components and importances fixed. Were it otherwise, components would be trained to mislead the adversary.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.masks import MaskSource, SiteSource

Sources = dict[str, SiteSource]
SourceLoss = Callable[[Mapping[str, SiteSource]], Float[Array, ""]]


@dataclasses.dataclass(frozen=True)
class Scope:
    """Which positions share one source.

    - `batch`: sources along the first axis of the positions: 1 for all of the batch, `n` to repeat (batch
      element `b` takes source `b mod n`), None for one each.
    - `positions`: whether each index of the remaining axes has a source of its own.

    In letters, `c` is `Scope()`, `bc` is `Scope(None)`, `sc` is `Scope(1, True)`, `bsc` is `Scope(None, True)`.
    """

    batch: int | None = 1
    positions: bool = False

    def __post_init__(self) -> None:
        """Refuses no sources at all."""
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"a scope needs 1 source or more along the batch, found {self.batch}")

    def shape(self, lead: tuple[int, ...]) -> tuple[int, ...]:
        """The sources' own leading shape, for positions of shape `lead`.

        **Errors:** `ValueError` where the batch is no multiple of `batch`.
        """
        first, rest = lead[:1], lead[1:]
        if first and self.batch is not None:
            if first[0] % self.batch:
                raise ValueError(
                    f"{self.batch} sources cannot be repeated along a batch of {first[0]}; "
                    "choose a batch size that is a multiple of them"
                )
            first = (self.batch,)
        return (*first, *(rest if self.positions else (1,) * len(rest)))

    def spread(self, sources: Mapping[str, SiteSource], lead: tuple[int, ...]) -> Sources:
        """Sources whose shapes broadcast against `lead`: repeated ones are tiled along the batch."""
        if self.batch in (None, 1) or not lead:
            return dict(sources)
        times = lead[0] // self.batch

        def tile(source: Array) -> Array:
            return jnp.tile(source, (times, *(1,) * (source.ndim - 1)))

        return {site: jax.tree.map(tile, source) for site, source in sources.items()}


@dataclasses.dataclass(frozen=True)
class ProjectedGradient(MaskSource):
    """A fresh adversary: `steps` times `s ← clip(s + step_size · sign(∂loss/∂s), 0, 1)`, with `sign(0) = 0`.

    - `init`: where the ascent starts. From `"ones"` with a delta channel it would start at an exact optimum,
      and rounding alone would choose its direction.
    - `scope`: which positions share a source.
    - `delta`: whether the delta channel has a source too.

    Source: golden numbers `06_pgd`.
    """

    steps: int
    step_size: float
    init: Literal["random", "ones", "zeros"] = "random"
    scope: Scope = Scope()
    delta: bool = True

    def draw(
        self,
        key: PRNGKeyArray,
        importances: Mapping[str, Float[Array, "..."]],
        loss: SourceLoss,
    ) -> Sources:
        """See `MaskSource.draw`."""
        lead = next(iter(importances.values())).shape[:-1]

        def spread_loss(sources: Mapping[str, SiteSource]) -> Float[Array, ""]:
            return loss(self.scope.spread(sources, lead))

        start = self._start(key, importances)
        return self.scope.spread(ascend(start, spread_loss, self.steps, self.step_size), lead)

    def _start(self, key: PRNGKeyArray, importances: Mapping[str, Float[Array, "..."]]) -> Sources:
        match self.init:
            case "random":
                return uniform_sources(key, importances, self.scope, self.delta)
            case "ones":
                return full_sources(1.0, importances, self.scope, self.delta)
            case "zeros":
                return full_sources(0.0, importances, self.scope, self.delta)


def ascend(sources: Sources, loss: SourceLoss, steps: int, step_size: float) -> Sources:
    """The sources after `steps` ascents by the sign of the gradient, each projected to [0, 1].

    **Arguments:**

    - `loss`: of the sources alone; whatever else it closes over is to be held fixed by the caller.
    """

    def once(_: Array, sources: Sources) -> Sources:
        return jax.tree.map(
            lambda s, g: jnp.clip(s + step_size * jnp.sign(g), 0.0, 1.0),
            sources,
            jax.grad(loss)(sources),
        )

    return jax.lax.stop_gradient(jax.lax.fori_loop(0, steps, once, sources))


def uniform_sources(
    key: PRNGKeyArray,
    importances: Mapping[str, Float[Array, "..."]],
    scope: Scope,
    delta: bool,
) -> Sources:
    """Sources uniform in [0, 1), at least in float32; each site folds in its place among the importances."""
    sources: Sources = {}
    for index, (site, ci) in enumerate(importances.items()):
        key_c, key_d = jax.random.split(jax.random.fold_in(key, index))
        dtype, shape = _dtype(ci), scope.shape(ci.shape[:-1])
        sources[site] = SiteSource(
            jax.random.uniform(key_c, (*shape, ci.shape[-1]), dtype),
            jax.random.uniform(key_d, shape, dtype) if delta else None,
        )
    return sources


def full_sources(
    value: float, importances: Mapping[str, Float[Array, "..."]], scope: Scope, delta: bool
) -> Sources:
    """Sources that are all `value`, at least in float32."""
    sources: Sources = {}
    for site, ci in importances.items():
        dtype, shape = _dtype(ci), scope.shape(ci.shape[:-1])
        sources[site] = SiteSource(
            jnp.full((*shape, ci.shape[-1]), value, dtype),
            jnp.full(shape, value, dtype) if delta else None,
        )
    return sources


class AdversaryState(eqx.Module):
    """What one adversarial term carries between steps.

    - `sources`: raw sources by site, `[*scope, C]` and the delta's `[*scope]`.
    - `opt_state`: the optimizer that ascends them.
    """

    sources: Sources
    opt_state: Any


def _dtype(ci: Array) -> jnp.dtype:
    """Sources move by small steps, which bfloat16 would round away."""
    return jnp.promote_types(ci.dtype, jnp.float32)
