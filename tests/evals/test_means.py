import jax
import jax.numpy as jnp

from pd_eqx.evals.means import combine, mean_of, nothing_seen, values


def pooled(batches: list[jax.Array]) -> jax.Array:
    means = nothing_seen({"x": mean_of(jnp.zeros(2), 0)})
    for batch in batches:
        means = combine(means, {"x": mean_of(batch.mean(axis=0), batch.shape[0])})
    return values(means)["x"]


def test_batches_of_different_sizes_are_pooled_over_all_positions() -> None:
    rows = jax.random.normal(jax.random.key(0), (70, 2)) + jnp.arange(70.0)[:, None]
    batches = [rows[:1], rows[1:9], rows[9:]]
    assert jnp.allclose(pooled(batches), rows.mean(axis=0), rtol=1e-6)
    of_averages = jnp.stack([batch.mean(axis=0) for batch in batches]).mean(axis=0)
    assert not jnp.allclose(of_averages, rows.mean(axis=0), rtol=0.1)


def test_one_batch_keeps_its_bits() -> None:
    batch = jax.random.normal(jax.random.key(1), (3, 2)) / 3.0
    assert pooled([batch]).tobytes() == batch.mean(axis=0).tobytes()


def test_a_batch_without_a_position_changes_nothing_not_even_when_its_mean_is_undefined() -> None:
    mean = mean_of(jnp.array([0.1, 7.0]), 3)
    empty = mean_of(jnp.array([jnp.nan, jnp.inf]), 0)
    assert combine(mean, empty).value.tobytes() == mean.value.tobytes()
    assert combine(empty, mean).value.tobytes() == mean.value.tobytes()
    assert combine(empty, mean).weight == 3


def test_what_is_not_finite_is_not_averaged_away() -> None:
    assert jnp.isnan(combine(mean_of(jnp.float32(1.0), 9), mean_of(jnp.float32(jnp.nan), 1)).value)


def test_a_mean_of_many_batches_does_not_stall_as_a_float32_total_would() -> None:
    batches = 3000
    batch = mean_of(jnp.float32(0.1), 1 << 14)

    def once(_: int, carry: tuple[object, jax.Array]) -> tuple[object, jax.Array]:
        mean, total = carry
        return combine(mean, batch), total + batch.value * batch.weight

    start = nothing_seen(batch), jnp.float32(0.0)
    mean, total = jax.jit(lambda: jax.lax.fori_loop(0, batches, once, start))()
    assert abs(float(mean.value) - 0.1) < 1e-8
    assert abs(float(total) / (batches * (1 << 14)) - 0.1) > 1e-7


def test_low_precision_is_pooled_in_float32() -> None:
    assert mean_of(jnp.ones((), jnp.bfloat16), 300).weight == 300
    assert mean_of(jnp.ones((), jnp.bfloat16), 300).value.dtype == jnp.float32
