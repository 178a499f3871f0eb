"""Sparse random features, as the toy targets are fed.

Source: golden numbers `10_targets_data`, `data`.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray


class SparseFeatures(eqx.Module):
    """Each feature is independently non-zero with one probability, and then uniform in `[low, high)`.

    Rows without any feature are kept.
    """

    batch_size: int = eqx.field(static=True)
    n_features: int = eqx.field(static=True)
    probability: float = eqx.field(static=True)
    low: float = eqx.field(static=True, default=0.0)
    high: float = eqx.field(static=True, default=1.0)

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, "batch features"]:
        """The batch `[batch_size, n_features]` of one step; `key` is that step's own."""
        del step
        key_value, key_mask = jax.random.split(key)
        shape = (self.batch_size, self.n_features)
        values = jax.random.uniform(key_value, shape, minval=self.low, maxval=self.high)
        return values * (jax.random.uniform(key_mask, shape) < self.probability)
