"""Losses: faithfulness, importance minimality, and the distances that reconstruction is measured by.

Each reduction is part of the published method, not a matter of taste: faithfulness pools all entries of all
sites; importance minimality averages over positions and sums over components and sites; a distance averages
over positions (KL) or over positions and coordinates (MSE).
"""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def faithfulness(deltas: Mapping[str, Float[Array, "_ _"]]) -> Float[Array, ""]:
    """Mean square of the deltas `W − V @ U`, pooled over all entries of all sites.

    **Arguments:**

    - `deltas`: by site `[d_in, d_out]`, as `weight_deltas` gives them.

    **Returns:** a scalar, in squared weight units.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `04_weight_ci_losses`, `faith`.
    """
    entries = sum(delta.size for delta in deltas.values())
    return sum((jnp.sum(jnp.square(delta)) for delta in deltas.values()), jnp.zeros(())) / entries


def importance_minimality(
    upper: Mapping[str, Float[Array, "..."]],
    p: float | Float[Array, ""],
    eps: float,
) -> Float[Array, ""]:
    """The Lp penalty on importances: `(ci + eps)^p`, mean over positions, sum over components and sites.

    **Arguments:**

    - `upper`: upper-squashed importances `[*lead, C]` by site.
    - `p`: the exponent.
    - `eps`: added inside the power; keeps the gradient finite at 0 for `p < 1`.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `04_weight_ci_losses`, `imp`.
    """
    total = jnp.zeros(())
    for ci in upper.values():
        positions = ci.size // ci.shape[-1]
        total = total + jnp.sum((ci + eps) ** p) / positions
    return total


class Distance(abc.ABC):
    """How far a masked output is from the clean one."""

    @abc.abstractmethod
    def __call__(
        self, outputs: Float[Array, "..."], clean: Float[Array, "..."]
    ) -> Float[Array, ""]:
        """The mean distance between outputs of one shape `[*lead, d]`, a scalar."""


@dataclasses.dataclass(frozen=True)
class MeanSquaredError(Distance):
    """Mean over positions and coordinates of the squared difference."""

    def __call__(
        self, outputs: Float[Array, "..."], clean: Float[Array, "..."]
    ) -> Float[Array, ""]:
        """See `Distance`."""
        return jnp.mean(jnp.square(outputs - clean))


@dataclasses.dataclass(frozen=True)
class KLDivergence(Distance):
    """`KL(softmax(clean) ‖ softmax(masked))` in nats, mean over positions, at least in float32."""

    def __call__(
        self, outputs: Float[Array, "..."], clean: Float[Array, "..."]
    ) -> Float[Array, ""]:
        """See `Distance`."""
        dtype = jnp.promote_types(clean.dtype, jnp.float32)
        log_q = jax.nn.log_softmax(outputs.astype(dtype), axis=-1)
        log_p = jax.nn.log_softmax(clean.astype(dtype), axis=-1)
        p = jnp.exp(log_p)
        return jnp.mean(jnp.sum(jnp.where(p > 0.0, p * (log_p - log_q), 0.0), axis=-1))
