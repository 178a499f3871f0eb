"""Squashings: from a logit to a causal importance, with backward passes of their own.

The lower squashing feeds the masks and the upper one feeds importance minimality. Both clip to [0, 1], but
a plain clip would leave dead components dead: where the mask wants a larger importance, the lower one leaks
gradient below 0; where minimality wants a smaller one, the upper one leaks above 1. Ties are exact and they
do occur: on an all-zero input row with zero biases the logit is exactly 0 at the first step, where
`jnp.clip` would pass half of the gradient.

Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `01_sigmoids`.
"""

import abc
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Squashing(abc.ABC):
    """A pair of maps from logits to importances, elementwise; a value without arrays."""

    @abc.abstractmethod
    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Importances for masks."""

    @abc.abstractmethod
    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Importances for importance minimality."""


@dataclasses.dataclass(frozen=True)
class LeakyHard(Squashing):
    """The published pair; `leak` is the slope outside [0, 1]."""

    leak: float = 0.01

    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """`clip(x, 0, 1)`; backward 1 on (0, 1], and for x ≤ 0 `leak` where the gradient is negative."""
        return _lower_leaky(logits, self.leak)

    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """`clip(x, 0, 1)`, or `1 + leak · (x − 1)` above 1; backward 1 on [0, 1], both ends included."""
        above = 1.0 + self.leak * (logits - 1.0)
        return jnp.where(logits > 1.0, above, jnp.where(logits >= 0.0, logits, 0.0))


PUBLISHED = LeakyHard()


@dataclasses.dataclass(frozen=True)
class UnpairedLeakyHard(Squashing):
    """`min(x, 1)` above 0 and `leak · x` below, for masks and minimality alike; importances may be negative."""

    leak: float = 0.01

    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Backward 1 on (0, 1], `leak` at and below 0, whatever the gradient's sign."""
        inside = jnp.where(logits > 1.0, 1.0, logits)
        return jnp.where(logits > 0.0, inside, self.leak * logits)

    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The same as `lower`."""
        return self.lower(logits)


@dataclasses.dataclass(frozen=True)
class Hard(Squashing):
    """`clip(x, 0, 1)` for masks and minimality alike; nothing leaks."""

    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Backward 1 on [0, 1], both ends included, and 0 outside."""
        return jnp.where(logits > 1.0, 1.0, jnp.where(logits >= 0.0, logits, 0.0))

    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The same as `lower`."""
        return self.lower(logits)


@dataclasses.dataclass(frozen=True)
class Logistic(Squashing):
    """`1 / (1 + exp(−x))` for masks and minimality alike."""

    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Strictly between 0 and 1, up to rounding."""
        return jax.nn.sigmoid(logits)

    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The same as `lower`."""
        return self.lower(logits)


@dataclasses.dataclass(frozen=True)
class SwishHard(Squashing):
    """A smooth `clip(x, 0, 1)`, for masks and minimality alike: `swish(x) − swish(x − 1)`.

    `swish(x) = x · sigmoid(beta · x)`; importances leave [0, 1] a little near its ends.
    """

    beta: float = 10.0

    def lower(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Approaches the clip as `beta` grows."""
        return self._swish(logits) - self._swish(logits - 1.0)

    def upper(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The same as `lower`."""
        return self.lower(logits)

    def _swish(self, x: Array) -> Array:
        return x * jax.nn.sigmoid(self.beta * x)


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
