"""What a run can be configured by: one class for each kind of thing, checked before anything slow is imported.

The library takes modules and dataclasses and never a configuration; each class here has a `kind` and a `build`
that makes the library's object, so a new kind is a new class. A misspelt key that was silently ignored would be a
run with the wrong settings, so unknown keys are refused. `config_file` reads these classes from YAML.

Every field changes the trajectory of a run unless it is marked `beside_trajectory`: a run is resumed only under a
configuration that agrees in all that do, or its record would describe a run that never was.
"""

import abc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

if TYPE_CHECKING:
    from pd_eqx.adversary import Scope
    from pd_eqx.evals.evaluation import EvaluationSettings
    from pd_eqx.evals.patterns import Pattern
    from pd_eqx.losses import Distance
    from pd_eqx.masks import MaskSource, Routing
    from pd_eqx.objective import Objective, Term
    from pd_eqx.optimizers import Optimizer, Optimizers
    from pd_eqx.schedule import Schedule
    from pd_eqx.step import BatchSource
    from pd_eqx.targets.base import Target
    from pd_eqx.targets.training import Training

_BESIDE_TRAJECTORY = "beside_trajectory"


def beside_trajectory(default: Any = ..., **constraints: Any) -> Any:
    """A field that a resumed run may change: it does not reach the state."""
    return Field(default, json_schema_extra={_BESIDE_TRAJECTORY: True}, **constraints)


class Node(pydantic.BaseModel):
    """Any part of a configuration."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=False
    )


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Shape = Literal["linear", "cosine", "hold"]


# Schedules


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


# Targets


class ToyTarget(Node, abc.ABC):
    """A toy that is trained in the run, from the run's seed."""

    @abc.abstractmethod
    def settings(self) -> "Training[Any]":
        """The library's settings of its training."""

    @abc.abstractmethod
    def evaluation(
        self, settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool
    ) -> "EvaluationSettings":
        """What is measured on it: in the loop, or in full at the end of a run."""

    def abstract(self) -> "Target":
        """The target's shapes, without numbers."""
        from pd_eqx.targets.training import abstract_target

        return abstract_target(self.settings())

    def build(self, key: Any, watch: Callable[[str], None]) -> "Target":
        """A trained target that passed its check.

        **Arguments:**

        - `key`: its own PRNG key; the same key gives the same bits.
        - `watch`: told now and then, in a phrase, how far the training is.
        """
        from pd_eqx.targets.training import Progress, train_target

        def tell(progress: Progress) -> None:
            watch(f"target  step {progress.step}/{progress.steps}  loss {progress.loss:.3g}")

        return train_target(key, self.settings(), tell)


class FeatureTarget(ToyTarget, abc.ABC):
    """A toy that reads sparse features."""

    n_features: Count

    @abc.abstractmethod
    def expected(self, site: str) -> "Pattern":
        """The pattern of importances that a site is known to have, fed one feature at a time."""

    def evaluation(
        self, settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool
    ) -> "EvaluationSettings":
        """See `ToyTarget.evaluation`; a site with too few components for its pattern is not held to it."""
        from pd_eqx.adversary import ProjectedGradient, Scope
        from pd_eqx.evals.activity import Activity
        from pd_eqx.evals.patterns import Identity
        from pd_eqx.evals.toys import toy_in_full, toy_in_loop

        expected = {
            site: pattern
            for site, count in counts.items()
            if not isinstance(pattern := self.expected(site), Identity) or count >= self.n_features
        }
        activity = Activity(
            alive_importance=settings.alive_importance,
            alive_share=settings.alive_share,
            bins=20 if in_full else 0,
        )
        if not in_full:
            return toy_in_loop(
                self.n_features, expected, n_batches=settings.batches, activity=activity
            )
        return toy_in_full(
            self.n_features,
            expected,
            n_batches=settings.batches,
            activity=activity,
            adversary=ProjectedGradient(settings.pgd_steps, settings.pgd_step_size, scope=Scope()),
        )


class TMSTrainingConfig(Node):
    """How the toy model is trained; see `pd_eqx.targets.tms.TMSTraining`."""

    steps: Count = 3000
    batch_size: Count = 2048
    learning_rate: Positive = 1e-2
    probability: Fraction = 0.05
    importance: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    attempts: Count = 8


class TMSTarget(FeatureTarget):
    """A toy model of superposition."""

    kind: Literal["tms"]
    n_hidden: Count
    n_hidden_layers: Annotated[int, Field(ge=0)] = 0
    training: TMSTrainingConfig = TMSTrainingConfig()

    def settings(self) -> "Training[Any]":
        """See `ToyTarget.settings`."""
        from pd_eqx.targets.tms import TMSTraining

        shape = self.model_dump(include={"n_features", "n_hidden", "n_hidden_layers"})
        return TMSTraining(**shape, **self.training.model_dump())

    def expected(self, site: str) -> "Pattern":
        """See `FeatureTarget.expected`: a component a feature, but all neurons for all features within."""
        from pd_eqx.evals.patterns import Dense, Identity

        return Identity() if site.startswith("linear") else Dense(self.n_hidden)


class ResidMLPTrainingConfig(Node):
    """How the residual MLP is trained; see `pd_eqx.targets.resid_mlp.ResidMLPTraining`."""

    label: Literal["act_plus_resid", "abs"] = "act_plus_resid"
    coefficient_low: float = 1.0
    coefficient_high: float = 1.0
    steps: Count = 1000
    batch_size: Count = 2048
    learning_rate: Positive = 3e-3
    probability: Fraction = 0.01
    max_loss: Positive = 0.45
    min_response: float = 0.25
    attempts: Count = 3


class ResidMLPTarget(FeatureTarget):
    """A residual MLP with fewer neurons, all layers together, than it computes features."""

    kind: Literal["resid_mlp"]
    d_embed: Count
    n_neurons: Count
    n_layers: Count = 1
    activation: Literal["relu", "gelu"] = "relu"
    in_bias: bool = False
    out_bias: bool = False
    training: ResidMLPTrainingConfig = ResidMLPTrainingConfig()

    @pydantic.model_validator(mode="after")
    def _layers_share(self) -> "ResidMLPTarget":
        if self.n_neurons % self.n_layers:
            raise ValueError(
                f"n_neurons is {self.n_neurons}, which {self.n_layers} layers cannot share evenly"
            )
        return self

    def settings(self) -> "Training[Any]":
        """See `ToyTarget.settings`."""
        from pd_eqx.targets.resid_mlp import ResidMLPTraining

        shape = self.model_dump(exclude={"kind", "training"})
        return ResidMLPTraining(**shape, **self.training.model_dump())

    def expected(self, site: str) -> "Pattern":
        """See `FeatureTarget.expected`: a component a feature into the neurons, one a neuron out of them."""
        from pd_eqx.evals.patterns import Dense, Identity

        return Identity() if site.endswith("mlp_in") else Dense(self.n_neurons // self.n_layers)


AnyTarget = Annotated[TMSTarget | ResidMLPTarget, Field(discriminator="kind")]


# Causal-importance functions

Widths = Annotated[list[Count], Field(min_length=1)]


class ComponentMLPConfig(Node):
    """One MLP a component, on its activation."""

    kind: Literal["component_mlp"]
    hidden: Widths

    def build(self, key: Any, components: Any) -> Any:
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_component_mlps

        return init_component_mlps(key, components, self.hidden)


class VectorMLPConfig(Node):
    """One MLP a component, on its site's whole input."""

    kind: Literal["vector_mlp"]
    hidden: Widths

    def build(self, key: Any, components: Any) -> Any:
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_vector_mlps

        return init_vector_mlps(key, components, self.hidden)


class SharedMLPConfig(Node):
    """One MLP a site, from its input to all of its components."""

    kind: Literal["shared_mlp"]
    hidden: Widths

    def build(self, key: Any, components: Any) -> Any:
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_shared_mlps

        return init_shared_mlps(key, components, self.hidden)


AnyCIFunction = Annotated[
    ComponentMLPConfig | VectorMLPConfig | SharedMLPConfig, Field(discriminator="kind")
]


# Data


class SparseFeaturesConfig(Node):
    """Each feature is non-zero with one probability, and then uniform in `[low, high)`."""

    kind: Literal["sparse_features"]
    batch_size: Count
    probability: Fraction
    low: float = 0.0
    high: float = 1.0

    def build(self, target: AnyTarget) -> "BatchSource":
        """The library's batches, as wide as the target."""
        from pd_eqx.data.sparse_features import SparseFeatures

        return SparseFeatures(
            self.batch_size, target.n_features, self.probability, self.low, self.high
        )


AnyData = SparseFeaturesConfig


# The objective


# Which positions have a source of their own: each batch element (b), each sequence position (s).
ScopeLetters = Literal["c", "bc", "sc", "bsc"]


class StochasticSourceConfig(Node):
    """Uniform draws at each position."""

    kind: Literal["stochastic"]
    delta: bool = True

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import StochasticSource

        return StochasticSource(self.delta)


class ConstantSourceConfig(Node):
    """One value everywhere: 0 for masks equal to the importances, 1 for no ablation."""

    kind: Literal["constant"]
    value: Fraction

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.masks import ConstantSource

        return ConstantSource(self.value)


class ProjectedGradientSourceConfig(Node):
    """A fresh adversary at every step: signed gradient steps up the term's loss."""

    kind: Literal["projected_gradient"]
    steps: Count
    step_size: Positive
    init: Literal["random", "ones", "zeros"] = "random"
    scope: ScopeLetters = "bc"
    delta: bool = True

    def build(self) -> "MaskSource":
        """The library's source."""
        from pd_eqx.adversary import ProjectedGradient

        scope = scope_named(self.scope)
        return ProjectedGradient(self.steps, self.step_size, self.init, scope, self.delta)


AnySource = Annotated[
    StochasticSourceConfig | ConstantSourceConfig | ProjectedGradientSourceConfig,
    Field(discriminator="kind"),
]


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


class FaithfulnessConfig(Node):
    """The components sum to the weights."""

    kind: Literal["faithfulness"]
    name: str = "faithfulness"
    coefficient: NotNegative = 1.0

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import Faithfulness

        return Faithfulness(self.coefficient, self.name)


class ImportanceMinimalityConfig(Node):
    """Few components matter: the mean of `(ci + eps)^p`."""

    kind: Literal["importance_minimality"]
    name: str = "importance_minimality"
    coefficient: NotNegative
    p: Positive = 1.0
    eps: NotNegative = 1e-12

    def build(self) -> "Term":
        """The library's term."""
        from pd_eqx.objective import ImportanceMinimality

        return ImportanceMinimality(self.coefficient, self.p, self.eps, self.name)


class ReconstructionConfig(Node):
    """The masked output stays near the clean one."""

    kind: Literal["reconstruction"]
    name: str
    coefficient: NotNegative = 1.0
    distance: Literal["mse", "kl"] = "mse"
    source: AnySource
    routing: AnyRouting = AllSitesConfig(kind="all")
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


AnyTerm = Annotated[
    FaithfulnessConfig | ImportanceMinimalityConfig | ReconstructionConfig,
    Field(discriminator="kind"),
]


def scope_named(letters: ScopeLetters) -> "Scope":
    """The library's scope of an adversary's sources."""
    from pd_eqx.adversary import Scope

    return Scope(None if "b" in letters else 1, "s" in letters)


def distance_named(name: Literal["mse", "kl"]) -> "Distance":
    """The library's distance of a reconstruction term."""
    from pd_eqx.losses import KLDivergence, MeanSquaredError

    return KLDivergence() if name == "kl" else MeanSquaredError()


# Optimizers


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


AnyOptimizer = AdamWConfig


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


# How a run is watched and kept


class CheckpointConfig(Node):
    """Which steps are saved, and which of them stay."""

    every: Count = beside_trajectory(1000)
    keep_last: Count | None = beside_trajectory(2)
    keep_every: Count | None = beside_trajectory(None)


class EvaluationConfig(Node):
    """What is measured in the loop and at the end."""

    every: Count | None = beside_trajectory(None)
    batches: Count = beside_trajectory(8)
    pgd_steps: Count = beside_trajectory(20)
    pgd_step_size: Positive = beside_trajectory(0.1)
    alive_importance: Fraction = beside_trajectory(0.1)
    alive_share: Fraction = beside_trajectory(1e-3)


class Config(Node):
    """A whole run."""

    name: Annotated[str, Field(min_length=1)] = beside_trajectory()
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    steps: Count
    target: AnyTarget
    sites: Annotated[dict[str, Count], Field(min_length=1)]
    ci_fn: AnyCIFunction
    data: AnyData
    objective: Annotated[list[AnyTerm], Field(min_length=1)]
    optimizers: OptimizersConfig
    faithfulness_warmup: FaithfulnessWarmupConfig | None = None
    log_every: Count = beside_trajectory(100)
    max_updates_per_dispatch: Count = beside_trajectory(1000)
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @pydantic.field_validator("objective")
    @classmethod
    def _names_differ(cls, terms: list[Any]) -> list[Any]:
        names = [term.name for term in terms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"each term needs a name of its own; {twice} is used more than once")
        return terms

    def build_objective(self) -> "Objective":
        """The library's objective."""
        from pd_eqx.objective import Objective

        return Objective(tuple(term.build() for term in self.objective))

    def counts(self) -> dict[str, int]:
        """The number of components of each chosen site.

        **Errors:** `pd_eqx.sites.UnknownSiteError` for a pattern that matches no site of the target.
        """
        from pd_eqx.sites import select_sites

        return select_sites(self.target.abstract().sites(), self.sites)


def trajectory(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key path that changes the trajectory, with its value."""
    prefix = f"{path}." if path else ""
    match value:
        case pydantic.BaseModel():
            for name, field in type(value).model_fields.items():
                extra = field.json_schema_extra
                if isinstance(extra, dict) and extra.get(_BESIDE_TRAJECTORY):
                    continue
                yield from trajectory(getattr(value, name), prefix + name)
        case dict():
            for name, item in value.items():
                yield from trajectory(item, f"{prefix}{name}")
        case list():
            for index, item in enumerate(value):
                yield from trajectory(item, f"{prefix}{index}")
        case _:
            yield path, value
