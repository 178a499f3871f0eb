"""A small transformer that has learned induction, and how it is trained.

It reads sequences that repeat a random prefix, and has to say what follows each token: what followed it the last
time. Two attention layers suffice, one that finds each token's predecessor and one that finds where the current
token came before; one layer does not. A network that has not learned this gives a decomposition nothing to find,
so its accuracy on repeated tokens is checked.

Source: Olsson et al. 2022 (arXiv 2209.11895).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.data.toy_tokens import RepeatedPrefix
from pd_eqx.optimizers import AdamW, Optimizer
from pd_eqx.schedule import decaying
from pd_eqx.targets.training import Training, check_counts
from pd_eqx.targets.transformer import (
    NoMLP,
    RMSNorm,
    Transformer,
    TransformerConfig,
    init_transformer,
)
from pd_eqx.unembedding import logits_of


@dataclasses.dataclass(frozen=True)
class InductionTraining(Training[Transformer]):
    """How the induction toy is trained: to predict the next token, at every position.

    - `vocabulary`, `length`, `shortest`, `longest`: of the sequences; see `RepeatedPrefix`.
    - `width`, `heads`, `depth`: of the transformer, which has attention alone and learned positions.
    - `batch_size`, `steps`, `learning_rate`: of AdamW, cosine to 0 after a short warm-up.
    - `min_accuracy`: the share of repeated tokens whose successor a good target says.
    - `attempts`, `updates_per_dispatch`: see `Training`.

    **Errors:** `ValueError` for settings that cannot be trained.
    """

    vocabulary: int = 32
    length: int = 24
    shortest: int = 6
    longest: int = 12
    width: int = 32
    heads: int = 1
    depth: int = 2
    batch_size: int = 64
    steps: int = 3000
    learning_rate: float = 1e-2
    min_accuracy: float = 0.99
    attempts: int = 3
    updates_per_dispatch: int = 50

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        check_counts(self, "width", "heads", "depth", "steps", "attempts", "updates_per_dispatch")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared by {self.heads} heads")
        _ = self.batches

    @property
    def name(self) -> str:
        """See `Training.name`."""
        return f"induction transformer of {self.depth} layers"

    @property
    def advice(self) -> str:
        """See `Training.advice`."""
        return "Train longer (steps) or wider (width), or try more keys (attempts)"

    @property
    def batches(self) -> RepeatedPrefix:
        """What it is trained on, and what it is decomposed on."""
        return RepeatedPrefix(
            self.batch_size, self.vocabulary, self.length, self.shortest, self.longest
        )

    @property
    def config(self) -> TransformerConfig:
        """The transformer's shape."""
        return TransformerConfig(
            vocabulary=self.vocabulary,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            kv_heads=self.heads,
            head_width=self.width // self.heads,
            mlp_width=0,
            norm=RMSNorm(1e-6),
            mlp=NoMLP(),
            learned_positions=self.length,
        )

    def optimizer(self) -> Optimizer:
        """See `Training.optimizer`."""
        return AdamW(decaying(self.learning_rate, warmup=0.05), weight_decay=1e-2)

    def init(self, key: PRNGKeyArray) -> tuple[Transformer, tuple[()]]:
        """See `Training.init`."""
        # Two layers are traced faster than a scan over them is set up.
        drawn = init_transformer(key, self.config, deviation=self.width**-0.5)
        return dataclasses.replace(drawn, scan=False), ()

    def target(self, trained: Transformer, fixed: tuple[()]) -> Transformer:
        """See `Training.target`."""
        return trained

    def loss(
        self, trained: Transformer, fixed: tuple[()], key: PRNGKeyArray, step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """See `Training.loss`: the cross-entropy of every next token, in nats."""
        tokens = self.batches(key, step)
        log_p = jax.nn.log_softmax(logits_of(trained(tokens))[:, :-1])
        return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))

    def problems(self, target: Transformer, fixed: tuple[()], key: PRNGKeyArray) -> list[str]:
        """See `Training.problems`: the accuracy on a fresh batch."""
        accuracy = float(jax.jit(self.accuracy)(target, key))
        if accuracy >= self.min_accuracy:
            return []
        found = f"{100 * accuracy:.1f} % of repeated tokens"
        return [
            f"it says the successor of {found}, expected at least {100 * self.min_accuracy:g} %"
        ]

    def accuracy(self, target: Transformer, key: PRNGKeyArray) -> Float[Array, ""]:
        """The share of repeated tokens, of one batch, whose successor is the target's first choice."""
        tokens, repeated = self.batches.with_repeats(key)
        right = jnp.argmax(logits_of(target(tokens))[:, :-1], axis=-1) == tokens[:, 1:]
        asked = repeated[:, :-1]
        return jnp.sum(right & asked) / jnp.sum(asked)
