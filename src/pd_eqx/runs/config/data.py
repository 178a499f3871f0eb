"""Data in a configuration: what a decomposition is trained on."""

import abc
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from pd_eqx.runs.config.base import (
    Count,
    CountOrNone,
    Fraction,
    Name,
    Node,
    beside_trajectory,
)

if TYPE_CHECKING:
    from pd_eqx.data.corpus import Corpus
    from pd_eqx.step import BatchSource
    from pd_eqx.targets.base import Target

# Beyond this a corpus is read from disk as it is needed.
_RESIDENT_BYTES = 1 << 28


class DataConfig(Node, abc.ABC):
    """Batches as a pure function of the run's seed and the step."""

    @abc.abstractmethod
    def build(self, target: Any, seed: int) -> "BatchSource":
        """The library's batches for a configured target."""

    def check(self, target: "Target") -> None:
        """Refuses what the target, now that it is here, cannot read."""

    def build_for_evaluation(self, target: Any, seed: int) -> "BatchSource":
        """What is evaluated on: drawn like what is trained on, unless something is held out."""
        return self.build(target, seed)


class SparseFeaturesConfig(DataConfig):
    """Each feature is non-zero with one probability, and then uniform in `[low, high)`."""

    kind: Literal["sparse_features"]
    batch_size: Count
    probability: Fraction
    low: float = 0.0
    high: float = 1.0

    def build(self, target: Any, seed: int) -> "BatchSource":
        """The library's batches, as wide as the target, which reads features."""
        from pd_eqx.data.sparse_features import SparseFeatures

        return SparseFeatures(
            self.batch_size, target.n_features, self.probability, self.low, self.high
        )


class RepeatedPrefixConfig(DataConfig):
    """Sequences that repeat a random prefix, of the sizes that the target was trained on."""

    kind: Literal["repeated_prefix"]
    batch_size: Count

    def build(self, target: Any, seed: int) -> "BatchSource":
        """The library's batches for an induction target."""
        from pd_eqx.data.toy_tokens import RepeatedPrefix

        return RepeatedPrefix(
            self.batch_size, target.vocabulary, target.length, target.shortest, target.longest
        )


class ModularPairsConfig(DataConfig):
    """Pairs of numbers below the target's modulus, shown to it or not."""

    kind: Literal["modular_pairs"]
    batch_size: Count

    def build(self, target: Any, seed: int) -> "BatchSource":
        """The library's batches for a target that adds."""
        from pd_eqx.data.toy_tokens import ModularPairs

        return ModularPairs(self.batch_size, target.modulus)


class CorpusConfig(DataConfig):
    """Sequences of a prepared corpus: each once an epoch, in an order that follows from the run's seed.

    Where the corpus lies may change; what it holds may not, and is pinned by its fingerprint (`runs.inputs`).

    - `path`: a folder that `pd-eqx prepare` made, or a `.npy` file of token ids.
    - `length`: of a sequence, in tokens.
    - `held_out`: how many sequences, at the end of the corpus, are kept for evaluation.
    - `reading`: `resident` for all of it on the device, `streamed` for from disk as needed; `auto` decides by size.
    """

    kind: Literal["corpus"]
    path: Name = beside_trajectory()
    length: Annotated[int, Field(ge=2)]
    batch_size: Count
    held_out: CountOrNone = 0
    reading: Literal["auto", "resident", "streamed"] = beside_trajectory("auto")

    @pydantic.field_validator("held_out")
    @classmethod
    def _fills_a_batch(cls, held_out: int, info: Any) -> int:
        batch = info.data.get("batch_size", 0)
        if 0 < held_out < batch:
            raise ValueError(
                f"{held_out} sequences do not fill a batch of {batch}; hold out none, or at least a batch"
            )
        return held_out

    def open(self) -> "Corpus":
        """The corpus.

        **Errors:** `pd_eqx.data.corpus.CorpusError`, which says how to prepare one where there is none.
        """
        from pd_eqx.data.corpus import CorpusError, open_corpus

        try:
            return open_corpus(self.path)
        except CorpusError as error:
            raise CorpusError(f"data.path: {error}") from None

    def build(self, target: Any, seed: int) -> "BatchSource":
        """See `DataConfig.build`.

        **Errors:** `CorpusError`.
        """
        return self._build(seed, evaluate=False)

    def check(self, target: "Target") -> None:
        """See `DataConfig.check`.

        **Errors:** `CorpusError` for tokens that the target does not know.
        """
        from pd_eqx.data.corpus import CorpusError
        from pd_eqx.targets.transformer import Transformer

        found = self.open().vocabulary
        if isinstance(target, Transformer) and found > target.config.vocabulary:
            raise CorpusError(
                f"data.path: the tokens of {self.path} are below {found}, but the target knows "
                f"{target.config.vocabulary}; prepare the text with the target's own tokenizer"
            )

    def build_for_evaluation(self, target: Any, seed: int) -> "BatchSource":
        """See `DataConfig.build_for_evaluation`: what is held out, or else what is trained on."""
        return self._build(seed, evaluate=self.held_out > 0)

    def _build(self, seed: int, *, evaluate: bool) -> "BatchSource":
        from pd_eqx.data.corpus import CorpusError
        from pd_eqx.data.sequences import resident_sequences, streamed_sequences

        corpus = self.open()
        small = corpus.size * 4 <= _RESIDENT_BYTES
        resident = self.reading == "resident" or (self.reading == "auto" and small)
        make = resident_sequences if resident else streamed_sequences
        sizes = (self.length, self.batch_size, seed)
        try:
            return make(corpus, *sizes, held_out=self.held_out, evaluate=evaluate)
        except ValueError as error:
            raise CorpusError(f"data: {error}") from None


AnyData = Annotated[
    SparseFeaturesConfig | RepeatedPrefixConfig | ModularPairsConfig | CorpusConfig,
    Field(discriminator="kind"),
]
