import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evals import perfect
from pd_eqx.evals.activity import Activity, by_layer, density, histogram, mean_importance
from pd_eqx.evals.means import values
from pd_eqx.evals.observation import observe


def test_density_is_strict_and_counts_every_leading_axis() -> None:
    importances = jnp.array([[[0.1, 0.3], [0.0, 0.2]], [[0.2, 0.0], [0.05, 0.0]]])
    assert density(importances, 0.1).tolist() == [0.25, 0.5]
    assert density(importances, 0.0).tolist() == [0.75, 0.5]
    assert mean_importance(importances).tolist() == pytest.approx([0.0875, 0.125])


def test_a_histogram_holds_everything_and_one_in_its_last_part() -> None:
    importances = jnp.array([[0.0, 0.249], [0.25, 1.0], [0.99, 0.6]])
    assert histogram(importances, 4).tolist() == pytest.approx([2 / 6, 1 / 6, 1 / 6, 2 / 6])
    drawn = jax.random.uniform(jax.random.key(0), (40, 7))
    counts, _ = np.histogram(np.asarray(drawn), bins=10, range=(0.0, 1.0))
    assert np.allclose(histogram(drawn, 10), counts / drawn.size, atol=1e-6)


def report_of(metric: Activity) -> dict[str, dict[str, object]]:
    seen = observe(perfect.decomposition(), perfect.target(), perfect.features(256))
    measured = values(metric.measure(seen, jax.random.key(0)))
    return metric.report(jax.device_get(measured), ["linear1", "linear2"])[0]


def test_alive_components_are_those_that_matter_often_enough() -> None:
    assert report_of(Activity())["alive"]["linear1"] == perfect.FEATURES
    assert report_of(Activity(alive_share=0.9))["alive"]["linear1"] == 0
    assert "0.2 on more than 0.01 of" in str(
        report_of(Activity(alive_importance=0.2, alive_share=0.01))["alive_rule"]
    )


def test_l0_is_summed_over_the_sites_of_a_group() -> None:
    l0 = report_of(Activity(thresholds=(0.0, 0.5), groups=(("first", "*1"),)))["l0"]
    assert l0["first"] == l0["linear1"]
    total = [
        sum(l0[site][threshold] for site in ("linear1", "linear2"))  # pyright: ignore[reportIndexIssue]
        for threshold in ("0.0", "0.5")
    ]
    assert list(l0["total"].values()) == total  # pyright: ignore[reportAttributeAccessIssue]
    assert total[0] > total[1] > 0


def test_layers_are_groups_of_sites() -> None:
    sites = ["layers.0.attn.q", "layers.0.mlp.up", "layers.11.mlp.up", "head"]
    assert by_layer(sites) == (("layers.0", "layers.0.*"), ("layers.11", "layers.11.*"))
