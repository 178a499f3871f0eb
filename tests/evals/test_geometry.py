import jax
import jax.numpy as jnp
import pytest

from evals import perfect
from pd_eqx.components import Components
from pd_eqx.evals.geometry import Geometry, match_features
from pd_eqx.state import Decomposition
from pd_eqx.targets.tms import TMS


@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_cosine_ignores_length_and_the_ratio_tells_it(scale: float) -> None:
    metric = Geometry()
    values = jax.device_get(metric.measure(perfect.decomposition(scale), perfect.target()))
    report, arrays = metric.report(values, ["linear1", "linear2"])
    assert list(report["geometry"]) == ["linear1", "linear2"]
    for site in report["geometry"].values():
        assert site["mmcs"] == pytest.approx(1.0, abs=1e-6)
        assert site["ml2r"] == pytest.approx(scale, abs=1e-6)
    assert report["ml2r"] == report["geometry"]["linear1"]["ml2r"]
    assert arrays["feature_match"]["linear2"].cosine.shape == (5,)


def test_a_merged_feature_shows_in_the_ratio() -> None:
    weight = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    merged = jnp.array([[0.5], [0.5]]), jnp.array([[1.0, 1.0]])
    match = match_features(*merged, weight, "in")
    assert jnp.allclose(match.cosine, 2**-0.5)
    assert jnp.allclose(match.length_ratio, 2**-0.5)


def test_a_component_that_points_the_other_way_is_no_match() -> None:
    weight = jnp.array([[3.0, 4.0]])
    match = match_features(jnp.array([[-1.0]]), jnp.array([[3.0, 4.0]]), weight, "in")
    assert jnp.allclose(match.cosine, -1.0)


def test_a_feature_without_any_component_has_cosine_zero_not_nan() -> None:
    match = match_features(jnp.zeros((1, 2)), jnp.ones((2, 3)), jnp.ones((1, 3)), "in")
    assert jnp.array_equal(match.cosine, jnp.zeros(1))
    assert jnp.array_equal(match.length_ratio, jnp.zeros(1))


def test_features_are_on_the_wider_side_unless_told() -> None:
    key = jax.random.key(0)
    target = TMS(jax.random.normal(key, (2, 3)), (), jax.random.normal(key, (3, 2)), jnp.zeros(2))
    components = Components({"linear1": jnp.ones((2, 4))}, {"linear1": jnp.ones((4, 3))})
    decomposition = Decomposition(components, perfect.decomposition().ci_fn)
    assert Geometry().measure(decomposition, target)["linear1"].cosine.shape == (3,)
    told = Geometry({"linear1": "in"}).measure(decomposition, target)["linear1"]
    assert told.cosine.shape == (2,)


def test_one_feature_has_no_deviation() -> None:
    match = match_features(jnp.ones((1, 1)), jnp.ones((1, 2)), jnp.ones((1, 2)), "in")
    report, _ = Geometry().report({"a": match}, ["a"])
    assert report["geometry"]["a"]["mmcs_std"] is None
