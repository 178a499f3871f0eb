"""Squashings: from a logit to a causal importance, with backward passes of their own.

The lower squashing feeds the masks and the upper one feeds importance minimality. Both clip to [0, 1], but
a plain clip would leave dead components dead: where the mask wants a larger importance, the lower one leaks
gradient below 0; where minimality wants a smaller one, the upper one leaks above 1. Ties are exact and they
do occur: on an all-zero input row with zero biases the logit is exactly 0 at the first step.

Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `01_sigmoids`.
"""

import abc
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Squashing(abc.ABC):
    """A pair of maps from logits to importances, elementwise."""

    @abc.abstractmethod
    def lower(self, logits: Float[Array, "..."]) -> Float[Array, "..."]:
        """Importances in [0, 1], for masks."""

    @abc.abstractmethod
    def upper(self, logits: Float[Array, "..."]) -> Float[Array, "..."]:
        """Importances of at least 0, for importance minimality."""


@dataclasses.dataclass(frozen=True)
class LeakyHard(Squashing):
    """The published pair; `leak` is the slope outside [0, 1]."""

    leak: float = 0.01

    def lower(self, logits: Float[Array, "..."]) -> Float[Array, "..."]:
        """`clip(x, 0, 1)`; backward 1 on (0, 1], and for x ≤ 0 `leak` where the gradient is negative."""
        return _lower_leaky(logits, self.leak)

    def upper(self, logits: Float[Array, "..."]) -> Float[Array, "..."]:
        """`clip(x, 0, 1)`, or `1 + leak · (x − 1)` above 1; backward 1 on [0, 1], both ends included."""
        above = 1.0 + self.leak * (logits - 1.0)
        return jnp.where(logits > 1.0, above, jnp.where(logits >= 0.0, logits, 0.0))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _lower_leaky(x: Array, leak: float) -> Array:
    return jnp.clip(x, 0.0, 1.0)


def _lower_leaky_fwd(x: Array, leak: float) -> tuple[Array, Array]:
    return _lower_leaky(x, leak), x


def _lower_leaky_bwd(leak: float, x: Array, g: Array) -> tuple[Array]:
    below = jnp.where(g < 0.0, leak * g, 0.0)
    inside = jnp.where(x <= 1.0, g, 0.0)
    return (jnp.where(x <= 0.0, below, inside),)


_lower_leaky.defvjp(_lower_leaky_fwd, _lower_leaky_bwd)
