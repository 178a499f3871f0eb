"""Batches of a corpus: which sequences a step reads is a pure function of the seed and the step.

A corpus is cut into sequences of one length, and each epoch reads all of them once, in an order of its own. The order is a keyed
permutation that is computed, not stored: a step far ahead costs no more than the first, a resumed run needs no cursor, and
a corpus of any size needs no shuffled list. It is computed inside the jitted step, where a loader that lives on the
host could not follow.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer, PRNGKeyArray, UInt32

from pd_eqx.data.corpus import Corpus

_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class SequenceOrder:
    """Which sequences the steps of a run read.

    Step `s` reads places `s · batch_size …` of the endless row of epochs; a batch may span two of them.

    - `count`: how many sequences there are; `batch_size`: how many a step reads; `seed`: of the order.

    **Errors:** `ValueError` for a size below one, and for more sequences than 32 bits can number.
    """

    count: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        """Refuses sizes that give no batch."""
        if self.batch_size < 1 or not 1 <= self.count < 1 << 31:
            raise ValueError(
                f"{self.count} sequences in batches of {self.batch_size}: both must be at least 1, and fewer than "
                "2³¹ sequences; is the corpus shorter than one sequence?"
            )

    def rows(
        self, step: Int[Array, ""] | int, part: int = 0, parts: int = 1
    ) -> UInt32[Array, " rows"]:
        """The sequences that one step reads.

        **Arguments:**

        - `part`, `parts`: the rows of one process of several, which together read the whole batch.

        **Errors:** `ValueError` where the batch cannot be shared out evenly.
        """
        if self.batch_size % parts or not 0 <= part < parts:
            raise ValueError(
                f"part {part} of {parts} of a batch of {self.batch_size}: choose a batch size that the processes share evenly"
            )
        share = self.batch_size // parts
        batch = jnp.arange(part * share, (part + 1) * share, dtype=jnp.uint32)
        # Epoch and place of the step's first row without the product, which would overflow in a long run.
        step = jnp.asarray(step).astype(jnp.uint32)
        epoch, place = _multiply_divide(step, self.batch_size, self.count)
        place = place + batch
        return permute(place % self.count, epoch + place // self.count, self.count, self.seed)


def permute(
    index: UInt32[Array, " n"], epoch: UInt32[Array, "*n"], count: int, seed: int
) -> UInt32[Array, " n"]:
    """Where the order of an epoch puts each index: a permutation of 0 … count − 1 for every seed and epoch.

    A Feistel network permutes the least even number of bits that can hold `count`; what lands beyond is permuted again until it
    lands within, which keeps the whole one-to-one.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains" (cycle walking).
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = jnp.uint32((1 << half) - 1)
    key = _mix(jnp.asarray(epoch).astype(jnp.uint32) ^ _mix(jnp.uint32(seed % (1 << 32))))

    def once(x: Array) -> Array:
        left, right = x >> half, x & low
        for round_ in range(_ROUNDS):
            left, right = right, left ^ (_mix(right ^ key + jnp.uint32(round_)) & low)
        return left << half | right

    def beyond(x: Array) -> Array:
        return jnp.any(x >= count)

    def again(x: Array) -> Array:
        return jnp.where(x >= count, once(x), x)

    return jax.lax.while_loop(beyond, again, once(index))


class ResidentSequences(eqx.Module):
    """Batches of a corpus that is small enough to lie on the device whole.

    - `sequences`: `[count, length]`; `order`: which of them a step reads. A step's key is not used.
    """

    sequences: Integer[Array, "count length"]
    order: SequenceOrder = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch length"]:
        """The token ids of one step."""
        del key
        return self.sequences[self.order.rows(step)].astype(jnp.int32)


class StreamedSequences(eqx.Module):
    """Batches of a corpus of any size: each step reads its own from the mapped file, through a callback to the host.

    The callback is a pure function of the step, so JAX may call it as often as it likes. Every field is static.
    """

    corpus: Corpus = eqx.field(static=True)
    length: int = eqx.field(static=True)
    first: int = eqx.field(static=True)
    order: SequenceOrder = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch length"]:
        """The token ids of one step."""
        del key
        shape = jax.ShapeDtypeStruct((self.order.batch_size, self.length), jnp.int32)
        return jax.pure_callback(self.read, shape, self.order.rows(step))

    def read(self, rows: Integer[Array | np.ndarray, " rows"]) -> Int[np.ndarray, "rows length"]:
        """The token ids of some sequences, from the file."""
        tokens = self.corpus.tokens()
        starts = (np.asarray(rows, np.int64) + self.first) * self.length
        return np.stack([tokens[start : start + self.length] for start in starts]).astype(np.int32)


def resident_sequences(
    corpus: Corpus,
    length: int,
    batch_size: int,
    seed: int,
    *,
    held_out: int = 0,
    evaluate: bool = False,
) -> ResidentSequences:
    """The batches of a corpus that fits on the device.

    **Arguments:**

    - `length`: of a sequence, in tokens; what is left over at the corpus's end is never read.
    - `held_out`: how many sequences at the end are kept from training; `evaluate`: give those instead.

    **Errors:** `ValueError` where no sequence is left.
    """
    first, count = _part(corpus, length, held_out, evaluate)
    order = SequenceOrder(count, batch_size, seed)
    tokens = corpus.tokens()[first * length : (first + count) * length]
    return ResidentSequences(jnp.asarray(tokens.reshape(count, length)), order)


def streamed_sequences(
    corpus: Corpus,
    length: int,
    batch_size: int,
    seed: int,
    *,
    held_out: int = 0,
    evaluate: bool = False,
) -> StreamedSequences:
    """The same batches as `resident_sequences`, read from disk as they are needed."""
    first, count = _part(corpus, length, held_out, evaluate)
    return StreamedSequences(corpus, length, first, SequenceOrder(count, batch_size, seed))


def _part(corpus: Corpus, length: int, held_out: int, evaluate: bool) -> tuple[int, int]:
    """The first sequence and how many there are, of the part for training or of the one held out."""
    total = corpus.size // length if length > 0 else 0
    if not 0 <= held_out < total:
        raise ValueError(
            f"{corpus.path}: its {corpus.size} tokens make {total} sequences of {length}, of which {held_out} are "
            "to be held out; choose a shorter length, or hold out fewer"
        )
    return (total - held_out, held_out) if evaluate else (0, total - held_out)


def _multiply_divide(step: Array, factor: int, divisor: int) -> tuple[Array, Array]:
    """`divmod(step · factor, divisor)` in 32 bits, for a quotient below 2³²: one binary digit of the step at a time."""
    whole, rest = divmod(factor, divisor)

    def double(digit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        quotient, remainder = carry
        bit = (step >> (jnp.uint32(31) - digit.astype(jnp.uint32))) & jnp.uint32(1)
        quotient, remainder = quotient * 2 + bit * jnp.uint32(whole), remainder * 2
        quotient, remainder = _carried(quotient, remainder, divisor)
        return _carried(quotient, remainder + bit * jnp.uint32(rest), divisor)

    zero = jnp.uint32(0)
    return jax.lax.fori_loop(0, 32, double, (zero, zero))


def _carried(quotient: Array, remainder: Array, divisor: int) -> tuple[Array, Array]:
    over = remainder >= divisor
    return quotient + over, jnp.where(over, remainder - jnp.uint32(divisor), remainder)


def _mix(x: Array) -> Array:
    """A 32-bit hash in which every bit of the result depends on every bit of `x` (Wellons' lowbias32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
