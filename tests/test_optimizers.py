"""Optimizers: one rate and one clip a group; Muon sees matrices, and only matrices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.ci.mlp import Dense
from pd_eqx.optimizers import AdamW, Muon, clip_by_norm, global_norm
from pd_eqx.schedule import constant, decaying

STEP = jnp.asarray(0, jnp.int32)


def noise(seed: int, *shape: int) -> Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_the_norm_is_over_all_leaves() -> None:
    assert float(global_norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0, 12.0]])})) == 13.0


def test_a_gradient_within_the_bound_keeps_its_bits() -> None:
    grads = {"a": noise(0, 5)}
    clipped = clip_by_norm(grads, global_norm(grads), 100.0)
    assert np.asarray(clipped["a"]).tobytes() == np.asarray(grads["a"]).tobytes()


def test_the_reported_norm_is_that_before_the_clip() -> None:
    grads = {"a": jnp.array([3.0, 4.0])}
    optimizer = AdamW(constant(0.1), clip_norm=0.5)
    _, state, metrics = optimizer.update(grads, optimizer.init(grads), grads, STEP, 10)
    assert float(metrics["grad_norm"]) == 5.0
    assert np.asarray(state.mu["a"]) == pytest.approx([0.03, 0.04], rel=1e-5)


def test_the_rate_is_read_from_the_step_and_not_from_a_count() -> None:
    params = {"a": jnp.array([1.0, -2.0])}
    optimizer = AdamW(decaying(0.5, "linear"))
    for step, lr in ((0, 0.5), (5, 0.25), (10, 0.0)):
        new, _, metrics = optimizer.update(
            params, optimizer.init(params), params, jnp.asarray(step), 11
        )
        assert float(metrics["lr"]) == lr
        expected = [1.0 - lr, -2.0 + lr]
        assert np.asarray(new["a"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bound", [0.0, -1.0])
def test_a_bound_that_stops_every_step_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        AdamW(constant(0.1), clip_norm=bound)


@pytest.mark.parametrize("optimizer", [AdamW(constant(0.1), weight_decay=0.1), Muon(constant(0.1))])
def test_the_state_is_arrays_of_float32_and_of_integers_alone(optimizer: Any) -> None:
    params = {"layer": Dense(noise(0, 4, 3), noise(1, 3))}
    for leaf in jax.tree.leaves(optimizer.init(params)):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type
        assert leaf.dtype in (jnp.float32, jnp.int32)


def step_of(optimizer: Any, params: Any, grads: Any) -> Any:
    update = jax.jit(partial(optimizer.update, total=10))
    new, _, _ = update(grads, optimizer.init(params), params, STEP)
    return jax.tree.map(lambda before, after: before - after, params, new)


def test_muon_moves_a_matrix_by_a_nearly_orthogonal_one() -> None:
    moved = step_of(Muon(constant(1.0)), {"w": noise(0, 6, 6)}, {"w": noise(1, 6, 6)})
    singular = np.linalg.svd(np.asarray(moved["w"]), compute_uv=False)
    assert singular.min() > 0.3
    assert singular.max() < 1.3


def test_muon_descends() -> None:
    grads = {"w": noise(1, 6, 4)}
    assert float(jnp.sum(step_of(Muon(constant(1.0)), grads, grads)["w"] * grads["w"])) > 0.0


def test_muon_takes_a_stack_of_matrices_one_by_one() -> None:
    params, grads = noise(0, 3, 5, 4), noise(1, 3, 5, 4)
    stacked = step_of(Muon(constant(1.0)), {"w": params}, {"w": grads})["w"]
    for index in range(3):
        alone = step_of(Muon(constant(1.0)), {"w": params[index]}, {"w": grads[index]})["w"]
        assert np.asarray(stacked[index]) == pytest.approx(np.asarray(alone), abs=1e-5)


def test_muon_leaves_biases_to_adam_even_where_they_are_stacked() -> None:
    params = Dense(noise(0, 3, 5, 4), noise(1, 3, 4))
    grads = Dense(noise(2, 3, 5, 4), noise(3, 3, 4))
    moved = step_of(Muon(constant(0.1)), params, grads)
    assert np.ptp(np.abs(np.asarray(moved.bias))) < 1e-5
    assert np.ptp(np.abs(np.asarray(moved.weight))) > 1e-2


def test_muon_decays_matrices_by_the_rate() -> None:
    params, grads = {"w": noise(0, 5, 4)}, {"w": noise(1, 5, 4)}
    with_decay = step_of(Muon(constant(0.1), weight_decay=0.5), params, grads)["w"]
    without = step_of(Muon(constant(0.1)), params, grads)["w"]
    decayed = np.asarray(with_decay - without)
    assert decayed == pytest.approx(0.05 * np.asarray(params["w"]), abs=1e-6)
