"""The state of a run: the product and the process, and nothing beside them.

`TrainState` is what the trainer steps, and its two fields are what a checkpoint stores, each as one item.
Every leaf is an array; all else is static. No PRNG key and no data cursor lives here: randomness and
batches are pure functions of a seed and of `training.step`.
"""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, Int

from pd_eqx.adversary import AdversaryState
from pd_eqx.ci.base import CIFunction
from pd_eqx.components import Components


class Decomposition(eqx.Module):
    """The trained product: all that a consumer needs, beside the target itself.

    - `components`: V and U by site.
    - `ci_fn`: predicts each component's causal importance from the target's clean activations.
    """

    components: Components
    ci_fn: CIFunction


class TrainingItem(eqx.Module):
    """The process that trains a decomposition; a consumer never reads it.

    - `components_opt_state`, `ci_fn_opt_state`: optax states of the two parameter groups.
    - `adversaries`: persistent adversaries, one bundle by term name.
    - `step`: int32 scalar, the number of updates that the decomposition has had.
    - `averages`: moving averages that terms of the objective read, `[C]` by term name and site.
    """

    components_opt_state: Any
    ci_fn_opt_state: Any
    adversaries: dict[str, AdversaryState]
    step: Int[Array, ""]
    averages: dict[str, dict[str, Float[Array, " _"]]] = eqx.field(default_factory=dict)


class TrainState(eqx.Module):
    """A decomposition and the process that trains it; each field is one checkpoint item (S22)."""

    decomposition: Decomposition
    training: TrainingItem
