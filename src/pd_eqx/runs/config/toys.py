"""Toys in a configuration: small networks that are trained in the run, and what their decompositions should show."""

import abc
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field

from pd_eqx.runs.config.base import Count, CountOrNone, Fraction, Node, NotNegative, Positive
from pd_eqx.runs.config.target_base import (
    ReadsTokens,
    TrainedTarget,
    activity,
    heads_share,
)

if TYPE_CHECKING:
    from pd_eqx.evals.evaluation import EvaluationSettings
    from pd_eqx.evals.patterns import Pattern
    from pd_eqx.runs.config.evaluation import EvaluationConfig
    from pd_eqx.targets.training import Training


class FeatureTarget(TrainedTarget, abc.ABC):
    """A toy that reads sparse features."""

    reads: ClassVar[tuple[str, ...]] = ("sparse_features",)

    n_features: Count

    @abc.abstractmethod
    def expected(self, counts: dict[str, int]) -> "dict[str, Pattern]":
        """The pattern of importances that each decomposed site should show.

        **Arguments:**

        - `counts`: components by site; a site with fewer than its pattern needs is not judged.
        """

    def evaluation(
        self, settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool
    ) -> "EvaluationSettings":
        """See `TargetConfig.evaluation`."""
        from pd_eqx.adversary import ProjectedGradient
        from pd_eqx.evals.toys import toy_in_full, toy_in_loop

        expected = self.expected(counts)
        active = activity(settings, counts, in_full=in_full)
        if not in_full:
            return toy_in_loop(
                self.n_features, expected, n_batches=settings.batches, activity=active
            )
        return toy_in_full(
            self.n_features,
            expected,
            n_batches=settings.batches,
            activity=active,
            adversary=ProjectedGradient(settings.pgd_steps, settings.pgd_step_size),
        )


class TMSTrainingConfig(Node):
    """How a toy model of superposition is trained; see `pd_eqx.targets.tms.TMSTraining`."""

    steps: Count = 2000
    batch_size: Count = 2048
    learning_rate: Positive = 1e-2
    probability: Fraction = 0.05
    importance: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    attempts: Count = 8


class TMSTarget(FeatureTarget):
    """A toy model of superposition."""

    kind: Literal["tms"]
    n_features: Count
    n_hidden: Count
    n_hidden_layers: CountOrNone = 0
    training: TMSTrainingConfig = TMSTrainingConfig()

    def recipe(self) -> "Training[Any]":
        """See `TrainedTarget.recipe`."""
        from pd_eqx.targets.tms import TMSTraining

        return TMSTraining(
            n_features=self.n_features,
            n_hidden=self.n_hidden,
            n_hidden_layers=self.n_hidden_layers,
            **self.training.model_dump(),
        )

    def expected(self, counts: dict[str, int]) -> "dict[str, Pattern]":
        """A component a feature in the outer matrices; all of the hidden width, for all features, between."""
        from pd_eqx.evals.patterns import Dense, Identity

        return {
            site: Identity() if site.startswith("linear") else Dense(self.n_hidden)
            for site, count in counts.items()
            if count >= (self.n_features if site.startswith("linear") else self.n_hidden)
        }


class ResidMLPTrainingConfig(Node):
    """How a residual MLP is trained; see `pd_eqx.targets.resid_mlp.ResidMLPTraining`."""

    label: Literal["act_plus_resid", "abs"] = "act_plus_resid"
    coefficient_low: float = 1.0
    coefficient_high: float = 1.0
    steps: Count = 1000
    batch_size: Count = 2048
    learning_rate: Positive = 3e-3
    probability: Fraction = 0.01
    max_loss: Positive = 0.45
    min_response: NotNegative = 0.25
    attempts: Count = 3


class ResidMLPTarget(FeatureTarget):
    """A residual MLP that computes more features than it has neurons."""

    kind: Literal["resid_mlp"]
    n_features: Count
    d_embed: Count
    n_neurons: Count
    n_layers: Count = 1
    activation: Literal["relu", "gelu"] = "relu"
    in_bias: bool = False
    out_bias: bool = False
    training: ResidMLPTrainingConfig = ResidMLPTrainingConfig()

    @pydantic.model_validator(mode="after")
    def _can_be_trained(self) -> "ResidMLPTarget":
        if self.n_neurons % self.n_layers:
            raise ValueError(
                f"n_neurons is {self.n_neurons}, which n_layers = {self.n_layers} cannot share evenly"
            )
        return self

    def recipe(self) -> "Training[Any]":
        """See `TrainedTarget.recipe`."""
        from pd_eqx.targets.resid_mlp import ResidMLPTraining

        shape = self.model_dump(exclude={"kind", "training", "cache"})
        return ResidMLPTraining(**shape, **self.training.model_dump())

    def expected(self, counts: dict[str, int]) -> "dict[str, Pattern]":
        """A component a feature into the first layer's neurons; a component a neuron, for all features, out of them."""
        from pd_eqx.evals.patterns import Dense, Identity

        width = self.n_neurons // self.n_layers
        return {
            site: Dense(width) if site.endswith("mlp_out") else Identity()
            for site, count in counts.items()
            if (site.endswith("mlp_out") and count >= width)
            or (self.n_layers == 1 and count >= self.n_features)
        }


class InductionTrainingConfig(Node):
    """How the induction toy is trained; see `pd_eqx.targets.induction.InductionTraining`."""

    batch_size: Count = 64
    steps: Count = 3000
    learning_rate: Positive = 1e-2
    min_accuracy: Fraction = 0.99
    attempts: Count = 3


class InductionTarget(ReadsTokens, TrainedTarget):
    """A small attention-only transformer that says what followed a token the last time."""

    reads: ClassVar[tuple[str, ...]] = ("repeated_prefix",)
    next_token: ClassVar[bool] = True

    kind: Literal["induction"]
    vocabulary: Count = 32
    length: Count = 24
    shortest: Count = 6
    longest: Count = 12
    width: Count = 32
    heads: Count = 1
    depth: Count = 2
    training: InductionTrainingConfig = InductionTrainingConfig()

    @pydantic.model_validator(mode="after")
    def _can_be_trained(self) -> "InductionTarget":
        heads_share(self.width, self.heads)
        if not self.shortest <= self.longest <= min(self.vocabulary, self.length - 2):
            raise ValueError(
                f"the repeated prefix has shortest = {self.shortest} to longest = {self.longest} distinct "
                f"tokens; it must fit into a vocabulary of {self.vocabulary}, and {self.length} tokens must "
                "hold it and two more"
            )
        return self

    def recipe(self) -> "Training[Any]":
        """See `TrainedTarget.recipe`."""
        from pd_eqx.targets.induction import InductionTraining

        shape = self.model_dump(exclude={"kind", "training", "cache"})
        return InductionTraining(**shape, **self.training.model_dump())


class ModularAdditionTrainingConfig(Node):
    """How the adding toy is trained; see `pd_eqx.targets.modular_addition.ModularAdditionTraining`."""

    shown: Fraction = 0.75
    steps: Count = 1000
    learning_rate: Positive = 1e-2
    weight_decay: NotNegative = 1.0
    min_accuracy: Fraction = 0.99
    max_loss: Positive = 0.1
    attempts: Count = 3


class ModularAdditionTarget(ReadsTokens, TrainedTarget):
    """A one-layer transformer that adds modulo a number."""

    reads: ClassVar[tuple[str, ...]] = ("modular_pairs",)
    next_token: ClassVar[bool] = False

    kind: Literal["modular_addition"]
    modulus: Annotated[int, Field(ge=2)] = 31
    width: Count = 64
    heads: Count = 4
    mlp_width: Count = 128
    training: ModularAdditionTrainingConfig = ModularAdditionTrainingConfig()

    @pydantic.model_validator(mode="after")
    def _can_be_trained(self) -> "ModularAdditionTarget":
        heads_share(self.width, self.heads)
        pairs = self.modulus**2
        if not 1 <= int(self.training.shown * pairs) < pairs:
            raise ValueError(
                f"training.shown is {self.training.shown}; of {pairs} pairs there must be at least one to "
                "train on and one to check with"
            )
        return self

    def recipe(self) -> "Training[Any]":
        """See `TrainedTarget.recipe`."""
        from pd_eqx.targets.modular_addition import ModularAdditionTraining

        shape = self.model_dump(exclude={"kind", "training", "cache"})
        return ModularAdditionTraining(**shape, **self.training.model_dump())
