"""What is measured on a target that reads tokens: cheaply in the loop, and in full at the end of a run."""

from pd_eqx.adversary import ProjectedGradient
from pd_eqx.evals.ablations import (
    CI_MASKED,
    STOCHASTIC,
    UNMASKED,
    Ablation,
    Interpolated,
    RandomMasks,
    Rounded,
    Zeroed,
)
from pd_eqx.evals.activity import Activity
from pd_eqx.evals.evaluation import EvaluationSettings
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.evals.metric import BatchMetric
from pd_eqx.evals.reconstruction import CrossEntropy, Reconstruction
from pd_eqx.evals.weights import Faithfulness
from pd_eqx.losses import Distance, KLDivergence

KL = KLDivergence()
ACTIVITY = Activity()
ACTIVITY_IN_FULL = Activity(bins=20)
ADVERSARY = ProjectedGradient(steps=20, step_size=0.1)


def tokens_in_loop(
    *, distance: Distance = KL, n_batches: int = 4, activity: Activity = ACTIVITY
) -> EvaluationSettings:
    """The subset that is cheap enough for the loop: no adversary, few batches."""
    return EvaluationSettings(
        batch=(
            Reconstruction("ci_masked", CI_MASKED, distance),
            Reconstruction("stochastic", STOCHASTIC, distance),
            activity,
        ),
        product=(Faithfulness(),),
        n_batches=n_batches,
    )


def tokens_in_full(
    *,
    next_token: bool,
    distance: Distance = KL,
    n_batches: int = 16,
    activity: Activity = ACTIVITY_IN_FULL,
    adversary: ProjectedGradient = ADVERSARY,
) -> EvaluationSettings:
    """All that `summary.json` and the figures need; see `tokens_in_loop`.

    **Arguments:**

    - `next_token`: whether the target says the next token at every position, so that its cross-entropy, and what
      masks cost in it, are to be reported.
    - `adversary`: fresh for each batch; reported as `pgd_<steps>`.
    """
    drawn: tuple[tuple[str, Ablation], ...] = (
        ("ci_masked", CI_MASKED),
        ("stochastic", STOCHASTIC),
        ("unmasked", UNMASKED),
        ("rounded", Rounded()),
        ("random", RandomMasks()),
    )
    ablations = (
        *drawn[:2],
        (f"pgd_{adversary.steps}", Interpolated(adversary)),
        *drawn[2:],
        ("zeroed", Zeroed()),
    )
    # Places as in the loop, so that the same metrics draw the same there and here.
    first, second, *rest = (Reconstruction(name, of, distance) for name, of in ablations)
    metrics: list[BatchMetric] = [first, second, activity, *rest]
    metrics += [HiddenActivations(of, distance=distance) for of in ("inputs", "outputs")]
    if next_token:
        metrics.append(CrossEntropy(drawn, distance))
    return EvaluationSettings(tuple(metrics), (Faithfulness(),), n_batches)
