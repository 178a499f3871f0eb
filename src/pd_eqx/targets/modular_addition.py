"""A small transformer that adds modulo a prime, and how it is trained.

It reads `a, b, =` and answers `(a + b) mod p`. Trained on some of the pairs with much weight decay, it first learns
them by heart and later, all at once, finds the rule (it groks). A network that stopped before has a table to be taken
apart and no algorithm, so it is checked on pairs that it was never shown.

Source: Power et al. 2022 (arXiv 2201.02177); Nanda et al. 2023 (arXiv 2301.05217).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.data.toy_tokens import ModularPairs, modular_rows, modular_sums
from pd_eqx.linear import LinearMap, frozen
from pd_eqx.optimizers import AdamW, Optimizer
from pd_eqx.schedule import decaying
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target
from pd_eqx.targets.training import Training, check_counts
from pd_eqx.targets.transformer import (
    PlainMLP,
    RMSNorm,
    Transformer,
    TransformerConfig,
    init_transformer,
)


class ModularAddition(Target):
    """The answers of a transformer at the last position of `a, b, =`: one logit for each number below the modulus."""

    transformer: Transformer

    def sites(self) -> tuple[Site, ...]:
        """See `Target.sites`: those of the transformer."""
        return self.transformer.sites()

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """See `Target.weights`."""
        return self.transformer.weights()

    def __call__(
        self, inputs: Int[Array, "*lead three"], linear: LinearMap = frozen
    ) -> Float[Array, "*lead modulus"]:
        """See `Target.__call__`."""
        last = self.transformer.hidden(inputs, linear)[..., -1, :]
        # The sign `=` is the last token, and never an answer.
        return self.transformer.unembed(last)[..., :-1]


@dataclasses.dataclass(frozen=True)
class ModularAdditionTraining(Training[ModularAddition]):
    """How the modular-addition toy is trained, on all of its training pairs at once.

    - `modulus`: the numbers are below it.
    - `width`, `heads`, `mlp_width`: of the one-layer transformer.
    - `shown`: the share of pairs that it is trained on.
    - `steps`, `learning_rate`, `weight_decay`: of AdamW, cosine to 0 after a short warm-up.
    - `min_accuracy`, `max_loss`: what a good target reaches on the pairs that it was not shown; nats.
    - `attempts`, `updates_per_dispatch`: see `Training`.

    **Errors:** `ValueError` for settings that cannot be trained.
    """

    modulus: int = 31
    width: int = 64
    heads: int = 4
    mlp_width: int = 128
    shown: float = 0.75
    steps: int = 1000
    learning_rate: float = 1e-2
    weight_decay: float = 1.0
    min_accuracy: float = 0.99
    max_loss: float = 0.1
    attempts: int = 3
    updates_per_dispatch: int = 20

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        check_counts(self, "width", "heads", "mlp_width", "steps", "attempts")
        check_counts(self, "updates_per_dispatch")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared by {self.heads} heads")
        if self.modulus < 2 or not 1 <= self.n_shown < self.modulus**2:
            raise ValueError(
                f"of the {self.modulus**2} pairs below modulus {self.modulus}, shown = {self.shown} is "
                f"{self.n_shown}; there must be at least one to train on and one to check with"
            )

    @property
    def n_shown(self) -> int:
        """How many pairs it is trained on."""
        return int(self.shown * self.modulus**2)

    @property
    def name(self) -> str:
        """See `Training.name`."""
        return f"addition modulo {self.modulus}"

    @property
    def advice(self) -> str:
        """See `Training.advice`."""
        return (
            "Train longer (steps), show it more pairs (shown), or change weight_decay: the rule is found after "
            "the pairs are known by heart"
        )

    @property
    def config(self) -> TransformerConfig:
        """The transformer's shape; the tokens are the numbers and then the sign `=`."""
        return TransformerConfig(
            vocabulary=self.modulus + 1,
            width=self.width,
            depth=1,
            heads=self.heads,
            kv_heads=self.heads,
            head_width=self.width // self.heads,
            mlp_width=self.mlp_width,
            norm=RMSNorm(1e-6),
            mlp=PlainMLP("relu"),
            learned_positions=3,
        )

    def batches(self, batch_size: int) -> ModularPairs:
        """What it is decomposed on: shown pairs or not."""
        return ModularPairs(batch_size, self.modulus)

    def optimizer(self) -> Optimizer:
        """See `Training.optimizer`."""
        return AdamW(
            decaying(self.learning_rate, warmup=0.02), b2=0.98, weight_decay=self.weight_decay
        )

    def init(self, key: PRNGKeyArray) -> tuple[Transformer, Int[Array, " pairs"]]:
        """See `Training.init`; what stays fixed is an order of all pairs, of which the first are shown."""
        key_weights, key_order = jax.random.split(key)
        drawn = init_transformer(key_weights, self.config, deviation=0.5 * self.width**-0.5)
        order = jax.random.permutation(key_order, self.modulus**2)
        return dataclasses.replace(drawn, scan=False), order

    def target(self, trained: Transformer, fixed: Int[Array, " pairs"]) -> ModularAddition:
        """See `Training.target`."""
        return ModularAddition(trained)

    def loss(
        self,
        trained: Transformer,
        fixed: Int[Array, " pairs"],
        key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        """See `Training.loss`: the cross-entropy over all pairs that are shown, in nats."""
        del key, step
        return self._score(ModularAddition(trained), fixed[: self.n_shown])[0]

    def problems(
        self, target: ModularAddition, fixed: Int[Array, " pairs"], key: PRNGKeyArray
    ) -> list[str]:
        """See `Training.problems`: loss and accuracy on the pairs that were not shown."""
        loss, accuracy = map(float, jax.jit(self._score)(target, fixed[self.n_shown :]))
        if accuracy >= self.min_accuracy and loss <= self.max_loss:
            return []
        found = (
            f"{100 * accuracy:.1f} % of the pairs that it was not shown, with a loss of {loss:.3g}"
        )
        wanted = f"at least {100 * self.min_accuracy:g} %, with at most {self.max_loss:g}"
        return [f"it adds rightly {found}; expected {wanted}"]

    def _score(self, target: ModularAddition, pairs: Array) -> tuple[Array, Array]:
        """Cross-entropy and accuracy."""
        rows = modular_rows(pairs, self.modulus)
        sums, logits = modular_sums(rows, self.modulus), target(rows)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), sums[:, None], axis=-1)
        return -jnp.mean(log_p), jnp.mean(jnp.argmax(logits, axis=-1) == sums)
