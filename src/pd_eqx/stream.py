"""A residual stream that need not be formed: what was written to it, and along which directions.

A stream of a thousand numbers that a hundred features and fifty neurons write to has a rank of 150. What a matrix reads
from it is then the writers' activations times a small product, of their directions with the matrix: a tenth of the
arithmetic of forming the stream and reading that. Only the order of the sums is another.
"""

import functools
import math
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Stream(eqx.Module):
    """Vectors `[*lead, d]`: `Σ activations @ directions`, and what is formed already.

    - `writes`: pairs of activations `[*lead, k]` and directions `[k, d]`, each with its own `k`.
    - `formed`: `[*lead, d]`, or `[d]` for the same vector at each position, or None.

    It stands where an array would: it has a `shape` and a `dtype`, and `stream @ matrix` is what a matrix reads. Streams
    and arrays can be added to it.
    """

    writes: tuple[tuple[Float[Array, "..."], Float[Array, "_ d"]], ...] = ()
    formed: Float[Array, "..."] | None = None

    def __check_init__(self) -> None:
        if not self.writes and self.formed is None:
            raise ValueError("a stream needs a write, or a vector that is formed already")

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*lead, d)`."""
        if self.formed is not None and not self.writes:
            return self.formed.shape
        activations, directions = self.writes[0]
        return (*activations.shape[:-1], directions.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        """Of the vectors."""
        return jnp.result_type(*jax.tree.leaves(self))

    def vectors(self) -> Float[Array, "*lead d"]:
        """The stream as an array."""
        return _sum(
            [activations @ directions for activations, directions in self.writes], self.formed
        )

    def __add__(self, other: "Stream | Array") -> "Stream":
        if not isinstance(other, Stream):
            other = Stream(formed=other)
        formed = other.formed if self.formed is None else _sum([self.formed], other.formed)
        return Stream(self.writes + other.writes, formed)

    def __matmul__(self, matrix: Float[Array, "d n"]) -> Float[Array, "*lead n"]:
        """`vectors() @ matrix`, in the order that takes fewer multiplications."""
        *lead, width = self.shape
        positions, read = math.prod(lead), matrix.shape[1]
        rank = sum(directions.shape[0] for _, directions in self.writes)
        if rank * read * (positions + width) > positions * width * (rank + read):
            return self.vectors() @ matrix
        parts = [activations @ (directions @ matrix) for activations, directions in self.writes]
        return _sum(parts, None if self.formed is None else self.formed @ matrix)


# What a site's input is: an array, or a stream that stands for one.
SiteInput = Array | Stream


def as_vectors(x: SiteInput) -> Array:
    """The input as an array, whichever way a target gave it."""
    return x.vectors() if isinstance(x, Stream) else x


def _sum(parts: list[Array], last: Array | None) -> Array:
    return functools.reduce(operator.add, parts if last is None else [*parts, last])
