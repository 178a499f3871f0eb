"""A small language model that is trained in the run: attention with rotary positions and an MLP of two matrices.

It is the family that the field trains in order to take it apart (`llama_simple_mlp` among the published ones), small
enough for minutes on a CPU. It reads a prepared corpus, and a part of the corpus that it never saw says whether it
learned the language or the text.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.data.corpus import Corpus
from pd_eqx.data.sequences import ResidentSequences, resident_sequences
from pd_eqx.optimizers import AdamW, Optimizer
from pd_eqx.schedule import decaying
from pd_eqx.targets.rotary import Rotary
from pd_eqx.targets.training import Training, check_counts
from pd_eqx.targets.transformer import (
    PlainMLP,
    RMSNorm,
    Transformer,
    TransformerConfig,
    init_transformer,
)
from pd_eqx.unembedding import logits_of


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a small language model.

    **Errors:** `ValueError` for a width that the heads cannot share in even parts.
    """

    vocabulary: int
    width: int
    depth: int
    heads: int
    mlp_width: int

    def __post_init__(self) -> None:
        """Refuses what is no model."""
        check_counts(self, "vocabulary", "width", "depth", "heads", "mlp_width")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width is {self.width}; each of {self.heads} heads needs an even share of it, to be turned in pairs"
            )

    @property
    def config(self) -> TransformerConfig:
        """The transformer's shape."""
        head_width = self.width // self.heads
        return TransformerConfig(
            vocabulary=self.vocabulary,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            kv_heads=self.heads,
            head_width=head_width,
            mlp_width=self.mlp_width,
            norm=RMSNorm(1e-6),
            mlp=PlainMLP("gelu_tanh"),
            rotary=Rotary(head_width),
            tied=True,
        )

    def init(self, key: PRNGKeyArray) -> Transformer:
        """A model to be trained."""
        # So few layers are traced faster than a scan over them is set up.
        drawn = init_transformer(key, self.config, deviation=self.width**-0.5)
        return dataclasses.replace(drawn, scan=False)


@dataclasses.dataclass(frozen=True)
class LanguageModelTraining(Training[Transformer]):
    """How a small language model is trained: to predict the next token, at every position.

    - `corpus`: what it reads; `length`: of a sequence; `held_out`: how many sequences, at the corpus's end, it is
      checked on and never trained on.
    - `batch_size`, `steps`, `learning_rate`, `weight_decay`: of AdamW, cosine to 0 after a short warm-up.
    - `max_loss`: the cross-entropy that a good target has on what was held out; nats a token.
    - `attempts`, `updates_per_dispatch`: see `Training`.

    **Errors:** `ValueError` for settings that cannot be trained.
    """

    sizes: Sizes
    corpus: Corpus
    length: int = 64
    held_out: int = 64
    batch_size: int = 32
    steps: int = 2000
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    max_loss: float = 4.0
    attempts: int = 1
    updates_per_dispatch: int = 5

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        check_counts(self, "batch_size", "steps", "attempts", "updates_per_dispatch", "held_out")
        if self.length < 2:
            raise ValueError(f"length is {self.length}; a next token needs at least 2")
        if self.corpus.vocabulary > self.sizes.vocabulary:
            raise ValueError(
                f"{self.corpus.path}: its tokens are below {self.corpus.vocabulary}, but vocabulary is "
                f"{self.sizes.vocabulary}"
            )

    @property
    def name(self) -> str:
        """See `Training.name`."""
        return f"language model of {self.sizes.depth} layers of width {self.sizes.width}"

    @property
    def advice(self) -> str:
        """See `Training.advice`."""
        return "Train longer (steps) or wider (width), on more text, or raise max_loss"

    def batches(self, *, held_out: bool = False) -> ResidentSequences:
        """What it is trained on, or what it is checked on."""
        size = self.held_out if held_out else self.batch_size
        return resident_sequences(
            self.corpus, self.length, size, 0, held_out=self.held_out, evaluate=held_out
        )

    def optimizer(self) -> Optimizer:
        """See `Training.optimizer`."""
        return AdamW(
            decaying(self.learning_rate, warmup=0.05), b2=0.98, weight_decay=self.weight_decay
        )

    def init(self, key: PRNGKeyArray) -> tuple[Transformer, tuple[ResidentSequences, ...]]:
        """See `Training.init`; what stays fixed is the text, for training and held out."""
        return self.sizes.init(key), (self.batches(), self.batches(held_out=True))

    def target(self, trained: Transformer, fixed: tuple[ResidentSequences, ...]) -> Transformer:
        """See `Training.target`."""
        return trained

    def loss(
        self,
        trained: Transformer,
        fixed: tuple[ResidentSequences, ...],
        key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        """See `Training.loss`: the cross-entropy of every next token, in nats."""
        return _cross_entropy(trained, fixed[0](key, step))

    def problems(
        self, target: Transformer, fixed: tuple[ResidentSequences, ...], key: PRNGKeyArray
    ) -> list[str]:
        """See `Training.problems`: the cross-entropy on all that was held out."""
        found = float(jax.jit(_cross_entropy)(target, fixed[1](key, jnp.int32(0))))
        if found <= self.max_loss:
            return []
        return [
            f"its cross-entropy on held-out text is {found:.3f} nats, expected at most {self.max_loss:g}"
        ]


def _cross_entropy(target: Transformer, tokens: Array) -> Array:
    log_p = jax.nn.log_softmax(logits_of(target(tokens))[:, :-1])
    return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))
