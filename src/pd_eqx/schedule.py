"""Schedules: a value as a pure function of the step, by knots on normalised time.

A knot at time `t` sits at step `int(t · total)`; the last knot sits at the last update, `total − 1`, at the
latest, and counts for nothing if the knot before it leaves it no room. So a warm-up of `t` ends at step
`int(t · total)`, a schedule reaches its end at the last update and not one step after it, and past its last
knot the value holds: the conventions that published results were trained with, while a library's usual
cosine arrives one step late.

Source: golden numbers `08_optim_schedules`, `sched`.
"""

import dataclasses
import itertools
import math
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Shape = Literal["linear", "cosine", "hold"]


@dataclasses.dataclass(frozen=True)
class Knot:
    """A value at a normalised time in [0, 1], and how to go from here to the next knot.

    Two knots at one time make a jump.
    """

    time: float
    value: float
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        """Refuses a shape that is none."""
        if self.shape not in get_args(Shape):
            raise ValueError(f"a knot's shape is one of {get_args(Shape)}, found {self.shape!r}")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Values between knots, which are ordered by time.

    **Errors:** `ValueError` for knots that are none, unordered, or outside [0, 1].
    """

    knots: tuple[Knot, ...]

    def __post_init__(self) -> None:
        """Refuses knots that are none, unordered, or outside [0, 1]."""
        times = [knot.time for knot in self.knots]
        if not times or times != sorted(times) or not 0.0 <= times[0] <= times[-1] <= 1.0:
            raise ValueError(f"knot times must be ascending within 0 … 1, found {times}")

    def at(self, step: Int[Array, ""] | int, total: int) -> Float[Array, ""]:
        """The value at `step` of a run of `total` updates, as a scalar; `step` may be traced.

        **Errors:** `ValueError` for a run without updates.
        """
        if total < 1:
            raise ValueError(f"a schedule needs a run of 1 or more updates, found {total}")
        now = jnp.asarray(step)
        placed = self._placed(total)
        value = jnp.full((), self.knots[0].value, jnp.result_type(float))
        for (start, knot), (end, following) in itertools.pairwise([*placed, placed[-1]]):
            q = (now - start).astype(value.dtype) / max(end - start, 1)
            value = jnp.where(now >= start, _between(knot, following.value, q), value)
        return value

    def _placed(self, total: int) -> list[tuple[int, Knot]]:
        """Each knot with its step."""
        placed = [(int(knot.time * total), knot) for knot in self.knots]
        position, last = placed[-1]
        if position >= total:
            before = placed[-2][0] if len(placed) > 1 else -1
            placed[-1:] = [(total - 1, last)] if before < total - 1 else []
        return placed


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


def _between(knot: Knot, end: float, q: Array) -> Array:
    match knot.shape:
        case "hold":
            return jnp.full_like(q, knot.value)
        case "linear":
            return knot.value + (end - knot.value) * q
        case "cosine":
            return end + (knot.value - end) * 0.5 * (1.0 + jnp.cos(math.pi * q))
