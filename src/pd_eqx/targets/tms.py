"""Toy models of superposition: sparse features squeezed through a narrow hidden layer, and how they are trained.

A trained toy may have dropped a feature, or have crowded two into one direction, and a decomposition of it would
then fail its own checks for no fault of its own. So each feature must be a direction of its own.

Source: Elhage et al. 2022; Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `10_targets_data`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.linear import LinearMap, frozen
from pd_eqx.optimizers import AdamW, Optimizer
from pd_eqx.schedule import decaying
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target
from pd_eqx.targets.training import BadTargetError, Training, check_counts

NORM_RANGE = (0.9, 1.3)
ANGLE_TOLERANCE = 3.0  # degrees


class TMS(Target):
    """`relu(x @ W1 @ H… @ W2 + b)`, with the features in and out.

    - `linear1`: `[n_features, n_hidden]`; `hidden`: square matrices between; `linear2`: `[n_hidden, n_features]`.
    - `bias`: `[n_features]`.
    """

    linear1: Float[Array, "n_features n_hidden"]
    hidden: tuple[Float[Array, "n_hidden n_hidden"], ...]
    linear2: Float[Array, "n_hidden n_features"]
    bias: Float[Array, " n_features"]

    def sites(self) -> tuple[Site, ...]:
        """See `Target.sites`: `linear1`, `hidden_layers.0` …, `linear2`."""
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """See `Target.weights`."""
        hidden = {f"hidden_layers.{i}": weight for i, weight in enumerate(self.hidden)}
        return {"linear1": self.linear1, **hidden, "linear2": self.linear2}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Float[Array, "..."]:
        """See `Target.__call__`; inputs and outputs are `[*lead, n_features]`."""
        # Integers would be taken for rows of an embedding.
        counted = jnp.issubdtype(inputs.dtype, jnp.integer)
        x = inputs.astype(self.bias.dtype) if counted else inputs
        for site, weight in self.weights().items():
            x = linear(site, x, weight)
        return jax.nn.relu(x + self.bias)


@dataclasses.dataclass(frozen=True)
class TMSTraining(Training[TMS]):
    """How a TMS is trained: tied (`W2 = W1ᵀ`), to return the features it is given.

    - `n_features`, `n_hidden`: its shape; `n_hidden_layers`: fixed identity layers between.
    - `probability`: of each feature to be non-zero.
    - `importance`: feature `i` weighs `importance^i` in the squared error.
    - `batch_size`, `steps`, `learning_rate`: of AdamW, cosine to 0; without weight decay.
    - `attempts`, `updates_per_dispatch`: see `Training`.

    **Errors:** `ValueError` for a size below one or an importance outside (0, 1].
    """

    n_features: int
    n_hidden: int
    n_hidden_layers: int = 0
    probability: float = 0.05
    importance: float = 1.0
    batch_size: int = 2048
    steps: int = 2000
    learning_rate: float = 1e-2
    attempts: int = 8
    updates_per_dispatch: int = 500

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        check_counts(self, "n_features", "n_hidden", "steps", "attempts", "updates_per_dispatch")
        if self.n_hidden_layers < 0:
            raise ValueError(f"n_hidden_layers is {self.n_hidden_layers}; it must be 0 or more")
        if not 0.0 < self.importance <= 1.0:
            raise ValueError(f"importance is {self.importance}; it must be above 0 and at most 1")

    @property
    def name(self) -> str:
        """See `Training.name`."""
        return f"TMS {self.n_features}-{self.n_hidden}"

    @property
    def advice(self) -> str:
        """See `Training.advice`."""
        return (
            "Train longer (steps), try more keys (attempts), or make features rarer (probability) so that they "
            "crowd less"
        )

    def optimizer(self) -> Optimizer:
        """See `Training.optimizer`."""
        return AdamW(decaying(self.learning_rate))

    def init(self, key: PRNGKeyArray) -> "tuple[_Tied, tuple[()]]":
        """See `Training.init`."""
        shape = (self.n_features, self.n_hidden)
        weight = jax.random.normal(key, shape) / math.sqrt(self.n_hidden)
        return (weight, jnp.zeros(self.n_features)), ()

    def target(self, trained: "_Tied", fixed: tuple[()]) -> TMS:
        """See `Training.target`."""
        weight, bias = trained
        hidden = tuple(jnp.eye(self.n_hidden) for _ in range(self.n_hidden_layers))
        return TMS(linear1=weight, hidden=hidden, linear2=weight.T, bias=bias)

    def loss(
        self, trained: "_Tied", fixed: tuple[()], key: PRNGKeyArray, step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """See `Training.loss`: the squared error, weighed by importance; fixed identities change nothing."""
        weight, bias = trained
        inputs = SparseFeatures(self.batch_size, self.n_features, self.probability)(key, step)
        outputs = jax.nn.relu(inputs @ weight @ weight.T + bias)
        importances = feature_importances(self.n_features, self.importance)
        return jnp.mean(importances * jnp.square(outputs - inputs))

    def problems(self, target: TMS, fixed: tuple[()], key: PRNGKeyArray) -> list[str]:
        """See `Training.problems` and `tms_problems`."""
        return tms_problems(target)


def feature_importances(n_features: int, importance: float) -> Float[Array, " n_features"]:
    """The weight of each feature in the target's loss, `importance^i`.

    Source: golden numbers `10_targets_data`, `importances_0.9`.
    """
    return importance ** jnp.arange(n_features, dtype=jnp.result_type(float))


def check_tms(target: TMS) -> None:
    """Refuses a target whose features are not each represented.

    **Errors:** `BadTargetError`, naming the features, what was found, what was expected and what to do.
    """
    problems = tms_problems(target)
    if problems:
        raise BadTargetError(
            f"this TMS is no good target: {'; '.join(problems)}. Train it longer or from another seed"
        )


def tms_problems(target: TMS) -> list[str]:
    """What makes a target bad, one phrase each; none for a good one.

    Each feature must be a direction in the hidden layer of norm 0.9 to 1.3. Five features in two dimensions
    must form a regular pentagon, to 3°: the solution known to be the best there.
    """
    weight = np.asarray(target.linear1)
    norms = np.linalg.norm(weight, axis=1)
    low, high = NORM_RANGE
    problems: list[str] = []
    if not np.all(np.isfinite(weight)):
        return ["linear1 is not finite, so training diverged"]
    outside = np.flatnonzero((norms < low) | (norms > high))
    if outside.size:
        found = ", ".join(f"feature {i} has norm {norms[i]:.3f}" for i in outside)
        dropped = " (a norm near 0 is a feature that was dropped)" if norms.min() < 0.5 else ""
        problems.append(f"{found}, expected {low} to {high}{dropped}")
    if weight.shape == (5, 2) and not problems:
        angles = np.degrees(np.arctan2(weight[:, 1], weight[:, 0]))
        order = np.argsort(angles)
        gaps = np.diff(angles[order], append=angles[order[0]] + 360.0)
        for place in np.flatnonzero(np.abs(gaps - 72.0) > ANGLE_TOLERANCE):
            one, other = order[place], order[(place + 1) % 5]
            problems.append(
                f"features {one} and {other} are {gaps[place]:.1f}° apart, expected "
                f"72° ± {ANGLE_TOLERANCE:.0f}° as in a regular pentagon"
            )
    return problems


# The tied weight `[n_features, n_hidden]` and the bias.
_Tied = tuple[Float[Array, "n_features n_hidden"], Float[Array, " n_features"]]
