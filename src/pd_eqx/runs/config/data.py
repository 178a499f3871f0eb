"""Data in a configuration: what a decomposition is trained on."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pd_eqx.runs.config.base import Count, Fraction, Node

if TYPE_CHECKING:
    from pd_eqx.step import BatchSource


class SparseFeaturesConfig(Node):
    """Each feature is non-zero with one probability, and then uniform in `[low, high)`."""

    kind: Literal["sparse_features"]
    batch_size: Count
    probability: Fraction
    low: float = 0.0
    high: float = 1.0

    def build(self, target: Any) -> "BatchSource":
        """The library's batches, as wide as the target, which reads features."""
        from pd_eqx.data.sparse_features import SparseFeatures

        return SparseFeatures(
            self.batch_size, target.n_features, self.probability, self.low, self.high
        )


class RepeatedPrefixConfig(Node):
    """Sequences that repeat a random prefix, of the sizes that the target was trained on."""

    kind: Literal["repeated_prefix"]
    batch_size: Count

    def build(self, target: Any) -> "BatchSource":
        """The library's batches for an induction target."""
        from pd_eqx.data.toy_tokens import RepeatedPrefix

        return RepeatedPrefix(
            self.batch_size, target.vocabulary, target.length, target.shortest, target.longest
        )


class ModularPairsConfig(Node):
    """Pairs of numbers below the target's modulus, shown to it or not."""

    kind: Literal["modular_pairs"]
    batch_size: Count

    def build(self, target: Any) -> "BatchSource":
        """The library's batches for a target that adds."""
        from pd_eqx.data.toy_tokens import ModularPairs

        return ModularPairs(self.batch_size, target.modulus)


AnyData = Annotated[
    SparseFeaturesConfig | RepeatedPrefixConfig | ModularPairsConfig, Field(discriminator="kind")
]
