"""What every target of a configuration promises: its sites, how it comes about, and what is measured on it."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pd_eqx.runs.config.base import Node, beside_trajectory

if TYPE_CHECKING:
    from pd_eqx.evals.activity import Activity
    from pd_eqx.evals.evaluation import EvaluationSettings
    from pd_eqx.runs.config.evaluation import EvaluationConfig
    from pd_eqx.sites import Site
    from pd_eqx.targets.base import Target
    from pd_eqx.targets.training import Training


class TargetConfig(Node, abc.ABC):
    """A network to take apart.

    - `reads`: the kinds of data that it can be decomposed on.
    """

    reads: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def sites(self) -> "tuple[Site, ...]":
        """The weight matrices that can be decomposed; reads no weights."""

    @abc.abstractmethod
    def evaluation(
        self, settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool
    ) -> "EvaluationSettings":
        """What is measured on it: in the loop, or in full at the end of a run."""


class TrainedTarget(TargetConfig, abc.ABC):
    """A small network that is trained in the run, from the run's seed.

    - `cache`: whether it may be read from, and is kept in, the user's cache of trained targets.
    """

    cache: bool = beside_trajectory(True)

    @abc.abstractmethod
    def recipe(self) -> "Training[Any]":
        """The library's description of the toy and of its training."""

    def sites(self) -> "tuple[Site, ...]":
        """See `TargetConfig.sites`."""
        import equinox as eqx
        import jax

        recipe = self.recipe()

        def found(key: Any) -> "tuple[Site, ...]":
            return recipe.target(*recipe.init(key)).sites()

        return eqx.filter_eval_shape(found, jax.random.key(0))

    def abstract(self) -> "Target":
        """The target's shapes, without numbers."""
        from pd_eqx.targets.training import abstract_target

        return abstract_target(self.recipe())

    def build(self, key: Any, watch: Callable[[str], None]) -> "Target":
        """A target that passed its check: trained, unless the user's cache has the one that training would give.

        **Arguments:**

        - `key`: its own PRNG key; the same key gives the same bits.
        - `watch`: told now and then, in a phrase, how far the training is.

        **Errors:** `pd_eqx.targets.training.BadTargetError` if none did.
        """
        from pd_eqx.targets.cache import TargetCache, cached_target, default_folder
        from pd_eqx.targets.training import Progress

        def tell(progress: Progress) -> None:
            if not _is_twentieth(progress.step, progress.steps):
                return
            attempt = f"  attempt {progress.attempt + 1}" if progress.attempt else ""
            steps = f"{progress.step}/{progress.steps}"
            watch(f"target  step {steps}  loss {progress.loss:.3g}{attempt}")

        cache = TargetCache(default_folder()) if self.cache else None
        return cached_target(cache, key, self.recipe(), tell)


def _is_twentieth(step: int, steps: int) -> bool:
    """Whether a step, of those told, is worth a line."""
    every = max(1, steps // 20)
    return step % every == 0 or step == steps


class ReadsTokens(TargetConfig, abc.ABC):
    """A target that reads tokens and answers with logits.

    - `next_token`: whether it says the next token at every position.
    """

    next_token: ClassVar[bool]

    def evaluation(
        self, settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool
    ) -> "EvaluationSettings":
        """See `TargetConfig.evaluation`."""
        from pd_eqx.adversary import ProjectedGradient
        from pd_eqx.evals.tokens import tokens_in_full, tokens_in_loop

        active = activity(settings, counts, in_full=in_full)
        if not in_full:
            return tokens_in_loop(
                next_token=self.next_token, n_batches=settings.batches, activity=active
            )
        return tokens_in_full(
            next_token=self.next_token,
            n_batches=settings.batches,
            activity=active,
            adversary=ProjectedGradient(settings.pgd_steps, settings.pgd_step_size),
        )


def activity(settings: "EvaluationConfig", counts: dict[str, int], *, in_full: bool) -> "Activity":
    """How activity is counted, in the loop or at the end."""
    from pd_eqx.evals.activity import Activity, by_layer

    return Activity(
        alive_importance=settings.alive_importance,
        alive_share=settings.alive_share,
        groups=by_layer(counts),
        bins=20 if in_full else 0,
    )


def heads_share(width: int, heads: int) -> None:
    """Refuses a width that heads cannot share.

    **Errors:** `ValueError`.
    """
    if width % heads:
        raise ValueError(f"width is {width}, which {heads} heads cannot share evenly")
