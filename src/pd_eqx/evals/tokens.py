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
from pd_eqx.evals.attention import AttentionPatterns
from pd_eqx.evals.evaluation import EvaluationSettings
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.evals.metric import BatchMetric
from pd_eqx.evals.reconstruction import LanguageModelling, Reconstruction
from pd_eqx.evals.weights import Faithfulness
from pd_eqx.losses import Distance, KLDivergence

KL = KLDivergence()
ACTIVITY = Activity()
ACTIVITY_IN_FULL = Activity(bins=20)
ADVERSARY = ProjectedGradient(steps=20, step_size=0.1)

# First in the loop and in full, so that they draw the same there and here.
_IN_LOOP: tuple[tuple[str, Ablation], ...] = (
    ("ci_masked", CI_MASKED),
    ("stochastic", STOCHASTIC),
    ("unmasked", UNMASKED),
)


def tokens_in_loop(
    *,
    next_token: bool,
    distance: Distance = KL,
    n_batches: int = 4,
    activity: Activity = ACTIVITY,
) -> EvaluationSettings:
    """The subset that is cheap enough for the loop: no adversary, few batches.

    **Arguments:**

    - `next_token`: whether the target says the next token at every position, so that its cross-entropy, and what
      masks cost in it, are to be reported.
    """
    costs = _costs(_IN_LOOP, distance, next_token=next_token)
    return EvaluationSettings((activity, *costs), (Faithfulness(),), n_batches)


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

    - `adversary`: fresh for each batch; reported as `pgd_<steps>`.
    """
    ablations = (
        *_IN_LOOP,
        (f"pgd_{adversary.steps}", Interpolated(adversary)),
        ("rounded", Rounded()),
        ("random", RandomMasks()),
    )
    inside: list[BatchMetric] = [
        HiddenActivations(of, distance=distance) for of in ("inputs", "outputs")
    ]
    inside.append(AttentionPatterns(_IN_LOOP[:2], distance))
    costs = _costs(ablations, distance, next_token=next_token)
    if not next_token:
        costs.append(Reconstruction("zeroed", Zeroed(), distance))
    return EvaluationSettings((activity, *costs, *inside), (Faithfulness(),), n_batches)


def _costs(
    ablations: tuple[tuple[str, Ablation], ...], distance: Distance, *, next_token: bool
) -> list[BatchMetric]:
    if next_token:
        return [LanguageModelling(ablations, distance)]
    return [Reconstruction(name, of, distance) for name, of in ablations]
