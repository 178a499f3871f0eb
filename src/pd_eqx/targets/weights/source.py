"""Where tensors come from: a set of names, each with a shape, read one at a time.

Whoever assembles a target asks for tensors by name and never holds more than one, so a model that fits the
devices need not fit the host a second time.
"""

import abc
from pathlib import Path

import numpy as np


class WeightsError(ValueError):
    """Weights that cannot become the target that was asked for: one line, naming file, tensor, found, expected."""


class TensorSource(abc.ABC):
    """Named tensors in a file or a folder.

    - `where`: the path, for messages.
    """

    where: str

    @abc.abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The stored shape of each tensor by name; reads no data."""

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """One tensor, in a floating dtype; memory-mapped where the format allows.

        **Errors:** `WeightsError` for a dtype that is not floating.
        """

    @abc.abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that hold them."""

    @abc.abstractmethod
    def told(self) -> str:
        """How the weights are stored, in a phrase: `bfloat16`, or `dequantised from Q4_1`."""
