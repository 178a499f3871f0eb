"""Schedules in a configuration: values over the course of a run."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from pd_eqx.runs.config.base import Fraction, Node, NotNegative

if TYPE_CHECKING:
    from pd_eqx.losses import Anneal
    from pd_eqx.schedule import Schedule

Shape = Literal["linear", "cosine", "hold"]


class ConstantSchedule(Node):
    """The same value at every step."""

    kind: Literal["constant"]
    value: NotNegative

    def build(self) -> "Schedule":
        """The library's schedule."""
        from pd_eqx.schedule import constant

        return constant(self.value)


class DecayingSchedule(Node):
    """A linear warm-up, then from `value` down to `final_fraction` of it at the last update."""

    kind: Literal["decaying"]
    value: NotNegative
    shape: Shape = "cosine"
    final_fraction: NotNegative = 0.0
    warmup: Fraction = 0.0

    def build(self) -> "Schedule":
        """The library's schedule."""
        from pd_eqx.schedule import decaying

        return decaying(self.value, self.shape, self.final_fraction, self.warmup)


class KnotConfig(Node):
    """A value at a fraction of the run, and how to go on from there."""

    time: Fraction
    value: float
    shape: Shape = "linear"


class KnotSchedule(Node):
    """Values between knots, whose times ascend."""

    kind: Literal["knots"]
    knots: Annotated[list[KnotConfig], Field(min_length=1)]

    @pydantic.field_validator("knots")
    @classmethod
    def _ascending(cls, knots: list[KnotConfig]) -> list[KnotConfig]:
        times = [knot.time for knot in knots]
        if times != sorted(times):
            raise ValueError(f"times must ascend, found {times}")
        return knots

    def build(self) -> "Schedule":
        """The library's schedule."""
        from pd_eqx.schedule import Knot, Schedule

        return Schedule(tuple(Knot(knot.time, knot.value, knot.shape) for knot in self.knots))


AnySchedule = Annotated[
    ConstantSchedule | DecayingSchedule | KnotSchedule, Field(discriminator="kind")
]


class ConstantValue(Node):
    """A setting of a loss that stays as it is."""

    kind: Literal["constant"]
    value: NotNegative

    def build(self) -> "float | Anneal":
        """What the library's term takes."""
        return self.value


class AnnealedValue(Node):
    """A setting of a loss that goes linearly from `initial` to `final`, between two fractions of the run."""

    kind: Literal["annealed"]
    initial: NotNegative
    final: NotNegative
    start: Fraction = 0.0
    end: Fraction = 1.0

    @pydantic.model_validator(mode="after")
    def _forwards(self) -> "AnnealedValue":
        if self.end < self.start:
            raise ValueError(f"end is {self.end}, before start, which is {self.start}")
        return self

    def build(self) -> "float | Anneal":
        """What the library's term takes."""
        from pd_eqx.losses import Anneal

        return Anneal(self.initial, self.final, self.start, self.end)


def _as_constant(value: Any) -> Any:
    return {"kind": "constant", "value": value} if isinstance(value, int | float) else value


# A bare number stays what it is.
AnyValue = Annotated[
    ConstantValue | AnnealedValue,
    Field(discriminator="kind"),
    pydantic.BeforeValidator(_as_constant),
]


def fixed(value: float) -> ConstantValue:
    """A default of a setting that may be annealed."""
    return ConstantValue(kind="constant", value=value)
