"""Sparse random features, as the toy targets are fed.

A batch is a pure function of the key it is given, so a resumed run needs no cursor to see the batches that it
would have seen. How the draws are placed is a function of its own beside each class: what is published can then
be checked number by number, whatever generator made the draws.

Source: Elhage et al. 2022; golden numbers `10_targets_data`, `data`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.random_bits import random_uniform


def independent_features(
    u_value: Float[Array, "batch features"],
    u_mask: Float[Array, "batch features"],
    probability: float,
    low: float,
    high: float,
) -> Float[Array, "batch features"]:
    """Each feature by itself: `low + u_value · (high − low)` where `u_mask < probability`, else 0.

    **Arguments:**

    - `u_value`, `u_mask`: uniform draws in [0, 1).

    Source: golden numbers `10_targets_data`, `data/tms_p0.3`.
    """
    return (u_value * (high - low) + low) * (u_mask < probability)


def exactly_active_features(
    u_order: Float[Array, "batch features"],
    u_value: Float[Array, "batch active"],
    low: float,
    high: float,
) -> Float[Array, "batch features"]:
    """As many non-zero features in each row as `u_value` has columns: those that `u_order` ranks first.

    Source: golden numbers `10_targets_data`, `data/exactly1`.
    """
    n_active = u_value.shape[1]
    chosen = jnp.argsort(u_order, axis=-1)[:, :n_active]
    rows = jnp.arange(u_order.shape[0])[:, None]
    values = u_value * (high - low) + low
    return jnp.zeros(u_order.shape, values.dtype).at[rows, chosen].set(values)


def synchronised_features(
    batch: Float[Array, "batch features"],
    u_groups: Float[Array, "groups batch features"],
    groups: tuple[tuple[int, ...], ...],
    low: float,
    high: float,
) -> Float[Array, "batch features"]:
    """Where a feature of a group is non-zero, all of the group are redrawn as `high − u · (high − low)`.

    Groups are applied in order, each on the result of those before it.

    Source: golden numbers `10_targets_data`, `data/synced`.
    """
    for u, group in zip(u_groups, groups, strict=True):
        members = jnp.zeros(batch.shape[1], bool).at[jnp.array(group)].set(True)
        fires = jnp.any((batch != 0.0) & members, axis=-1, keepdims=True)
        batch = jnp.where(fires & members, u * (low - high) + high, batch)
    return batch


class SparseFeatures(eqx.Module):
    """Each feature is independently non-zero with one probability, and then uniform in `[low, high)`.

    Rows without any feature are kept. Every field is static: as an argument of the jitted step it holds no array.

    - `synchronised`: groups of features that are non-zero together; see `synchronised_features`.

    **Errors:** `ValueError` for sizes below one, a probability outside (0, 1], an empty range, or a group that
    names no feature.
    """

    batch_size: int = eqx.field(static=True)
    n_features: int = eqx.field(static=True)
    probability: float = eqx.field(static=True)
    low: float = eqx.field(static=True, default=0.0)
    high: float = eqx.field(static=True, default=1.0)
    synchronised: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        _check_sizes(self.batch_size, self.n_features, self.low, self.high)
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(
                f"probability is {self.probability}; it must be above 0 and at most 1, or no feature fires"
            )
        for group in self.synchronised:
            if not group or not all(0 <= member < self.n_features for member in group):
                raise ValueError(
                    f"synchronised group {group} must name features from 0 to {self.n_features - 1}"
                )

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, "batch features"]:
        """The batch `[batch_size, n_features]` of one step; `key` is that step's own."""
        del step
        key_value, key_mask, key_group = jax.random.split(key, 3)
        shape = (self.batch_size, self.n_features)
        u_value, u_mask = random_uniform(key_value, shape), random_uniform(key_mask, shape)
        batch = independent_features(u_value, u_mask, self.probability, self.low, self.high)
        if not self.synchronised:
            return batch
        u_groups = jax.random.uniform(key_group, (len(self.synchronised), *shape))
        return synchronised_features(batch, u_groups, self.synchronised, self.low, self.high)


class ExactlyActive(eqx.Module):
    """Each row has exactly `n_active` non-zero features, chosen uniformly, uniform in `[low, high)`.

    **Errors:** `ValueError` for sizes below one, an empty range, or more active features than there are.
    """

    batch_size: int = eqx.field(static=True)
    n_features: int = eqx.field(static=True)
    n_active: int = eqx.field(static=True)
    low: float = eqx.field(static=True, default=0.0)
    high: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        _check_sizes(self.batch_size, self.n_features, self.low, self.high)
        if not 1 <= self.n_active <= self.n_features:
            raise ValueError(
                f"n_active is {self.n_active}; it must be from 1 to n_features = {self.n_features}"
            )

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, "batch features"]:
        """The batch `[batch_size, n_features]` of one step; `key` is that step's own."""
        del step
        key_order, key_value = jax.random.split(key)
        u_order = jax.random.uniform(key_order, (self.batch_size, self.n_features))
        u_value = jax.random.uniform(key_value, (self.batch_size, self.n_active))
        return exactly_active_features(u_order, u_value, self.low, self.high)


def _check_sizes(batch_size: int, n_features: int, low: float, high: float) -> None:
    if batch_size < 1 or n_features < 1:
        raise ValueError(
            f"batch_size is {batch_size} and n_features is {n_features}; both must be at least 1"
        )
    if not low < high:
        raise ValueError(
            f"values are drawn from [low, high) = [{low}, {high}), which is empty; raise high"
        )
