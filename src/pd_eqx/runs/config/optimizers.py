"""Optimizers in a configuration."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pd_eqx.runs.config.base import Count, Fraction, Node, NotNegative, Positive
from pd_eqx.runs.config.schedules import AnySchedule

if TYPE_CHECKING:
    from pd_eqx.optimizers import Optimizer, Optimizers


class AdamWConfig(Node):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]
    lr: AnySchedule
    b1: Fraction = 0.9
    b2: Fraction = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    clip_norm: Positive | None = None

    def build(self) -> "Optimizer":
        """The library's optimizer."""
        from pd_eqx.optimizers import AdamW

        return AdamW(self.lr.build(), self.b1, self.b2, self.eps, self.weight_decay, self.clip_norm)


class MuonConfig(Node):
    """Momentum with orthogonalised matrices; Adam for all else."""

    kind: Literal["muon"]
    lr: AnySchedule
    beta: Fraction = 0.95
    iterations: Count = 5
    b1: Fraction = 0.9
    b2: Fraction = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    clip_norm: Positive | None = None

    def build(self) -> "Optimizer":
        """The library's optimizer."""
        from pd_eqx.optimizers import Muon

        return Muon(schedule=self.lr.build(), **self.model_dump(exclude={"kind", "lr"}))


AnyOptimizer = Annotated[AdamWConfig | MuonConfig, Field(discriminator="kind")]


class OptimizersConfig(Node):
    """One optimizer for each parameter group."""

    components: AnyOptimizer
    ci_fn: AnyOptimizer

    def build(self) -> "Optimizers":
        """The library's optimizers."""
        from pd_eqx.optimizers import Optimizers

        return Optimizers(self.components.build(), self.ci_fn.build())


class FaithfulnessWarmupConfig(Node):
    """Updates of the components alone, down faithfulness alone, before step 0."""

    steps: Count
    optimizer: AnyOptimizer
