"""Optimizers: one for each parameter group, with its learning rate read from the step it is given.

Components and causal-importance functions are two groups: each has its own moments, its own schedule and
its own clip, so a spike in one cannot shrink the step of the other. An optimizer is a value without
arrays; what it remembers is the state that `init` makes and `update` returns.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, Int

from pd_eqx.schedule import Schedule


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

    def __post_init__(self) -> None:
        """Refuses a bound that would turn or stop every step."""
        if self.clip_norm is not None and self.clip_norm <= 0.0:
            raise ValueError(
                f"clip_norm must be above 0, or None for no clip: found {self.clip_norm}"
            )

    def init(self, params: Any) -> Any:
        """The optimizer's state for `params`."""
        return self.transformation().init(params)

    def update(
        self, grads: Any, opt_state: Any, params: Any, step: Int[Array, ""], total: int
    ) -> tuple[Any, Any, dict[str, Float[Array, ""]]]:
        """One descent step.

        **Arguments:**

        - `grads`, `params`: one group's, of one structure.
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
    """Adam with decoupled weight decay; the decay is scaled by the learning rate.

    `eps` is added outside the square root, after bias correction.

    Source: Loshchilov & Hutter 2019 (arXiv 1711.05101); golden numbers `08_optim_schedules`, `adamw`.
    """

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
class Muon(Optimizer):
    """Momentum whose matrices are made nearly orthogonal by Newton-Schulz steps; Adam for all else.

    Matrices are the last two axes of every leaf that has them, axes before those being a stack; biases are
    not, though those of stacked layers have two axes. A matrix's step is scaled by `sqrt(max(1, d_out / d_in))`.

    - `beta`: of the momentum, which is Nesterov's; `iterations`: Newton-Schulz steps.
    - `b1`, `b2`, `eps`: of the Adam (with Nesterov's momentum) that moves biases and gains.
    - `weight_decay`: of the matrices alone, scaled by the learning rate.

    Source: Jordan et al. 2024; Liu et al. 2025 (arXiv 2502.16982); optax's implementation.
    """

    schedule: Schedule
    beta: float = 0.95
    iterations: int = 5
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def transformation(self) -> optax.GradientTransformation:
        """See `Optimizer.transformation`; optax's descends by itself, at a learning rate that is one here."""
        descent = optax.contrib.muon(
            1.0,
            ns_steps=self.iterations,
            beta=self.beta,
            eps=self.eps,
            weight_decay=self.weight_decay,
            adam_b1=self.b1,
            adam_b2=self.b2,
            muon_weight_dimension_numbers=_matrices,
        )
        return optax.chain(descent, optax.scale(-1.0))


def _matrices(params: Any) -> Any:
    """Which axes of each leaf are a matrix's, or None for a leaf that holds none."""

    def axes(path: Any, leaf: Array) -> optax.contrib.MuonDimensionNumbers | None:
        is_bias = isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "bias"
        if leaf.ndim < 2 or is_bias:
            return None
        return optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    return jax.tree_util.tree_map_with_path(axes, params)


@dataclasses.dataclass(frozen=True)
class Optimizers:
    """One optimizer for each group of a decomposition."""

    components: Optimizer
    ci_fn: Optimizer


def global_norm(tree: Any) -> Float[Array, ""]:
    """The L2 norm over all entries of all leaves."""
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros(())))


def clip_by_norm(grads: Any, norm: Float[Array, ""], max_norm: float) -> Any:
    """Gradients scaled by `min(1, max_norm / (norm + 1e-6))`.

    The 1e-6 is the published convention and is not in optax's clip (golden numbers `08_optim_schedules`).
    """
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
