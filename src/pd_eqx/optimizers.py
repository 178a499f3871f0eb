"""Optimizers: one for each parameter group, with its learning rate read from the step it is given.

Components and causal-importance functions are two groups: each has its own moments, its own schedule and
its own clip, so a spike in one cannot shrink the step of the other.
"""

import abc
import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from pd_eqx.schedule import Schedule

Params = TypeVar("Params")


class Optimizer(abc.ABC):
    """How one group of parameters moves along its gradients.

    - `schedule`: the learning rate.
    - `clip_norm`: bound on the group's gradient norm, or None.
    """

    schedule: Schedule
    clip_norm: float | None

    @abc.abstractmethod
    def transformation(self) -> optax.GradientTransformation:
        """Everything but the learning rate and the clip."""

    def init(self, params: Any) -> Any:
        """The optimizer's state for `params`."""
        return self.transformation().init(params)

    def update(
        self, grads: Params, opt_state: Any, params: Params, step: Int[Array, ""], total: int
    ) -> tuple[Params, Any, dict[str, Float[Array, ""]]]:
        """One descent step.

        **Arguments:**

        - `step`, `total`: the update's number, from 0, and how many the run has.

        **Returns:** new parameters, new state, and the metrics `grad_norm` (before the clip) and `lr`.
        """
        norm = global_norm(grads)
        if self.clip_norm is not None:
            grads = clip_by_norm(grads, norm, self.clip_norm)
        directions, opt_state = self.transformation().update(grads, opt_state, params)
        lr = self.schedule.at(step, total)
        params = jax.tree.map(lambda p, d: p - (lr * d).astype(p.dtype), params, directions)
        return params, opt_state, {"grad_norm": norm, "lr": lr}


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay; the decay is scaled by the learning rate."""

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def transformation(self) -> optax.GradientTransformation:
        """See `Optimizer.transformation`."""
        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
        if self.weight_decay == 0.0:
            return adam
        return optax.chain(adam, optax.add_decayed_weights(self.weight_decay))


@dataclasses.dataclass(frozen=True)
class Optimizers:
    """One optimizer for each group of a decomposition."""

    components: Optimizer
    ci_fn: Optimizer


def global_norm(tree: Any) -> Float[Array, ""]:
    """The L2 norm over all entries of all leaves."""
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros(())))


def clip_by_norm(grads: Params, norm: Float[Array, ""], max_norm: float) -> Params:
    """Gradients scaled by `min(1, max_norm / (norm + 1e-6))`.

    The 1e-6 is the published convention and is not in optax's clip (golden numbers `08_optim_schedules`).
    """
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
