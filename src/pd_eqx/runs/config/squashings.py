"""Squashings in a configuration: how a logit becomes a causal importance."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pd_eqx.runs.config.base import Fraction, Node, Positive

if TYPE_CHECKING:
    from pd_eqx.ci.squashing import Squashing


class LeakyHardConfig(Node):
    """The published pair, one map for masks and one for minimality; `leak` is the slope outside [0, 1]."""

    kind: Literal["leaky_hard"]
    leak: Fraction = 0.01

    def build(self) -> "Squashing":
        """The library's squashing."""
        from pd_eqx.ci.squashing import LeakyHard

        return LeakyHard(self.leak)


class UnpairedLeakyHardConfig(Node):
    """One map for both; it goes on below 0 with the slope `leak`."""

    kind: Literal["unpaired_leaky_hard"]
    leak: Fraction = 0.01

    def build(self) -> "Squashing":
        """The library's squashing."""
        from pd_eqx.ci.squashing import UnpairedLeakyHard

        return UnpairedLeakyHard(self.leak)


class HardConfig(Node):
    """A clip to [0, 1] for both; nothing leaks."""

    kind: Literal["hard"]

    def build(self) -> "Squashing":
        """The library's squashing."""
        from pd_eqx.ci.squashing import Hard

        return Hard()


class LogisticConfig(Node):
    """The logistic function for both."""

    kind: Literal["logistic"]

    def build(self) -> "Squashing":
        """The library's squashing."""
        from pd_eqx.ci.squashing import Logistic

        return Logistic()


class SwishHardConfig(Node):
    """A smooth clip to about [0, 1] for both, the sharper the larger `beta`."""

    kind: Literal["swish_hard"]
    beta: Positive = 10.0

    def build(self) -> "Squashing":
        """The library's squashing."""
        from pd_eqx.ci.squashing import SwishHard

        return SwishHard(self.beta)


AnySquashing = Annotated[
    LeakyHardConfig | UnpairedLeakyHardConfig | HardConfig | LogisticConfig | SwishHardConfig,
    Field(discriminator="kind"),
]
PUBLISHED = LeakyHardConfig(kind="leaky_hard")
