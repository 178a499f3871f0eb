"""One number per leaf that changes whenever its bits, their order, its shape, dtype or path do.

Orbax checks its own metadata but not the numbers: a flipped bit in a data file restores silently. So
each leaf gets a fingerprint when it is saved, computed from the array on its devices, and again when
it is restored. It must not depend on how the array is laid out over devices, or a checkpoint could
not be checked on other hardware than wrote it.

Every 32-bit word of the leaf is mixed with its position in the global array by a bijection, and two
sums are taken modulo 2^32: of the mixed words, and of the mixed words times an odd weight of their
position. Integer addition commutes and associates exactly, so partial sums per shard give the same
total on any mesh. Since the mixing is a bijection of the word, one changed word always changes the
first sum; any other change goes unnoticed with a probability of about 2^-60. The printed fingerprint
is a SHA-256 over both sums with path, dtype and shape, cut to 128 bits.

It guards against accidents, not against forgery.
"""

import hashlib
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped, UInt32

_GOLDEN = 0x9E3779B1
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_MODULUS = 1 << 32
_BLOCK = 1 << 16


def device_sums(array: Shaped[Array, "..."]) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    """The two position-dependent sums of an array, on its devices.

    **Arguments:**
    - `array`: of any dtype that a checkpoint stores; a PRNG key is passed as its raw data.

    **Returns:** two replicated uint32 scalars.
    """
    zero = jnp.uint32(0)
    first, second = zero, zero
    parts = _device_words(array)
    for part, words in enumerate(parts):
        position = jnp.full((), part * _GOLDEN % _MODULUS, jnp.uint32)
        stride = len(parts)
        for axis in reversed(range(words.ndim)):
            weight = np.uint32(stride * _GOLDEN % _MODULUS)
            position = position + lax.broadcasted_iota(jnp.uint32, words.shape, axis) * weight
            stride *= words.shape[axis]
        mixed = words ^ position
        mixed = (mixed ^ (mixed >> 16)) * np.uint32(_FIRST)
        mixed = (mixed ^ (mixed >> 15)) * np.uint32(_SECOND)
        mixed = mixed ^ (mixed >> 16)
        # One reduction of two operands: the words are read once, and XLA compiles one loop.
        sums = lax.reduce(
            (mixed, mixed * (position | np.uint32(1))),
            (zero, zero),
            lambda left, right: (left[0] + right[0], left[1] + right[1]),
            tuple(range(words.ndim)),
        )
        first, second = first + sums[0], second + sums[1]
    return first, second


def host_sums(array: Shaped[np.ndarray, "..."]) -> tuple[int, int]:
    """The same two sums of a numpy array, in blocks that fit a processor's cache."""
    first = second = start = 0
    ramp = np.arange(_BLOCK, dtype=np.uint32) * np.uint32(_GOLDEN)
    for words in _host_words(array):
        position = ramp[: words.size] + np.uint32(start * _GOLDEN % _MODULUS)
        mixed = words ^ position
        mixed ^= mixed >> 16
        mixed *= np.uint32(_FIRST)
        mixed ^= mixed >> 15
        mixed *= np.uint32(_SECOND)
        mixed ^= mixed >> 16
        first += int(mixed.sum(dtype=np.uint64))
        position |= np.uint32(1)
        mixed *= position
        second += int(mixed.sum(dtype=np.uint64))
        start += words.size
    return first % _MODULUS, second % _MODULUS


def fingerprint(path: str, dtype: str, shape: tuple[int, ...], sums: tuple[int, ...]) -> str:
    """The leaf's fingerprint, as 32 hexadecimal digits.

    **Arguments:**
    - `path`: where in the state the leaf is, item included.
    - `dtype`: its dtype, which for a PRNG key names the implementation.
    - `shape`: its shape.
    - `sums`: from `device_sums` or `host_sums`.
    """
    told = "\0".join([path, dtype, ",".join(map(str, shape)), *map(str, sums)])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _device_words(array: jax.Array) -> list[jax.Array]:
    """The array's bits as equally shaped uint32 arrays, whose words interleave."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return [
            words for part in (lax.real(array), lax.imag(array)) for words in _device_words(part)
        ]
    if array.dtype == jnp.bool_:
        return [array.astype(jnp.uint32)]
    bits = jax.dtypes.itemsize_bits(array.dtype)
    if bits == 64:
        halves = lax.bitcast_convert_type(array, jnp.uint32)
        return [halves[..., 0], halves[..., 1]]
    unsigned = {2: jnp.uint2, 4: jnp.uint4, 8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bits]
    return [lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)]


def _host_words(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array's bits as flat blocks of at most `_BLOCK` uint32 words, in row-major order."""
    flat = np.ascontiguousarray(array).reshape(math.prod(array.shape))
    size = flat.dtype.itemsize
    if size >= 4:
        flat = flat.view(np.uint32)
    elif size == 2:
        flat = flat.view(np.uint16)
    else:
        flat = flat.view(np.uint8)
    bits = 8 if array.dtype == np.bool_ else jax.dtypes.itemsize_bits(array.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        # A type narrower than a byte takes one, whose other bits mean nothing.
        yield block if size >= 4 else block.astype(np.uint32) & np.uint32((1 << bits) - 1)
