"""Every epoch reads every sequence once, at any step, whoever reads it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.data.corpus import Corpus, open_corpus
from pd_eqx.data.sequences import (
    SequenceOrder,
    permute,
    resident_sequences,
    streamed_sequences,
)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """107 tokens, each its own place: ten sequences of ten, and seven left over."""
    np.save(tmp_path / "tokens.npy", np.arange(107, dtype=np.uint16))
    return open_corpus(tmp_path / "tokens.npy")


@pytest.mark.parametrize("count", [1, 2, 3, 37, 64, 1000])
def test_each_epoch_is_a_permutation_of_its_own(count: int) -> None:
    places = jnp.arange(count, dtype=jnp.uint32)
    orders = [np.asarray(permute(places, jnp.uint32(epoch), count, 5)) for epoch in range(3)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(count))
    if count >= 37:
        assert not np.array_equal(orders[0], orders[1])
        assert not np.array_equal(orders[0], permute(places, jnp.uint32(0), count, 6))
        # An order is no shift of the places, nor do neighbours stay neighbours.
        assert np.mean(np.diff(orders[0].astype(int)) == 1) < 0.2


def test_no_sequence_is_repeated_or_dropped_where_batches_span_epochs() -> None:
    order = SequenceOrder(count=10, batch_size=4, seed=3)
    read = np.concatenate([order.rows(step) for step in range(15)])
    for epoch in range(6):
        assert sorted(read[10 * epoch : 10 * (epoch + 1)]) == list(range(10))


def test_a_batch_larger_than_an_epoch_holds_whole_epochs() -> None:
    rows = np.asarray(SequenceOrder(count=3, batch_size=7, seed=0).rows(1))
    stream = np.concatenate([SequenceOrder(3, 7, 0).rows(step) for step in range(3)])
    assert np.array_equal(rows, stream[7:14])
    assert sorted(stream[6:9]) == [0, 1, 2]


@pytest.mark.parametrize("step", [0, 1, 2**31 - 1])
def test_a_step_far_ahead_is_found_at_once(step: int) -> None:
    count, batch, seed = 1_000_003, 4099, 11
    rows = np.asarray(SequenceOrder(count, batch, seed).rows(step))
    first = step * batch  # beyond 32 bits at the last step
    places = [(first + offset) % count for offset in range(batch)]
    epochs = [(first + offset) // count for offset in range(batch)]
    expected = permute(jnp.array(places, jnp.uint32), jnp.array(epochs, jnp.uint32), count, seed)
    assert np.array_equal(rows, expected)
    assert rows.max() < count


def test_processes_share_a_batch() -> None:
    order = SequenceOrder(count=10, batch_size=6, seed=1)
    shares = [order.rows(4, part, 3) for part in range(3)]
    assert np.array_equal(np.concatenate(shares), order.rows(4))
    with pytest.raises(ValueError, match="part 0 of 4 of a batch of 6"):
        order.rows(4, 0, 4)


def test_resident_and_streamed_batches_are_the_same_and_hold_whole_sequences(
    corpus: Corpus,
) -> None:
    resident = resident_sequences(corpus, 10, 4, seed=2)
    streamed = streamed_sequences(corpus, 10, 4, seed=2)
    key = jax.random.key(0)
    for step in (0, 1, 7):
        batch = np.asarray(resident(key, jnp.int32(step)))
        assert batch.dtype == np.int32
        assert np.array_equal(
            batch, jax.jit(type(streamed).__call__)(streamed, key, jnp.int32(step))
        )
        assert np.all(batch[:, 0] % 10 == 0)
        assert np.all(np.diff(batch, axis=1) == 1)
        # The key is the step's own and plays no part.
        assert np.array_equal(batch, resident(jax.random.key(9), jnp.int32(step)))


def test_what_is_held_out_is_never_trained_on(corpus: Corpus) -> None:
    key = jax.random.key(0)
    for make in (resident_sequences, streamed_sequences):
        train = make(corpus, 10, 7, seed=2, held_out=3)
        held_out = make(corpus, 10, 3, seed=2, held_out=3, evaluate=True)
        starts = sorted(np.asarray(train(key, jnp.int32(5)))[:, 0].tolist())
        assert starts == [0, 10, 20, 30, 40, 50, 60]
        assert sorted(np.asarray(held_out(key, jnp.int32(1)))[:, 0].tolist()) == [70, 80, 90]


def test_a_streamed_batch_is_read_inside_a_loop(corpus: Corpus) -> None:
    streamed = streamed_sequences(corpus, 10, 4, seed=2)
    key = jax.random.key(0)

    @jax.jit
    def total(first: jax.Array) -> jax.Array:
        def add(step: jax.Array, carry: jax.Array) -> jax.Array:
            return carry + streamed(key, step)

        return jax.lax.fori_loop(first, first + 3, add, jnp.zeros((4, 10), jnp.int32))

    expected = sum(np.asarray(streamed(key, jnp.int32(step))) for step in (2, 3, 4))
    assert np.array_equal(total(jnp.int32(2)), expected)


@pytest.mark.parametrize(("length", "held_out"), [(108, 0), (0, 0), (10, 10), (10, -1)])
def test_a_corpus_without_a_sequence_is_refused(corpus: Corpus, length: int, held_out: int) -> None:
    with pytest.raises(ValueError, match="107 tokens make"):
        resident_sequences(corpus, length, 4, seed=0, held_out=held_out)
    with pytest.raises(ValueError, match="0 sequences in batches of 4"):
        SequenceOrder(0, 4, 0)
