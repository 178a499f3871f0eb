import builtins
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from evals import perfect
from pd_eqx.evals.patterns import (
    EXACT_BELOW,
    Dense,
    Identity,
    SingleFeatures,
    dense_error,
    identity_error,
    match_columns,
)

SITES = ["linear1", "linear2"]


def measured(metric: SingleFeatures) -> dict[str, np.ndarray[Any, Any]]:
    found = metric.measure(perfect.decomposition(), perfect.target())
    return {site: np.asarray(matrix) for site, matrix in found.items()}


def test_a_perfect_decomposition_has_no_error_and_its_order_says_which_component_is_whose() -> None:
    metric = SingleFeatures(perfect.FEATURES, {"linear*": Identity()})
    report, arrays = metric.report(measured(metric), SITES)
    assert report["identity_ci_error"] == {site: {"0.1": 0, "0.2": 0} for site in SITES}
    for site in SITES:
        assert arrays["order"][site][: perfect.FEATURES].tolist() == perfect.PLACES.tolist()


def test_two_features_that_share_a_component_are_two_errors() -> None:
    matrix = np.eye(4, 6)
    matrix[1] = matrix[0]
    assert Identity().error(matrix, 0.1) == 2


def test_the_last_pattern_that_matches_a_site_counts() -> None:
    metric = SingleFeatures(perfect.FEATURES, {"*": Identity(), "linear2": Dense(5)})
    report, _ = metric.report(measured(metric), SITES)
    assert report["identity_ci_error"]["linear2"]["0.1"] == 0
    only = SingleFeatures(perfect.FEATURES, {"linear2": Dense(2)})
    report, arrays = only.report(measured(only), SITES)
    assert report["identity_ci_error"] == {"linear2": {"0.1": 3, "0.2": 3}}
    assert sorted(arrays["single_features"]) == SITES


def test_a_pattern_for_no_site_names_the_nearest() -> None:
    metric = SingleFeatures(perfect.FEATURES, {"linaer2": Identity()})
    with pytest.raises(ValueError, match=r"'linaer2' matches no decomposed site.*'linear2'"):
        metric.measure(perfect.decomposition(), perfect.target())


def test_a_pattern_with_too_few_components_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"each of 5 features, found 3.*Dense"):
        identity_error(np.ones((5, 3)), 0.1)


@pytest.mark.parametrize(("entry", "count"), [(0.1, 0), (np.nextafter(0.1, 1.0), 1)])
def test_a_stray_entry_counts_above_the_tolerance_strictly(entry: float, count: int) -> None:
    matrix = np.eye(3, 5)
    matrix[2, 4] = entry
    assert identity_error(matrix, 0.1) == count
    dense = np.concatenate([np.ones((3, 1)), np.full((3, 1), entry)], axis=1)
    assert dense_error(dense, 1, 0.1) == 3 * count


def test_greedy_takes_rows_in_turn_and_can_do_worse() -> None:
    matrix = np.array([[0.9, 0.8, 0.0], [1.0, 0.0, 0.0]])
    assert match_columns(matrix, exact=False).tolist() == [0, 1, 2]
    assert match_columns(matrix, exact=True).tolist() == [1, 0, 2]


def test_large_matrices_are_matched_greedily_and_without_scipy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    importing = builtins.__import__

    def without_scipy(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    order = np.random.default_rng(0).permutation(EXACT_BELOW)
    matrix = np.eye(EXACT_BELOW)[:, order]
    assert np.array_equal(matrix[:, match_columns(matrix)], np.eye(EXACT_BELOW))
    with pytest.raises(ImportError, match=r"pip install 'pd_eqx\[cli\]'"):
        match_columns(np.eye(3))


def test_the_probe_feeds_one_feature_a_row() -> None:
    faint = SingleFeatures(perfect.FEATURES, {"linear*": Identity()}, value=0.06)
    report, _ = faint.report(measured(faint), SITES)
    # At 0.06 the first site's importance is 0.1, so every feature is missed.
    assert report["identity_ci_error"]["linear1"] == {"0.1": 5, "0.2": 5}
    assert jnp.allclose(measured(faint)["linear1"].max(), 0.1, atol=1e-6)
