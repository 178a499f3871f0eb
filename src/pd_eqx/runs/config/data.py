"""Data in a configuration: what a decomposition is trained on."""

from typing import TYPE_CHECKING, Literal

from pd_eqx.runs.config.base import Count, Fraction, Node
from pd_eqx.runs.config.targets import AnyTarget

if TYPE_CHECKING:
    from pd_eqx.step import BatchSource


class SparseFeaturesConfig(Node):
    """Each feature is non-zero with one probability, and then uniform in `[low, high)`."""

    kind: Literal["sparse_features"]
    batch_size: Count
    probability: Fraction
    low: float = 0.0
    high: float = 1.0

    def build(self, target: AnyTarget) -> "BatchSource":
        """The library's batches, as wide as the target."""
        from pd_eqx.data.sparse_features import SparseFeatures

        return SparseFeatures(
            self.batch_size, target.n_features, self.probability, self.low, self.high
        )


AnyData = SparseFeaturesConfig
