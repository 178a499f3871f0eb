"""Random token sequences, as the toy transformers are fed.

Like all batches these are pure functions of a key. What a network is to say of a sequence is drawn with it: the
toys are trained and checked on that, while a decomposition is trained on the tokens alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray


class RepeatedPrefix(eqx.Module):
    """Sequences that repeat a prefix of distinct random tokens, of random length, over and over.

    From the first repeated token on, each token is followed by what followed it before: to know it, a network must
    find where it has seen the token, and read what came next. Every field is static.

    - `vocabulary`, `length`: how many tokens there are, and how many are in a sequence.
    - `shortest`, `longest`: the prefix has a length drawn uniformly from these, both included.

    **Errors:** `ValueError` for sizes below one, a prefix longer than the vocabulary, or one that leaves no
    repeated token to be followed by another.
    """

    batch_size: int = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    shortest: int = eqx.field(static=True)
    longest: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.batch_size < 1 or not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"batch_size is {self.batch_size} and the prefix has {self.shortest} to {self.longest} "
                "tokens; sizes must be at least 1, and the shortest not above the longest"
            )
        if self.longest > self.vocabulary:
            raise ValueError(
                f"a prefix of {self.longest} distinct tokens needs a vocabulary as large, found "
                f"{self.vocabulary}"
            )
        if self.length < self.longest + 2:
            raise ValueError(
                f"a sequence of {self.length} tokens does not show that a prefix of {self.longest} is "
                f"repeated; it must have at least {self.longest + 2}"
            )

    def with_repeats(
        self, key: PRNGKeyArray
    ) -> tuple[Int[Array, "batch length"], Bool[Array, "batch length"]]:
        """Sequences, and which of their positions hold a repeated token."""
        key_tokens, key_period = jax.random.split(key)
        noise = jax.random.uniform(key_tokens, (self.batch_size, self.vocabulary))
        distinct = jnp.argsort(noise, axis=-1).astype(jnp.int32)
        shape = (self.batch_size, 1)
        period = jax.random.randint(key_period, shape, self.shortest, self.longest + 1)
        position = jnp.arange(self.length)
        tokens = jnp.take_along_axis(distinct, position % period, axis=-1)
        return tokens, position >= period

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch length"]:
        """The sequences of one step; `key` is that step's own."""
        del step
        return self.with_repeats(key)[0]


class ModularPairs(eqx.Module):
    """Uniform pairs `a, b` of numbers below `modulus`, each followed by the sign `=` (token `modulus`).

    Every field is static.

    **Errors:** `ValueError` for a batch size below one, or a modulus below two.
    """

    batch_size: int = eqx.field(static=True)
    modulus: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.batch_size < 1 or self.modulus < 2:
            raise ValueError(
                f"batch_size is {self.batch_size} and modulus is {self.modulus}; they must be at least "
                "1 and 2"
            )

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch three"]:
        """The rows of one step; `key` is that step's own."""
        del step
        pairs = jax.random.randint(key, (self.batch_size,), 0, self.modulus**2)
        return modular_rows(pairs, self.modulus)


def modular_rows(pairs: Int[Array, " n"], modulus: int) -> Int[Array, "n three"]:
    """Tokens `a, b, =` of pairs numbered `a · modulus + b`."""
    sign = jnp.full_like(pairs, modulus)
    return jnp.stack([pairs // modulus, pairs % modulus, sign], axis=-1)


def modular_sums(rows: Int[Array, "n three"], modulus: int) -> Int[Array, " n"]:
    """`(a + b) mod modulus` of rows `a, b, =`."""
    return (rows[:, 0] + rows[:, 1]) % modulus
