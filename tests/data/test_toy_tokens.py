import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.data.toy_tokens import ModularPairs, RepeatedPrefix, modular_rows, modular_sums

PREFIXES = RepeatedPrefix(batch_size=300, vocabulary=9, length=17, shortest=3, longest=6)
STEP = jnp.int32(0)


def test_a_prefix_of_distinct_tokens_is_repeated_to_the_end() -> None:
    tokens, repeated = map(np.asarray, PREFIXES.with_repeats(jax.random.key(1)))
    periods: set[int] = set()
    for row, again in zip(tokens, repeated, strict=True):
        period = int(np.argmax(again))
        periods.add(period)
        assert not again[:period].any()
        assert again[period:].all()
        assert len(set(row[:period])) == period
        assert np.array_equal(row[period:], row[:-period])
    assert periods == {3, 4, 5, 6}
    assert set(tokens.ravel()) == set(range(9))


def test_batches_depend_on_the_key_alone() -> None:
    for batches in (PREFIXES, ModularPairs(300, 7)):
        one = batches(jax.random.key(1), STEP)
        assert jnp.array_equal(one, batches(jax.random.key(1), STEP + 5))
        assert not jnp.array_equal(one, batches(jax.random.key(2), STEP))


def test_every_pair_of_numbers_comes_and_is_followed_by_the_sign() -> None:
    rows = np.asarray(ModularPairs(2000, 7)(jax.random.key(0), STEP))
    assert len({tuple(row) for row in rows[:, :2]}) == 49
    assert set(rows[:, :2].ravel()) == set(range(7))
    assert set(rows[:, 2]) == {7}


def test_sums_wrap() -> None:
    rows = modular_rows(jnp.array([0, 11, 34, 48]), 7)
    assert rows.tolist() == [[0, 0, 7], [1, 4, 7], [4, 6, 7], [6, 6, 7]]
    assert modular_sums(rows, 7).tolist() == [0, 5, 3, 5]


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ((0, 9, 17, 3, 6), "batch_size is 0"),
        ((4, 9, 17, 6, 3), "6 to 3 tokens"),
        ((4, 5, 17, 3, 6), "needs a vocabulary as large, found 5"),
        ((4, 9, 7, 3, 6), "must have at least 8"),
    ],
)
def test_sequences_that_cannot_be_made_are_refused(
    sizes: tuple[int, int, int, int, int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        RepeatedPrefix(*sizes)


def test_pairs_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ValueError, match="modulus is 1"):
        ModularPairs(4, 1)
