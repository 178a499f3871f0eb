"""Schedules: a value as a pure function of the step, by knots on normalised time.

A knot at time `t` sits at step `min(int(t · total), total − 1)`, so that a schedule reaches its end at the
last update and a warm-up of `t` ends at step `int(t · total)`: the conventions that published results were
trained with. Past the last knot the value holds.

Source: golden numbers `08_optim_schedules`, `sched`.
"""

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Shape = Literal["linear", "cosine", "hold"]


@dataclasses.dataclass(frozen=True)
class Knot:
    """A value at a normalised time in [0, 1], and how to go from here to the next knot."""

    time: float
    value: float
    shape: Shape = "linear"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Values between knots, which are ordered by time."""

    knots: tuple[Knot, ...]

    def __post_init__(self) -> None:
        """Refuses knots that are none, unordered, or outside [0, 1]."""
        times = [knot.time for knot in self.knots]
        if not times or times != sorted(times) or times[0] < 0.0 or times[-1] > 1.0:
            raise ValueError(f"knot times must be ascending within 0 … 1, found {times}")

    def at(self, step: Int[Array, ""] | int, total: int) -> Float[Array, ""]:
        """The value at `step` of a run of `total` updates, as a scalar."""
        now = jnp.asarray(step, dtype=jnp.result_type(float))
        value = jnp.full_like(now, self.knots[0].value)
        for knot, following in zip(self.knots, self.knots[1:] + self.knots[-1:], strict=True):
            start, end = _position(knot, total), _position(following, total)
            q = (now - start) / max(end - start, 1)
            value = jnp.where(now >= start, _between(knot, following.value, q), value)
        return value


def constant(value: float) -> Schedule:
    """The same value at every step."""
    return Schedule((Knot(0.0, value, "hold"),))


def decaying(
    value: float, shape: Shape = "cosine", final_fraction: float = 0.0, warmup: float = 0.0
) -> Schedule:
    """From `value` to `final_fraction · value` at the last update, after a linear warm-up from 0.

    `warmup` is the fraction of the run that the warm-up takes.
    """
    rise = (Knot(0.0, 0.0, "linear"),) if warmup > 0.0 else ()
    return Schedule((*rise, Knot(warmup, value, shape), Knot(1.0, final_fraction * value, "hold")))


def _position(knot: Knot, total: int) -> int:
    return min(int(knot.time * total), total - 1)


def _between(knot: Knot, end: float, q: Array) -> Array:
    match knot.shape:
        case "hold":
            return jnp.full_like(q, knot.value)
        case "linear":
            return knot.value + (end - knot.value) * q
        case "cosine":
            return end + (knot.value - end) * 0.5 * (1.0 + jnp.cos(math.pi * q))
