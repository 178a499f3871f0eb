"""Losses: what each reduction is, and in which precision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pd_eqx.losses import (
    Anneal,
    Frequency,
    KLDivergence,
    MeanSquaredError,
    annealed,
    faithfulness,
    importance_minimality,
    lp_penalty,
    mean_over_positions,
    minimality,
    relative_faithfulness,
    smooth_l0_penalty,
)


def upper(dtype: jnp.dtype | None = None) -> dict[str, Array]:
    ramp = jnp.linspace(0.0, 1.3, 8 * 3, dtype=dtype).reshape(8, 3)
    return {"a": ramp, "b": ramp[:, :2] ** 2}


def test_faithfulness_pools_entries_and_its_relative_form_does_not() -> None:
    deltas = {"a": jnp.full((2, 3), 2.0), "b": jnp.full((1, 2), 1.0)}
    weights = {"a": jnp.full((2, 3), 4.0), "b": jnp.full((1, 2), 1.0), "frozen": jnp.ones((1, 1))}
    assert float(faithfulness(deltas)) == (6 * 4.0 + 2 * 1.0) / 8
    shares = relative_faithfulness(deltas, weights)
    assert {site: float(share) for site, share in shares.items()} == {"a": 0.25, "b": 1.0}


def test_relative_faithfulness_does_not_see_the_unit_of_a_site() -> None:
    deltas, weights = {"a": jnp.ones((2, 3))}, {"a": jnp.linspace(1.0, 2.0, 6).reshape(2, 3)}
    larger = [{"a": 8.0 * tree["a"]} for tree in (deltas, weights)]
    found = relative_faithfulness(larger[0], larger[1])["a"]
    assert float(found) == float(relative_faithfulness(deltas, weights)["a"])


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 2.0), (10, 2.0), (15, 1.5), (20, 1.0), (99, 1.0)]
)
def test_an_annealed_value_is_a_function_of_the_fraction_of_the_run(
    step: int, expected: float
) -> None:
    value = Anneal(2.0, 1.0, 0.1, 0.2).at(step, 100)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    assert annealed(0.5, step, 100) == 0.5


@pytest.mark.parametrize(("start", "end"), [(-0.1, 1.0), (0.6, 0.5), (0.0, 1.1)])
def test_annealing_outside_the_run_is_refused(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="0 ≤ start ≤ end ≤ 1"):
        Anneal(1.0, 0.5, start, end)


def test_minimality_is_a_mean_over_positions_and_a_sum_over_components_and_sites() -> None:
    once = importance_minimality(upper(), 1.0, 0.0)
    twice = {site: jnp.concatenate([ci, ci]) for site, ci in upper().items()}
    assert float(importance_minimality(twice, 1.0, 0.0)) == pytest.approx(float(once))
    by_site = [importance_minimality({site: ci}, 1.0, 0.0) for site, ci in upper().items()]
    assert float(sum(by_site, jnp.zeros(()))) == pytest.approx(float(once))
    expected = sum(float(np.mean(np.asarray(ci), 0).sum()) for ci in upper().values())
    assert float(once) == pytest.approx(expected, rel=1e-6)


def test_eps_bounds_the_gradient_at_zero() -> None:
    gradient = jax.grad(lambda ci: jnp.sum(lp_penalty(ci, 0.5, 1e-4)))(jnp.zeros(2))
    assert gradient.tolist() == pytest.approx([0.5 * 1e-4**-0.5] * 2)


def test_penalties_are_computed_at_least_in_float32() -> None:
    narrow = upper(jnp.dtype("bfloat16"))["a"]
    for penalty in (lp_penalty(narrow, 0.9, 1e-12), smooth_l0_penalty(narrow, 0.3)):
        assert penalty.dtype == jnp.float32
    assert lp_penalty(jnp.zeros(1, jnp.bfloat16), 2.0, 1e-3)[0] == pytest.approx(1e-6)


def test_smooth_l0_counts_what_lies_above_its_width() -> None:
    ci = jnp.array([0.0, 1e-4, 0.5, 1.0])
    assert smooth_l0_penalty(ci, 1e-2).tolist() == pytest.approx([0.0, 5e-5, 1.0, 1.0], rel=1e-3)
    assert float(smooth_l0_penalty(jnp.float32(0.3), 0.3)) == pytest.approx(1 - math.exp(-0.5))


def test_the_gradient_of_smooth_l0_is_largest_at_its_width() -> None:
    grid = jnp.linspace(0.0, 1.0, 1001)
    slope = jax.vmap(jax.grad(lambda ci: smooth_l0_penalty(ci, 0.2)))(grid)
    assert float(grid[jnp.argmax(slope)]) == pytest.approx(0.2)
    assert float(jnp.max(slope)) == pytest.approx(math.exp(-0.5) / 0.2, rel=1e-5)
    assert float(slope[0]) == 0.0


def test_the_frequency_term_by_hand() -> None:
    means = {"a": jnp.array([0.25, 0.0])}
    found = minimality(means, Frequency(0.5, 12))
    assert float(found) == pytest.approx(0.25 + 0.5 * 0.25 * math.log2(1 + 12 * 0.25))


def test_the_frequency_term_does_not_depend_on_the_batch_size() -> None:
    frequency = Frequency(0.3, 1000)
    twice = {site: jnp.concatenate([ci, ci]) for site, ci in upper().items()}
    once = float(importance_minimality(upper(), 1.0, 0.0, frequency))
    assert float(importance_minimality(twice, 1.0, 0.0, frequency)) == pytest.approx(once)


@pytest.mark.devices(8)
def test_frequencies_are_those_of_the_whole_batch_however_it_is_sharded() -> None:
    def penalty(batch: dict[str, Array]) -> Array:
        return importance_minimality(batch, 1.0, 0.0, Frequency(0.7, 64))

    mesh = jax.make_mesh((8,), ("data",))
    split = jax.device_put(upper(), NamedSharding(mesh, PartitionSpec("data")))
    whole = float(penalty(upper()))
    assert float(jax.jit(penalty)(split)) == pytest.approx(whole, rel=1e-5)
    # The mistake that this would show: a mean of each shard's own value is another number.
    shards = [float(penalty({s: ci[i : i + 1] for s, ci in upper().items()})) for i in range(8)]
    assert abs(sum(shards) / 8 - whole) > 0.01


def test_a_moving_average_without_decay_is_the_plain_term_and_its_gradient() -> None:
    plain, moving = Frequency(0.7, 64), Frequency(0.7, 64, decay=0.0)

    def averaged(batch: dict[str, Array]) -> Array:
        means = mean_over_positions(batch)
        moved = moving.moved({site: jnp.full(m.shape, 9.0) for site, m in means.items()}, means)
        return minimality(means, moving, moving.debiased(moved, 1))

    found = jax.value_and_grad(averaged)(upper())
    expected = jax.value_and_grad(lambda b: minimality(mean_over_positions(b), plain))(upper())
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(a, b, rtol=1e-6)


def test_a_debiased_average_of_one_value_is_that_value_from_the_first_batch() -> None:
    frequency = Frequency(1.0, 1, decay=0.99)
    average, means = {"a": jnp.zeros(3)}, {"a": jnp.array([0.5, 0.01, 0.0])}
    for batches in (1, 2, 3):
        average = frequency.moved(average, means)
        debiased = frequency.debiased(average, batches)["a"]
        assert debiased.tolist() == pytest.approx([0.5, 0.01, 0.0], rel=1e-5)


@pytest.mark.parametrize(
    ("reference", "decay", "complaint"),
    [(0, None, "1 or more, found 0"), (5, 1.0, "found 1.0"), (5, -0.1, "found -0.1")],
)
def test_meaningless_frequencies_are_refused(
    reference: int, decay: float | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Frequency(1.0, reference, decay)


def test_mse_averages_over_coordinates_and_kl_does_not() -> None:
    outputs = jnp.linspace(-1.0, 2.0, 12).reshape(2, 2, 3)
    clean = outputs[::-1] ** 2
    assert float(MeanSquaredError()(outputs, clean)) == pytest.approx(
        float(jnp.sum((outputs - clean) ** 2)) / 12
    )
    p, q = jax.nn.softmax(clean), jax.nn.softmax(outputs)
    expected = float(jnp.sum(p * jnp.log(p / q))) / 4
    assert float(KLDivergence()(outputs, clean)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("distance", [MeanSquaredError(), KLDivergence()])
def test_distances_of_narrow_outputs_are_float32(
    distance: MeanSquaredError | KLDivergence,
) -> None:
    clean = jnp.linspace(-1.0, 2.0, 6, dtype=jnp.bfloat16).reshape(2, 3)
    assert distance(clean[::-1], clean).dtype == jnp.float32
    assert float(distance(clean, clean)) == 0.0


def test_a_clean_probability_of_zero_adds_nothing_to_kl_and_its_gradient() -> None:
    clean = jnp.array([[0.0, 1.0, -1e4], [0.0, 1.0, -jnp.inf]])
    value, grad = jax.value_and_grad(KLDivergence())(jnp.zeros((2, 3)), clean)
    assert bool(jnp.isfinite(value))
    assert bool(jnp.all(jnp.isfinite(grad)))


def test_faithfulness_of_more_entries_than_an_int32_counts() -> None:
    delta = jax.ShapeDtypeStruct((1 << 16, 1 << 16), jnp.float32)
    assert jax.eval_shape(faithfulness, {"a": delta}).shape == ()
