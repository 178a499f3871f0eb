"""The terms of the objective in a configuration."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pd_eqx.runs.config.base import (
    Count,
    Decay,
    Name,
    Node,
    NotNegative,
    Positive,
    SitePatterns,
)
from pd_eqx.runs.config.masks import ALL_SITES, AnyRouting, AnySource, PersistentAdversaryConfig
from pd_eqx.runs.config.schedules import AnySchedule, AnyValue, fixed

if TYPE_CHECKING:
    from pd_eqx.losses import Distance, Frequency
    from pd_eqx.objective import Term

DistanceName = Literal["mse", "kl"]


class FaithfulnessConfig(Node):
    """The components sum to the weights."""

    kind: Literal["faithfulness"]
    name: Name = "faithfulness"
    coefficient: NotNegative = 1.0

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import Faithfulness

        return Faithfulness(self.coefficient, self.name)


class RelativeFaithfulnessConfig(Node):
    """The components sum to the weights, each site in its own unit."""

    kind: Literal["relative_faithfulness"]
    name: Name = "relative_faithfulness"
    coefficient: NotNegative = 1.0

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import RelativeFaithfulness

        return RelativeFaithfulness(self.coefficient, self.name)


class FrequencyConfig(Node):
    """A component that matters often pays more each time; see `pd_eqx.losses.Frequency`."""

    weight: NotNegative
    reference: Count
    decay: Decay | None = None

    def build(self) -> "Frequency":
        """The library's frequency term."""
        from pd_eqx.losses import Frequency

        return Frequency(self.weight, self.reference, self.decay)


class ImportanceMinimalityConfig(Node):
    """Few components matter: the mean of `(ci + eps)^p`."""

    kind: Literal["importance_minimality"]
    name: Name = "importance_minimality"
    coefficient: NotNegative
    p: AnyValue = fixed(1.0)
    eps: AnyValue = fixed(1e-12)
    frequency: FrequencyConfig | None = None
    sites: SitePatterns = Field(default_factory=lambda: ["*"])

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import ImportanceMinimality

        return ImportanceMinimality(
            self.coefficient,
            self.p.build(),
            self.eps.build(),
            self.name,
            None if self.frequency is None else self.frequency.build(),
            tuple(self.sites),
        )


class SmoothL0Config(Node):
    """Few components matter: a smooth count of those above a width."""

    kind: Literal["smooth_l0"]
    name: Name = "smooth_l0"
    coefficient: NotNegative
    width: AnyValue
    frequency: FrequencyConfig | None = None
    sites: SitePatterns = Field(default_factory=lambda: ["*"])

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import SmoothL0

        frequency = None if self.frequency is None else self.frequency.build()
        return SmoothL0(
            self.coefficient, self.width.build(), self.name, frequency, tuple(self.sites)
        )


class ReconstructionConfig(Node):
    """The masked output stays near the clean one."""

    kind: Literal["reconstruction"]
    name: Name
    coefficient: NotNegative = 1.0
    distance: DistanceName = "mse"
    source: AnySource
    routing: AnyRouting = ALL_SITES
    samples: Count = 1

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import Reconstruction

        return Reconstruction(
            self.name,
            distance_named(self.distance),
            self.source.build(),
            self.routing.build(),
            self.coefficient,
            self.samples,
        )


class PersistentReconstructionConfig(Node):
    """The masked output stays near the clean one under an adversary that is carried from step to step."""

    kind: Literal["persistent_reconstruction"]
    name: Name
    coefficient: Positive = 1.0
    distance: DistanceName = "mse"
    adversary: PersistentAdversaryConfig
    routing: AnyRouting = ALL_SITES

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import PersistentReconstruction

        return PersistentReconstruction(
            self.name,
            distance_named(self.distance),
            self.adversary.build(),
            self.routing.build(),
            self.coefficient,
        )


class MergedReconstructionConfig(Node):
    """The same, with each batch element met by the adversary or by uniform draws, with a scheduled probability."""

    kind: Literal["merged_reconstruction"]
    name: Name
    coefficient: Positive = 1.0
    distance: DistanceName = "mse"
    adversary: PersistentAdversaryConfig
    probability: AnySchedule
    routing: AnyRouting = ALL_SITES

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import MergedReconstruction

        return MergedReconstruction(
            self.name,
            distance_named(self.distance),
            self.adversary.build(),
            self.probability.build(),
            self.routing.build(),
            self.coefficient,
        )


AnyTerm = Annotated[
    FaithfulnessConfig
    | RelativeFaithfulnessConfig
    | ImportanceMinimalityConfig
    | SmoothL0Config
    | ReconstructionConfig
    | PersistentReconstructionConfig
    | MergedReconstructionConfig,
    Field(discriminator="kind"),
]


def distance_named(name: DistanceName) -> "Distance":
    """The library's distance of a reconstruction term."""
    from pd_eqx.losses import KLDivergence, MeanSquaredError

    return KLDivergence() if name == "kl" else MeanSquaredError()
