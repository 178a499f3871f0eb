import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.data.sparse_features import ExactlyActive, SparseFeatures


def test_a_batch_is_a_function_of_its_key_alone() -> None:
    batches = SparseFeatures(64, 5, 0.3)
    key = jax.random.key(0)
    first = np.asarray(batches(key, jnp.int32(0)))
    assert first.tobytes() == np.asarray(batches(key, jnp.int32(7))).tobytes()
    assert first.tobytes() != np.asarray(batches(jax.random.key(1), jnp.int32(0))).tobytes()


def test_batch_sources_hold_no_array() -> None:
    assert jax.tree.leaves(SparseFeatures(64, 5, 0.3, synchronised=((0, 1),))) == []
    assert jax.tree.leaves(ExactlyActive(64, 5, 2)) == []


def test_a_synchronised_group_fires_together_or_not_at_all() -> None:
    alone = SparseFeatures(2000, 5, 0.2)(jax.random.key(0), jnp.int32(0))
    together = SparseFeatures(2000, 5, 0.2, synchronised=((1, 4),))(jax.random.key(0), jnp.int32(0))
    assert jnp.any((alone[:, 1] != 0) != (alone[:, 4] != 0))
    assert jnp.all((together[:, 1] != 0) == (together[:, 4] != 0))
    assert jnp.array_equal(together[:, 2], alone[:, 2])


def test_exactly_active_rows_have_just_that_many() -> None:
    batch = ExactlyActive(500, 7, 3, low=0.5)(jax.random.key(0), jnp.int32(0))
    assert jnp.all(jnp.sum(batch != 0.0, axis=1) == 3)
    assert jnp.all(jnp.any(batch != 0.0, axis=0))


@pytest.mark.parametrize(
    ("source", "arguments", "complaint"),
    [
        (SparseFeatures, (0, 5, 0.1), "batch_size is 0"),
        (SparseFeatures, (8, 5, 0.0), "probability is 0.0"),
        (SparseFeatures, (8, 5, 1.5), "probability is 1.5"),
        (SparseFeatures, (8, 5, 0.1, 1.0, 1.0), "is empty; raise high"),
        (SparseFeatures, (8, 5, 0.1, 0.0, 1.0, ((1, 5),)), r"group \(1, 5\).* from 0 to 4"),
        (ExactlyActive, (8, 5, 6), "n_active is 6"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    source: type, arguments: tuple[object, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        source(*arguments)
