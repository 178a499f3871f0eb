"""Adversaries: mask sources that climb the reconstruction loss they are fed to.

A fresh adversary starts anew at every evaluation and climbs by signs of gradients. A persistent adversary
lives in the training item, because its sources are carried from step to step.

An ascent is no part of the loss: nothing is differentiated through it, and the loss that it climbs holds
components and importances fixed. Were it otherwise, components would be trained to mislead the adversary.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.masks import Importances, MaskSource, SiteSource, SourceLoss
from pd_eqx.schedule import Schedule

Sources = dict[str, SiteSource]


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
        importances: Importances,
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


class AdversaryState(eqx.Module):
    """What one adversarial term carries between steps.

    - `sources`: raw sources by site, `[*scope, C]` and the delta's `[*scope]`.
    - `opt_state`: the optimizer that ascends them.
    """

    sources: Sources
    opt_state: Any


class Ascent(abc.ABC):
    """How raw sources climb along their gradients.

    - `schedule`: the step size, the same for all ascents of one update.
    """

    schedule: Schedule

    @abc.abstractmethod
    def transformation(self, mu_dtype: jax.typing.DTypeLike) -> optax.GradientTransformation:
        """From gradients to directions, without the step size.

        `mu_dtype` is that of a first moment, if there is one.
        """


@dataclasses.dataclass(frozen=True)
class AdamAscent(Ascent):
    """Adam, upwards; one count of all ascents, warm-up ones included."""

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def transformation(self, mu_dtype: jax.typing.DTypeLike) -> optax.GradientTransformation:
        """See `Ascent.transformation`."""
        return optax.scale_by_adam(self.b1, self.b2, self.eps, mu_dtype=jnp.dtype(mu_dtype))


@dataclasses.dataclass(frozen=True)
class SignAscent(Ascent):
    """A step of one size for each source, by the sign of its gradient; `sign(0) = 0`."""

    schedule: Schedule

    def transformation(self, mu_dtype: jax.typing.DTypeLike) -> optax.GradientTransformation:
        """See `Ascent.transformation`."""
        return optax.stateless_with_tree_map(lambda g, _: jnp.sign(g))


class Projection(abc.ABC):
    """How raw sources, which an optimizer moves freely, are kept to sources in [0, 1]."""

    @abc.abstractmethod
    def start(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "..."]:
        """Raw sources to begin with."""

    @abc.abstractmethod
    def project(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """Raw sources after an ascent, where they may be kept."""

    @abc.abstractmethod
    def sources(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """The sources in [0, 1] that raw ones stand for."""


@dataclasses.dataclass(frozen=True)
class Clamp(Projection):
    """Raw sources are the sources, uniform at the start, and clipped to [0, 1] after each ascent."""

    def start(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "..."]:
        """See `Projection.start`."""
        return jax.random.uniform(key, shape, dtype)

    def project(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Projection.project`."""
        return jnp.clip(raw, 0.0, 1.0)

    def sources(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Projection.sources`."""
        return raw


@dataclasses.dataclass(frozen=True)
class Sigmoid(Projection):
    """Sources are the logistic function of raw ones, which are standard normal at the start and go where they like."""

    def start(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "..."]:
        """See `Projection.start`."""
        return jax.random.normal(key, shape, dtype)

    def project(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Projection.project`."""
        return raw

    def sources(self, raw: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Projection.sources`."""
        return jax.nn.sigmoid(raw)


@dataclasses.dataclass(frozen=True)
class PersistentAdversary:
    """An adversary whose sources and optimizer are carried from step to step.

    - `ascent`: how it climbs.
    - `scope`: which positions share a source.
    - `warmups`: ascents on each batch before the one that reads the main backward pass.
    - `projection`: how sources are kept to [0, 1].
    - `delta`: whether the delta channel has a source too.
    - `dtype`: what raw sources and a first moment are stored in. Ascents are computed at least in float32, and a
      second moment stays float32: with a decay of 0.999 it could not fall in bfloat16.

    **Errors:** `ValueError` for a negative number of warm-ups.

    Source: golden numbers `07_persistent_pgd_devbranch`.
    """

    ascent: Ascent
    scope: Scope = Scope()
    warmups: int = 0
    projection: Projection = Clamp()
    delta: bool = True
    dtype: jax.typing.DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        """Refuses fewer than no warm-ups."""
        if self.warmups < 0:
            raise ValueError(f"an adversary makes 0 warm-up ascents or more, found {self.warmups}")

    def init(
        self, key: PRNGKeyArray, importances: Mapping[str, Array | jax.ShapeDtypeStruct]
    ) -> AdversaryState:
        """The state to begin with.

        **Arguments:**

        - `importances`: of which only the shapes `[*lead, C]` by site are read.

        **Errors:** `ValueError` where the batch is no multiple of the scope's sources.
        """
        sources: Sources = {}
        for index, (site, ci) in enumerate(importances.items()):
            key_c, key_d = jax.random.split(jax.random.fold_in(key, index))
            shape = self.scope.shape(ci.shape[:-1])
            sources[site] = SiteSource(
                self._start(key_c, (*shape, ci.shape[-1])),
                self._start(key_d, shape) if self.delta else None,
            )
        wide: Any = _widened(sources)
        return AdversaryState(sources, self._transformation().init(wide))

    def raw(self, state: AdversaryState) -> Sources:
        """The raw sources, at least in float32: what gradients are taken of."""
        return _widened(state.sources)

    def sources(self, raw: Sources, importances: Importances) -> Sources:
        """Sources in [0, 1] that broadcast against each site's positions.

        **Errors:** `ValueError` where the sources were made for a batch of another shape.
        """
        found: Sources = {}
        for site, source in raw.items():
            lead = importances[site].shape[:-1]
            expected = (*self.scope.shape(lead), importances[site].shape[-1])
            if source.component is None or source.component.shape != expected:
                shape = None if source.component is None else source.component.shape
                raise ValueError(
                    f"the persistent sources of site {site!r} have shape {shape}, but a batch with "
                    f"positions {lead} needs {expected}; keep every batch of the shape that the state was "
                    "made for, and leave out a last, smaller one"
                )
            found[site] = jax.tree.map(self.projection.sources, source)
        lead = next(iter(importances.values())).shape[:-1]
        return self.scope.spread(found, lead)

    def ascended(
        self, state: AdversaryState, grads: Any, step: Int[Array, ""], total: int
    ) -> AdversaryState:
        """The state after one ascent along `grads`, the loss's gradients at `raw(state)`."""
        raw: Any = self.raw(state)
        directions, opt_state = self._transformation().update(grads, state.opt_state, raw)
        step_size = self.ascent.schedule.at(step, total)

        def moved(stored: Array, raw: Array, direction: Array) -> Array:
            return self.projection.project(raw + step_size * direction).astype(stored.dtype)

        return AdversaryState(jax.tree.map(moved, state.sources, raw, directions), opt_state)

    def warmed_up(
        self,
        state: AdversaryState,
        loss: Callable[[Sources, Int[Array, ""]], Float[Array, ""]],
        step: Int[Array, ""],
        total: int,
    ) -> AdversaryState:
        """The state after this update's warm-up ascents.

        **Arguments:**

        - `loss`: of the raw sources and the ascent's number from 0; whatever else it closes over is to be held
          fixed by the caller.
        """

        def once(index: Array, state: AdversaryState) -> AdversaryState:
            grads = jax.grad(loss)(self.raw(state), index)
            return self.ascended(state, grads, step, total)

        return jax.lax.fori_loop(0, self.warmups, once, state) if self.warmups else state

    def _start(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return self.projection.start(key, shape, wide).astype(self.dtype)

    def _transformation(self) -> optax.GradientTransformation:
        return self.ascent.transformation(self.dtype)


def uniform_sources(
    key: PRNGKeyArray,
    importances: Importances,
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


def full_sources(value: float, importances: Importances, scope: Scope, delta: bool) -> Sources:
    """Sources that are all `value`, at least in float32."""
    sources: Sources = {}
    for site, ci in importances.items():
        dtype, shape = _dtype(ci), scope.shape(ci.shape[:-1])
        sources[site] = SiteSource(
            jnp.full((*shape, ci.shape[-1]), value, dtype),
            jnp.full(shape, value, dtype) if delta else None,
        )
    return sources


def _dtype(ci: Array) -> jnp.dtype:
    """Sources move by small steps, which bfloat16 would round away."""
    return jnp.promote_types(ci.dtype, jnp.float32)


def _widened(sources: Sources) -> Sources:
    return jax.tree.map(lambda s: s.astype(jnp.promote_types(s.dtype, jnp.float32)), sources)
