"""Compute dtype: only the forward passes are narrow; masters, moments, importances and losses stay wide."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import PRNGKeyArray

from pd_eqx.ci.mlp import init_component_mlps
from pd_eqx.components import Components, init_components
from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.linear import capture, frozen, masked
from pd_eqx.losses import MeanSquaredError
from pd_eqx.masks import SiteMask
from pd_eqx.objective import Faithfulness, ImportanceMinimality, Objective, Reconstruction
from pd_eqx.optimizers import AdamW, Optimizers
from pd_eqx.precision import as_dtype, default_compute_dtype
from pd_eqx.schedule import constant
from pd_eqx.state import TrainState
from pd_eqx.step import TrainStep, init_state, make_train_step
from pd_eqx.targets.tms import TMS

OPTIMIZERS = Optimizers(AdamW(constant(1e-2)), AdamW(constant(1e-2)))
OBJECTIVE = Objective(
    (
        Faithfulness(),
        ImportanceMinimality(1e-3),
        Reconstruction("stochastic", MeanSquaredError()),
    )
)


def target() -> TMS:
    key = jax.random.key(1)
    W = jax.random.normal(key, (5, 2))
    return TMS(linear1=W, hidden=(), linear2=W.T, bias=jnp.linspace(-0.3, 0.1, 5))


def arguments() -> tuple[Any, ...]:
    def init(key: PRNGKeyArray) -> TrainState:
        counts = {"linear1": 7, "linear2": 6}
        return init_state(
            key, target(), counts, partial(init_component_mlps, hidden=[8]), OPTIMIZERS
        )

    state = jax.jit(init)(jax.random.key(0))
    return state, target(), SparseFeatures(64, 5, 0.3), jax.random.key(2), 1


def step(compute_dtype: Any) -> TrainStep:
    return make_train_step(OBJECTIVE, OPTIMIZERS, 10, compute_dtype=compute_dtype)


@pytest.fixture(scope="module")
def trained() -> dict[Any, Any]:
    """State and metrics after one update, by compute dtype."""
    return {dtype: step(dtype)(*arguments()) for dtype in (jnp.float32, jnp.bfloat16)}


def test_masters_moments_and_metrics_are_float32_when_forwards_are_bfloat16(
    trained: dict[Any, Any],
) -> None:
    for leaf in jax.tree.leaves(trained[jnp.bfloat16]):
        assert leaf.dtype in (jnp.float32, jnp.int32)


def test_faithfulness_is_computed_from_masters_and_reconstruction_is_not(
    trained: dict[Any, Any],
) -> None:
    _, wide = trained[jnp.float32]
    _, narrow = trained[jnp.bfloat16]
    assert float(narrow["loss/faithfulness"]) == float(wide["loss/faithfulness"])
    found, expected = float(narrow["loss/stochastic"]), float(wide["loss/stochastic"])
    assert found != expected
    assert found == pytest.approx(expected, rel=0.05)


def test_no_compute_dtype_is_that_of_the_target() -> None:
    given = arguments()
    as_it_is = step(None).lower(*given).as_text()
    assert as_it_is == step(jnp.float32).lower(*given).as_text()
    assert as_it_is != step(jnp.bfloat16).lower(*given).as_text()


def test_a_masked_map_and_an_importance_function_follow_what_they_are_given() -> None:
    model = as_dtype(target(), jnp.bfloat16)
    components = init_components(jax.random.key(0), model.sites(), {"linear1": 7})
    x = jax.random.normal(jax.random.key(3), (4, 5), jnp.bfloat16)
    mask = SiteMask(jnp.linspace(0.0, 1.0, 7), jnp.linspace(0.0, 1.0, 4))
    outputs = model(x, masked(components, {"linear1": mask}))
    assert outputs.dtype == model(x, frozen).dtype == jnp.bfloat16
    _, site_inputs, _ = capture(model, x)
    importances = init_component_mlps(jax.random.key(4), components, [8])(site_inputs, components)
    assert importances.lower["linear1"].dtype == jnp.float32
    rounded = importances.logits["linear1"].astype(jnp.bfloat16).astype(jnp.float32)
    assert jnp.array_equal(rounded, importances.logits["linear1"])


def test_gradients_of_masters_are_wide() -> None:
    x = jnp.ones((3, 5), jnp.bfloat16)
    weight = jnp.ones((5, 2), jnp.bfloat16)
    components = Components({"site": jnp.ones((5, 4))}, {"site": jnp.ones((4, 2))})

    def value(components: Components) -> Any:
        linear = masked(components, {"site": SiteMask(jnp.full(4, 0.5))})
        return jnp.sum(linear("site", x, weight).astype(jnp.float32))

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.grad(value)(components))} == {
        jnp.dtype(jnp.float32)
    }


def test_only_floating_leaves_are_cast() -> None:
    tree = {
        "x": jnp.ones(2),
        "n": jnp.arange(3),
        "b": jnp.array([True]),
        "key": jax.random.key(0),
    }
    cast = as_dtype(tree, jnp.bfloat16)
    assert cast["x"].dtype == jnp.bfloat16
    for name in ("n", "b", "key"):
        assert cast[name] is tree[name]
    assert as_dtype(tree, None) is tree


def test_the_default_is_narrow_except_on_cpu() -> None:
    assert default_compute_dtype("cpu") == jnp.float32
    assert default_compute_dtype("gpu") == default_compute_dtype("tpu") == jnp.bfloat16
    assert default_compute_dtype() == jnp.float32
