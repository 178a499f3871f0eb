"""Where a term's masks come from and which sites they fall on, in a configuration."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pd_eqx.runs.config.base import Count, CountOrNone, Fraction, Node, Positive
from pd_eqx.runs.config.schedules import AnySchedule

if TYPE_CHECKING:
    from pd_eqx.adversary import Ascent, PersistentAdversary, Scope
    from pd_eqx.masks import MaskSource, Routing


class ScopeConfig(Node):
    """Which positions share a source.

    Letters name what has sources of its own: each component (c), batch element (b), sequence position (s).
    `repeat` gives `c` and `sc` that many sources, which the batch elements take in turn.
    """

    letters: Literal["c", "bc", "sc", "bsc"] = "c"
    repeat: Count = 1

    def build(self) -> "Scope":
        """The library's scope."""
        from pd_eqx.adversary import Scope

        return Scope(None if "b" in self.letters else self.repeat, "s" in self.letters)


class StochasticSourceConfig(Node):
    """Uniform draws at each position."""

    kind: Literal["stochastic"]
    delta: bool = True

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import StochasticSource

        return StochasticSource(self.delta)


class BinomialSourceConfig(Node):
    """Fair coins at each position."""

    kind: Literal["binomial"]
    delta: bool = True

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import BinomialSource

        return BinomialSource(self.delta)


class ConstantSourceConfig(Node):
    """One value everywhere: 0 for masks equal to the importances."""

    kind: Literal["constant"]
    value: Fraction

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import ConstantSource

        return ConstantSource(self.value)


class UnmaskedConfig(Node):
    """All components whole."""

    kind: Literal["unmasked"]

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import Unmasked

        return Unmasked()


class ProjectedGradientConfig(Node):
    """A fresh adversary at every step: signed gradient steps up the term's loss."""

    kind: Literal["projected_gradient"]
    steps: Count
    step_size: Positive
    init: Literal["random", "ones", "zeros"] = "random"
    scope: ScopeConfig = ScopeConfig()
    delta: bool = True

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.adversary import ProjectedGradient

        scope = self.scope.build()
        return ProjectedGradient(self.steps, self.step_size, self.init, scope, self.delta)


AnySource = Annotated[
    StochasticSourceConfig
    | BinomialSourceConfig
    | ConstantSourceConfig
    | UnmaskedConfig
    | ProjectedGradientConfig,
    Field(discriminator="kind"),
]


class AdamAscentConfig(Node):
    """An adversary that climbs by Adam."""

    kind: Literal["adam"]
    lr: AnySchedule
    b1: Fraction = 0.9
    b2: Fraction = 0.999
    eps: Positive = 1e-8

    def build(self) -> "Ascent":
        """The library's ascent."""
        from pd_eqx.adversary import AdamAscent

        return AdamAscent(self.lr.build(), self.b1, self.b2, self.eps)


class SignAscentConfig(Node):
    """An adversary that climbs by the signs of its gradients."""

    kind: Literal["sign"]
    lr: AnySchedule

    def build(self) -> "Ascent":
        """The library's ascent."""
        from pd_eqx.adversary import SignAscent

        return SignAscent(self.lr.build())


class PersistentAdversaryConfig(Node):
    """An adversary whose sources are carried from step to step."""

    ascent: Annotated[AdamAscentConfig | SignAscentConfig, Field(discriminator="kind")]
    scope: ScopeConfig = ScopeConfig()
    warmups: CountOrNone = 0
    projection: Literal["clamp", "sigmoid"] = "clamp"
    delta: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"

    def build(self) -> "PersistentAdversary":
        """The library's adversary."""
        import jax.numpy as jnp

        from pd_eqx.adversary import Clamp, PersistentAdversary, Sigmoid

        return PersistentAdversary(
            ascent=self.ascent.build(),
            scope=self.scope.build(),
            warmups=self.warmups,
            projection=Clamp() if self.projection == "clamp" else Sigmoid(),
            delta=self.delta,
            dtype=jnp.dtype(self.dtype),
        )


class AllSitesConfig(Node):
    """Every site is masked everywhere."""

    kind: Literal["all"]

    def build(self) -> "Routing":
        """The library's routing."""
        from pd_eqx.masks import AllSites

        return AllSites()


class OneSiteAtATimeConfig(Node):
    """One forward a site, with that site masked."""

    kind: Literal["layerwise"]

    def build(self) -> "Routing":
        """The library's routing."""
        from pd_eqx.masks import OneSiteAtATime

        return OneSiteAtATime()


class UniformSubsetConfig(Node):
    """At each position a uniform number of sites, chosen uniformly."""

    kind: Literal["uniform_subset"]

    def build(self) -> "Routing":
        """The library's routing."""
        from pd_eqx.masks import UniformSubset

        return UniformSubset()


class StaticProbabilityConfig(Node):
    """Each site at each position with one probability."""

    kind: Literal["static_probability"]
    probability: Fraction

    def build(self) -> "Routing":
        """The library's routing."""
        from pd_eqx.masks import StaticProbability

        return StaticProbability(self.probability)


AnyRouting = Annotated[
    AllSitesConfig | OneSiteAtATimeConfig | UniformSubsetConfig | StaticProbabilityConfig,
    Field(discriminator="kind"),
]
ALL_SITES = AllSitesConfig(kind="all")
