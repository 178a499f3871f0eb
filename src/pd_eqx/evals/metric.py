"""What a metric promises: a pure measurement on device, and a report that JSON can hold."""

import abc
from typing import Any

from jaxtyping import PRNGKeyArray, PyTree

from pd_eqx.evals.observation import Observation
from pd_eqx.state import Decomposition
from pd_eqx.step import Target

# Nested dictionaries of numbers and strings, ready for JSON.
Report = dict[str, Any]
# Nested dictionaries of numpy arrays, for figures.
Arrays = dict[str, Any]


class BatchMetric(abc.ABC):
    """Measured on each batch and pooled over all of them."""

    @abc.abstractmethod
    def measure(self, seen: Observation, key: PRNGKeyArray) -> PyTree[Any]:
        """A tree of `Mean`s of one batch; runs under `jit`."""

    @abc.abstractmethod
    def report(self, values: PyTree[Any], sites: list[str]) -> tuple[Report, Arrays]:
        """What the pooled values (numpy, in the shape of `measure`'s tree) say.

        **Arguments:**

        - `sites`: the decomposed sites in the target's order.
        """


class ProductMetric(abc.ABC):
    """Measured once, on the decomposition beside its target; no batch is drawn."""

    @abc.abstractmethod
    def measure(self, decomposition: Decomposition, target: Target) -> PyTree[Any]:
        """A tree of arrays; runs under `jit`."""

    @abc.abstractmethod
    def report(self, values: PyTree[Any], sites: list[str]) -> tuple[Report, Arrays]:
        """What the values (numpy, in the shape of `measure`'s tree) say; see `BatchMetric.report`."""
