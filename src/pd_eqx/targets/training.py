"""How a toy target is trained: in bounded dispatches, and again from the next key until it is good.

A decomposition can only be judged against a target that is known to be good. So training ends in a check, goes on
with the next key where the check fails, and refuses with the reason when no attempt was good. Between two
dispatches the outside world gets a word in, so a signal need not wait for the training to end.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.optimizers import Optimizer
from pd_eqx.targets.base import Target

TargetT = TypeVar("TargetT", bound=Target)


class BadTargetError(ValueError):
    """A trained target does not do what a decomposition of it would be judged by."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where the training of a target stands between two dispatches.

    - `attempt`: from 0; `step`: updates done in it, of `steps`; `loss`: of the last one.
    """

    attempt: int
    step: int
    steps: int
    loss: float


class Training(abc.ABC, Generic[TargetT]):
    """One kind of toy: its shape and settings, and the task that it is trained on.

    Subclasses are frozen dataclasses of plain numbers, so that two equal ones train equal targets.

    - `steps`: updates of one attempt.
    - `attempts`: how many keys may be tried until a target is good.
    - `updates_per_dispatch`: bound on the updates between two looks at the outside world.
    """

    steps: int
    attempts: int
    updates_per_dispatch: int

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What is trained, for messages: `TMS 5-2`."""

    @abc.abstractmethod
    def optimizer(self) -> Optimizer:
        """What moves the trained parameters."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """The trained parameters at the start, and what else one attempt draws and keeps fixed; two pytrees."""

    @abc.abstractmethod
    def loss(
        self, trained: Any, fixed: Any, key: PRNGKeyArray, step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """The loss on the batch of one step; `key` is that step's own."""

    @abc.abstractmethod
    def target(self, trained: Any, fixed: Any) -> TargetT:
        """The target that the parameters make."""

    @abc.abstractmethod
    def problems(self, target: TargetT, fixed: Any, key: PRNGKeyArray) -> list[str]:
        """What makes a trained target bad, one phrase each (found, expected); none for a good one.

        `key` draws whatever the check is made on; training has not used it.
        """

    @property
    @abc.abstractmethod
    def advice(self) -> str:
        """What to do when no attempt was good, as the end of a message."""


def train_target(
    key: PRNGKeyArray,
    training: Training[TargetT],
    watch: Callable[[Progress], None] = lambda progress: None,
) -> TargetT:
    """A trained and checked target; the same key and settings give the same bits.

    Attempt `a` draws from `fold_in(key, a)`, and the first whose target is good is returned.

    **Arguments:**

    - `key`: a PRNG key.
    - `training`: what to train, and how.
    - `watch`: called between dispatches, at most `updates_per_dispatch` updates apart. An exception that it
      raises stops the training: this is how a signal gets through.

    **Errors:** `BadTargetError` if no attempt gave a good target; the last attempt's reasons are in it.
    """
    optimizer = training.optimizer()

    def descend(
        trained: Any,
        opt_state: Any,
        fixed: Any,
        key: PRNGKeyArray,
        first: Int[Array, ""],
        n: Int[Array, ""],
    ) -> tuple[Any, Any, Array]:
        def once(index: Array, carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
            trained, opt_state, _ = carry
            step = first + index
            value, grads = jax.value_and_grad(training.loss)(
                trained, fixed, jax.random.fold_in(key, step), step
            )
            trained, opt_state, _ = optimizer.update(
                grads, opt_state, trained, step, training.steps
            )
            return trained, opt_state, value

        start = (trained, opt_state, jnp.zeros((), jnp.result_type(float)))
        return jax.lax.fori_loop(0, n, once, start)

    dispatch = jax.jit(descend, donate_argnums=(0, 1))
    problems: list[str] = []
    for attempt in range(training.attempts):
        key_init, key_train = jax.random.split(jax.random.fold_in(key, attempt))
        trained, fixed = training.init(key_init)
        opt_state, step = optimizer.init(trained), 0
        while step < training.steps:
            n = min(training.updates_per_dispatch, training.steps - step)
            trained, opt_state, value = dispatch(trained, opt_state, fixed, key_train, step, n)
            step += n
            watch(Progress(attempt, step, training.steps, float(value)))
        target = training.target(trained, fixed)
        problems = training.problems(target, fixed, jax.random.fold_in(key_train, training.steps))
        if not problems:
            return target
    raise BadTargetError(
        f"no good {training.name} in {training.attempts} attempts; the last one: "
        f"{'; '.join(problems)}. {training.advice}"
    )


def abstract_target(training: Training[TargetT]) -> TargetT:
    """The shapes of the target that `training` makes, without numbers."""

    def build(key: PRNGKeyArray) -> TargetT:
        return training.target(*training.init(key))

    return eqx.filter_eval_shape(build, jax.random.key(0))


def check_counts(training: Any, *names: str) -> None:
    """Refuses settings that must be at least one.

    **Errors:** `ValueError`, naming the setting.
    """
    for name in names:
        if getattr(training, name) < 1:
            raise ValueError(f"{name} is {getattr(training, name)}; it must be at least 1")
