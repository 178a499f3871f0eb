"""What is measured on a toy: cheaply in the loop, and in full at the end of a run."""

from collections.abc import Mapping

from pd_eqx.adversary import ProjectedGradient
from pd_eqx.evals.ablations import (
    CI_MASKED,
    STOCHASTIC,
    UNMASKED,
    Interpolated,
    RandomMasks,
    Rounded,
    Zeroed,
)
from pd_eqx.evals.activity import Activity
from pd_eqx.evals.evaluation import EvaluationSettings
from pd_eqx.evals.geometry import Geometry
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.evals.patterns import Pattern, SingleFeatures
from pd_eqx.evals.reconstruction import Reconstruction
from pd_eqx.evals.weights import Faithfulness
from pd_eqx.losses import Distance, MeanSquaredError

SQUARED = MeanSquaredError()
ACTIVITY = Activity()
ACTIVITY_IN_FULL = Activity(bins=20)
ADVERSARY = ProjectedGradient(steps=20, step_size=0.1)


def toy_in_loop(
    n_features: int,
    expected: Mapping[str, Pattern],
    *,
    distance: Distance = SQUARED,
    n_batches: int = 4,
    activity: Activity = ACTIVITY,
) -> EvaluationSettings:
    """The subset that is cheap enough for the loop: no adversary, few batches.

    **Arguments:**

    - `n_features`: of the target's input.
    - `expected`: the pattern of importances by site or glob (`{"linear*": Identity(), "hidden_layers.*": Dense(2)}`).
    """
    return EvaluationSettings(
        batch=(
            Reconstruction("ci_masked", CI_MASKED, distance),
            Reconstruction("stochastic", STOCHASTIC, distance),
            activity,
        ),
        product=(Geometry(), SingleFeatures(n_features, expected), Faithfulness()),
        n_batches=n_batches,
    )


def toy_in_full(
    n_features: int,
    expected: Mapping[str, Pattern],
    *,
    distance: Distance = SQUARED,
    n_batches: int = 16,
    activity: Activity = ACTIVITY_IN_FULL,
    adversary: ProjectedGradient = ADVERSARY,
) -> EvaluationSettings:
    """All that `summary.json` and the figures need: see `toy_in_loop`.

    **Arguments:**

    - `adversary`: fresh for each batch; reported as `pgd_<steps>`.
    """
    return EvaluationSettings(
        batch=(
            Reconstruction("ci_masked", CI_MASKED, distance),
            Reconstruction("stochastic", STOCHASTIC, distance),
            activity,
            Reconstruction(f"pgd_{adversary.steps}", Interpolated(adversary), distance),
            Reconstruction("unmasked", UNMASKED, distance),
            Reconstruction("rounded", Rounded(), distance),
            Reconstruction("random", RandomMasks(), distance),
            Reconstruction("zeroed", Zeroed(), distance),
            HiddenActivations("inputs", distance=distance),
            HiddenActivations("outputs", distance=distance),
        ),
        product=(Geometry(), SingleFeatures(n_features, expected), Faithfulness()),
        n_batches=n_batches,
    )
