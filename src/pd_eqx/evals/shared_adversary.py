"""One adversary for all batches of an evaluation, which it climbs together.

A fresh adversary for each batch may overfit it: with as many sources as a batch has positions to be moved, it finds
what hurts this batch. One that has to hurt every batch with the same sources asks for more, and needs the gradient
over all of them before it takes a step. Only one batch is in memory at a time.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.adversary import ProjectedGradient
from pd_eqx.evals.means import Mean, combine, mean_of
from pd_eqx.evals.observation import Observation, draw_batch, observe
from pd_eqx.losses import Distance, MeanSquaredError
from pd_eqx.masks import SiteSource, interpolate
from pd_eqx.sharding import Layout
from pd_eqx.state import Decomposition
from pd_eqx.step import BatchSource, Target

Sources = dict[str, SiteSource]


@dataclasses.dataclass(frozen=True)
class SharedAdversary:
    """`steps` times `s ← clip(s + step_size · sign(∂/∂s of the distance over all batches), 0, 1)`, with `sign(0) = 0`.

    Its sources start uniform in [0, 1), one vector a site for all positions of all batches.

    - `name`: of its entry under `reconstruction`.
    - `delta`: whether the delta channel has a source too.

    Source: golden numbers `06_pgd`, `multibatch`.
    """

    name: str
    steps: int
    step_size: float
    delta: bool = True
    distance: Distance = MeanSquaredError()

    def start(self, seen: Observation, key: PRNGKeyArray) -> Sources:
        """The first sources; of the batch only shapes are read."""
        at_rest = ProjectedGradient(0, self.step_size, delta=self.delta)
        return at_rest.draw(key, seen.importances.lower, lambda _: jnp.zeros(()))

    def measure(self, sources: Sources, seen: Observation) -> Mean:
        """The distance of one batch under these sources."""
        masks = interpolate(seen.importances.lower, sources, dict.fromkeys(sources))
        return mean_of(self.distance(seen.ablated(masks), seen.clean), seen.positions)

    def climb(self, sources: Sources, seen: Observation) -> Sources:
        """One batch's part of the gradient, as a tree like the sources; parts are added up over the batches."""

        def total(sources: Sources) -> Float[Array, ""]:
            mean = self.measure(sources, seen)
            return mean.value * mean.weight

        return jax.grad(total)(sources)

    def move(self, sources: Sources, gradient: Sources) -> Sources:
        """The sources after a step up the gradient over all batches."""
        return jax.tree.map(
            lambda s, g: jnp.clip(s + self.step_size * jnp.sign(g), 0.0, 1.0), sources, gradient
        )


class Attack:
    """An adversary with its parts compiled, as long as it lives.

    - `place`: its number among an evaluation's adversaries; each starts from sources of its own.
    - `layout`: see `make_evaluation`.
    """

    def __init__(
        self, adversary: SharedAdversary, place: int, layout: Layout | None = None
    ) -> None:
        self.adversary = adversary
        self._place = place
        self._layout = layout
        whole = None if layout is None else layout.replicated
        self._start = jax.jit(self._start_on, out_shardings=whole)
        self._climb = jax.jit(self._climb_on, out_shardings=whole)
        self._measure = jax.jit(self._measure_on, out_shardings=whole)
        self._move = jax.jit(adversary.move)
        self._add = jax.jit(lambda total, part: jax.tree.map(jnp.add, total, part))
        self._combine = jax.jit(combine)

    def __call__(
        self,
        decomposition: Decomposition,
        target: Target,
        batches: BatchSource,
        key: PRNGKeyArray,
        n_batches: int,
        between: Callable[[], None],
    ) -> float:
        """The distance over all batches under the sources that the ascent ends at; see `Evaluation.__call__`."""
        rest = decomposition, target, batches, key
        between()
        sources = self._start(*rest, 0)
        for _ in range(self.adversary.steps):
            gradient: Any = None
            for batch in range(n_batches):
                between()
                part = self._climb(*rest, batch, sources)
                gradient = part if gradient is None else self._add(gradient, part)
            sources = self._move(sources, gradient)
        mean: Any = None
        for batch in range(n_batches):
            between()
            part = self._measure(*rest, batch, sources)
            mean = part if mean is None else self._combine(mean, part)
        return float(jax.device_get(mean.value))

    def _start_on(self, *batch: Any) -> Sources:
        key = batch[3]
        # Batches fold in their number, which never comes near this one.
        key_start = jax.random.fold_in(jax.random.fold_in(key, np.uint32(2**32 - 1)), self._place)
        return self.adversary.start(self._observed(*batch), key_start)

    def _climb_on(self, *batch_and_sources: Any) -> Sources:
        *batch, sources = batch_and_sources
        return self.adversary.climb(sources, self._observed(*batch))

    def _measure_on(self, *batch_and_sources: Any) -> Mean:
        *batch, sources = batch_and_sources
        return self.adversary.measure(sources, self._observed(*batch))

    def _observed(
        self,
        decomposition: Decomposition,
        target: Target,
        batches: BatchSource,
        key: PRNGKeyArray,
        index: Int[Array, ""],
    ) -> Observation:
        inputs = draw_batch(batches, key, index)[0]
        inputs = inputs if self._layout is None else self._layout.with_batch(inputs)
        return observe(decomposition, target, inputs)
