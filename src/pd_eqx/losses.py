"""Losses: faithfulness, importance minimality, and the distances that reconstruction is measured by.

Each reduction is part of the published method, not a matter of taste: faithfulness pools all entries of all
sites; importance minimality averages over positions and sums over components and sites; a distance averages
over positions (KL) or over positions and coordinates (MSE). All means are over the whole batch, wherever its
parts lie: the frequency term takes a logarithm of such a mean, and a mean of logarithms of parts is another number.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pd_eqx.unembedding import Head, Outputs, Unembedding, logits_of, mean_by_position


def faithfulness(deltas: Mapping[str, Float[Array, "_ _"]]) -> Float[Array, ""]:
    """Mean square of the deltas `W − V @ U`, pooled over all entries of all sites.

    **Arguments:**

    - `deltas`: by site `[d_in, d_out]`, as `weight_deltas` gives them.

    **Returns:** a scalar, in squared weight units.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `04_weight_ci_losses`, `faith`.
    """
    entries = float(sum(delta.size for delta in deltas.values()))  # may be beyond an int32
    return sum((jnp.sum(jnp.square(delta)) for delta in deltas.values()), jnp.zeros(())) / entries


def relative_faithfulness(
    deltas: Mapping[str, Float[Array, "_ _"]], weights: Mapping[str, Float[Array, "_ _"]]
) -> dict[str, Float[Array, ""]]:
    """The share of each site's squared weight that its delta holds: `‖Δ‖² / ‖W‖²`.

    **Arguments:**

    - `deltas`: by site `[d_in, d_out]`.
    - `weights`: the target's, for at least these sites.

    **Returns:** a scalar by site, without unit; not finite for a site whose weight is all zeros.
    """
    return {
        site: jnp.sum(jnp.square(delta)) / jnp.sum(jnp.square(weights[site]))
        for site, delta in deltas.items()
    }


@dataclasses.dataclass(frozen=True)
class Anneal:
    """A value that goes linearly from `initial` to `final` while `step / total` goes from `start` to `end`.

    It reads the fraction of the run as it is, where a `Schedule` puts its knots on whole steps: both are the
    published conventions. A `start` of 1 never anneals.

    **Errors:** `ValueError` unless `0 ≤ start ≤ end ≤ 1`.

    Source: golden numbers `04_weight_ci_losses`, `anneal`.
    """

    initial: float
    final: float
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        """Refuses times outside the run."""
        if not 0.0 <= self.start <= self.end <= 1.0:
            raise ValueError(
                f"anneal from {self.start} to {self.end} of the run: give 0 ≤ start ≤ end ≤ 1"
            )

    def at(self, step: Int[Array, ""] | int, total: int) -> Float[Array, ""]:
        """The value at `step` of a run of `total` updates."""
        time = jnp.asarray(step, jnp.result_type(float)) / total
        if self.start >= 1.0:
            return jnp.full_like(time, self.initial)
        passed = (time - self.start) / max(self.end - self.start, 1e-12)
        value = self.initial + (self.final - self.initial) * jnp.maximum(passed, 0.0)
        return jnp.where(time >= self.end, self.final, value)


def annealed(
    value: float | Anneal, step: Int[Array, ""] | int, total: int
) -> float | Float[Array, ""]:
    """A setting at `step` of a run of `total` updates; one that is a number stays one, and so is compiled in."""
    return value.at(step, total) if isinstance(value, Anneal) else value


def lp_penalty(
    ci: Float[Array, "..."], p: float | Float[Array, ""], eps: float | Float[Array, ""]
) -> Float[Array, "..."]:
    """`(ci + eps)^p`, at least in float32; `eps`, inside the power, keeps the gradient finite at 0 for `p < 1`.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `04_weight_ci_losses`, `imp`.
    """
    return (_wide(ci) + eps) ** p


def smooth_l0_penalty(
    ci: Float[Array, "..."], width: float | Float[Array, ""]
) -> Float[Array, "..."]:
    """`1 − exp(−ci² / (2 · width²))`: near 0 for importances far below `width`, near 1 far above.

    As the width shrinks this tends to the number of importances that are not 0. Its gradient is largest at
    `ci = width`, at `exp(−½) / width`, and vanishes on both sides, unlike that of an Lp penalty, which grows
    without bound towards 0.

    Source: the smoothed ℓ0 norm of Mohimani, Babaie-Zadeh and Jutten 2009 (arXiv 0809.2508).
    """
    return -jnp.expm1(-0.5 * jnp.square(_wide(ci) / width))


def mean_over_positions(
    penalties: Mapping[str, Float[Array, "..."]],
) -> dict[str, Float[Array, " _"]]:
    """The mean over positions of each component's penalty: `[C]` by site, from `[*lead, C]`."""
    return {
        site: jnp.mean(penalty, axis=tuple(range(penalty.ndim - 1)))
        for site, penalty in penalties.items()
    }


@dataclasses.dataclass(frozen=True)
class Frequency:
    """The frequency term: a component that matters often pays more each time.

    A component of mean penalty `m` pays `m · (1 + weight · log2(1 + reference · m̄))`.

    - `weight`: of the term (β).
    - `reference`: the number of positions that frequencies refer to. The published convention, `log2` of the batch's
      sum, is a reference of the batch's number of positions: it makes the term depend on the batch size, which is
      why the count is to be stated.
    - `decay`: None for `m̄ = m`; otherwise `m̄` is the debiased exponential moving average of `m` over
      updates, this batch included. A decay of 0 is the plain form, gradients included.

    **Errors:** `ValueError` for a reference below 1 or a decay outside [0, 1).
    """

    weight: float
    reference: int
    decay: float | None = None

    def __post_init__(self) -> None:
        """Refuses what would make the logarithm meaningless."""
        if self.reference < 1:
            raise ValueError(f"a reference count is 1 or more, found {self.reference}")
        if self.decay is not None and not 0.0 <= self.decay < 1.0:
            raise ValueError(f"a decay lies in 0 … 1, 1 excluded; found {self.decay}")

    def moved(
        self, average: Mapping[str, Float[Array, " _"]], means: Mapping[str, Float[Array, " _"]]
    ) -> dict[str, Float[Array, " _"]]:
        """The biased average after one more batch, `decay · average + (1 − decay) · m`."""
        decay = 0.0 if self.decay is None else self.decay
        return {site: decay * average[site] + (1.0 - decay) * m for site, m in means.items()}

    def debiased(
        self, average: Mapping[str, Float[Array, " _"]], batches: Int[Array, ""] | int
    ) -> dict[str, Float[Array, " _"]]:
        """An average that began at 0 and has seen `batches` of them, divided by `1 − decay^batches`."""
        if not self.decay:
            return dict(average)
        count = jnp.asarray(batches, jnp.result_type(float))
        share = -jnp.expm1(count * math.log(self.decay))
        return {site: values / share for site, values in average.items()}


def minimality(
    means: Mapping[str, Float[Array, " _"]],
    frequency: Frequency | None = None,
    frequencies: Mapping[str, Float[Array, " _"]] | None = None,
) -> Float[Array, ""]:
    """The sum over components and sites of the mean penalties, with the frequency term if there is one.

    **Arguments:**

    - `means`: mean penalty of each component, `[C]` by site.
    - `frequencies`: `m̄` of the frequency term; the means themselves if left out.

    Source: golden numbers `04_weight_ci_losses`, `imp` and `imp_world`.
    """
    total = jnp.zeros(())
    for site, m in means.items():
        total = total + jnp.sum(m)
        if frequency is not None:
            m_bar = (means if frequencies is None else frequencies)[site]
            # log1p keeps what a rare component's frequency would lose beside 1.
            often = jnp.log1p(frequency.reference * m_bar) / math.log(2.0)
            total = total + frequency.weight * jnp.sum(m * often)
    return total


def importance_minimality(
    upper: Mapping[str, Float[Array, "..."]],
    p: float | Float[Array, ""],
    eps: float | Float[Array, ""],
    frequency: Frequency | None = None,
) -> Float[Array, ""]:
    """The Lp penalty on one batch's importances: mean over positions, sum over components and sites.

    **Arguments:**

    - `upper`: upper-squashed importances `[*lead, C]` by site.
    - `p`, `eps`: see `lp_penalty`.
    - `frequency`: the frequency term, in its plain form.
    """
    penalties = {site: lp_penalty(ci, p, eps) for site, ci in upper.items()}
    return minimality(mean_over_positions(penalties), frequency)


class Distance(abc.ABC):
    """How far a masked output is from the clean one."""

    @abc.abstractmethod
    def __call__(self, outputs: Outputs, clean: Outputs) -> Float[Array, ""]:
        """The mean distance between outputs of one shape `[*lead, d]`, a scalar."""


@dataclasses.dataclass(frozen=True)
class MeanSquaredError(Distance):
    """Mean over positions and coordinates of the squared difference, at least in float32."""

    def __call__(self, outputs: Outputs, clean: Outputs) -> Float[Array, ""]:
        """See `Distance`."""
        return jnp.mean(jnp.square(_wide(logits_of(outputs)) - _wide(logits_of(clean))))


@dataclasses.dataclass(frozen=True)
class KLDivergence(Distance):
    """`KL(softmax(clean) ‖ softmax(masked))` in nats, mean over positions, at least in float32.

    - `at_once`: of outputs that come as hidden states, about how many logits may be alive together: 2^24 in
      float32 are 64 MiB. Changes memory, and no number.
    """

    at_once: int = 1 << 24

    def __call__(self, outputs: Outputs, clean: Outputs) -> Float[Array, ""]:
        """See `Distance`."""
        if isinstance(outputs, Unembedding) and isinstance(clean, Unembedding):
            return mean_by_position(_kl_apart, outputs, clean.hidden, clean.head, self.at_once)
        return jnp.mean(kl_by_position(logits_of(outputs), logits_of(clean)))


def kl_by_position(
    outputs: Float[Array, "*lead d"], clean: Float[Array, "*lead d"]
) -> Float[Array, "*lead"]:
    """`Σ p (log p − log q)` over the last axis, `p` of the clean logits; where `p` is 0 its term is 0."""
    log_q = jax.nn.log_softmax(_wide(outputs), axis=-1)
    log_p = jax.nn.log_softmax(_wide(clean), axis=-1)
    p = jnp.exp(log_p)
    return jnp.sum(jnp.where(p > 0.0, p * (log_p - log_q), 0.0), axis=-1)


def _kl_apart(
    hidden: Float[Array, "*lead width"],
    clean: Float[Array, "*lead _"],
    heads: tuple[Head, Head],
) -> Float[Array, "*lead"]:
    head, of_clean = heads
    return kl_by_position(head(hidden), of_clean(clean))


def _wide(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """At least float32: powers, logarithms and means of a batch lose their meaning in bfloat16."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
