"""Rotary positions: pairs of coordinates of each query and key turn by an angle that grows with position.

The pairs are `(j, j + r/2)` of the first `r` coordinates of a head; the others pass unchanged. Frequencies and
tables are computed where they are used and are never leaves of a target, where an optimizer could move them.

Source: Su et al. 2021 (arXiv 2104.09864); the conventions are those of the golden numbers `hf`.
"""

import abc
import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Scaling(abc.ABC):
    """How the frequencies of a model are changed so that it reads longer texts than it first learned."""

    @abc.abstractmethod
    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """The changed frequencies, float64 `[r/2]`, in radians a position."""


@dataclasses.dataclass(frozen=True)
class Unscaled(Scaling):
    """As they are."""

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """See `Scaling`."""
        return frequencies


@dataclasses.dataclass(frozen=True)
class LinearScaling(Scaling):
    """All divided by one factor."""

    factor: float

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """See `Scaling`."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Long waves divided by the factor, short ones kept, those between interpolated.

    - `original_length`: positions that the model first learned, `M`. Waves longer than `M / low` are
      divided, waves shorter than `M / high` are kept.

    Source: Llama 3.1; golden numbers `hf`, section 3.
    """

    factor: float
    low: float
    high: float
    original_length: int

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """See `Scaling`."""
        waves_in_original = self.original_length * frequencies / (2.0 * math.pi)
        kept = np.clip((waves_in_original - self.low) / (self.high - self.low), 0.0, 1.0)
        return (1.0 - kept) * frequencies / self.factor + kept * frequencies


@dataclasses.dataclass(frozen=True)
class FactorScaling(Scaling):
    """Each frequency divided by a factor of its own, as some files store the scaling of a model."""

    factors: tuple[float, ...]

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """See `Scaling`.

        **Errors:** `ValueError` where there is not one factor for each frequency.
        """
        if len(self.factors) != len(frequencies):
            raise ValueError(
                f"{len(self.factors)} rotary factors for {len(frequencies)} frequencies; "
                "there must be one for each pair of turned coordinates"
            )
        return frequencies / np.asarray(self.factors)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Which coordinates of a head turn, and how fast.

    - `width`: the number of coordinates `r`, even; the first of each head.
    - `base`: pair `j` turns by `base^(−2j/r)` radians a position, before scaling.
    """

    width: int
    base: float = 10000.0
    scaling: Scaling = Unscaled()

    def __post_init__(self) -> None:
        """Refuses a width that leaves a coordinate without a partner."""
        if self.width < 2 or self.width % 2:
            raise ValueError(f"rotary positions turn pairs: width {self.width} is not 2, 4, 6, …")

    def frequencies(self) -> np.ndarray:
        """Radians a position of each pair, float64 `[r/2]`."""
        return self.scaling(self.base ** (-np.arange(0, self.width, 2) / self.width))

    def __call__(self, x: Float[Array, "*lead T heads D"]) -> Float[Array, "*lead T heads D"]:
        """The queries or keys of positions 0 … T − 1, turned; at least in float32."""
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        positions = jnp.arange(x.shape[-3], dtype=dtype)
        angles = positions[:, None, None] * jnp.asarray(self.frequencies(), dtype)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        half = self.width // 2
        first, second, rest = jnp.split(x.astype(dtype), (half, self.width), axis=-1)
        turned = (first * cos - second * sin, second * cos + first * sin, rest)
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)
