import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evals import perfect
from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.evals.ablations import CI_MASKED, STOCHASTIC, RandomMasks
from pd_eqx.evals.evaluation import Evaluation, EvaluationSettings, Result, make_evaluation
from pd_eqx.evals.patterns import Identity
from pd_eqx.evals.reconstruction import Reconstruction
from pd_eqx.evals.shared_adversary import SharedAdversary
from pd_eqx.evals.toys import toy_in_full, toy_in_loop
from pd_eqx.evals.weights import Faithfulness
from pd_eqx.targets.tms import TMS

KEY = jax.random.key(5)
BATCHES = SparseFeatures(64, perfect.FEATURES, 0.3)
EXPECTED = {"linear*": Identity()}
STOCHASTIC_ERROR = Reconstruction("stochastic", STOCHASTIC)


@pytest.fixture(scope="module")
def full() -> Result:
    evaluation = make_evaluation(toy_in_full(perfect.FEATURES, EXPECTED, n_batches=3))
    return evaluation(perfect.decomposition(), perfect.target(), BATCHES, KEY)


@pytest.fixture(scope="module")
def stochastic() -> Evaluation:
    settings = EvaluationSettings((STOCHASTIC_ERROR,), (Faithfulness(),), n_batches=3)
    return make_evaluation(settings)


def error(result: Result, name: str = "stochastic") -> float:
    return result.report["reconstruction"][name]


def test_the_full_report_holds_what_a_summary_needs(full: Result) -> None:
    report = full.report
    assert report["mmcs"] == pytest.approx(1.0, abs=1e-6)
    assert report["ml2r"] == pytest.approx(1.0, abs=1e-6)
    assert report["alive"] == {"linear1": 5, "linear2": 5}
    assert report["identity_ci_error"]["linear2"] == {"0.1": 0, "0.2": 0}
    assert list(report["faithfulness"]) == ["total", "linear1", "linear2"]
    reconstruction = report["reconstruction"]
    for name in ("ci_masked", "stochastic", "pgd_20", "unmasked", "rounded", "random", "zeroed"):
        assert reconstruction[name] >= 0.0
    assert reconstruction["unmasked"] < 1e-12
    assert reconstruction["stochastic"] < reconstruction["pgd_20"] < reconstruction["zeroed"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_cheap_subset_gives_the_same_numbers_for_the_same_metrics(full: Result) -> None:
    evaluation = make_evaluation(toy_in_loop(perfect.FEATURES, EXPECTED, n_batches=3))
    cheap = evaluation(perfect.decomposition(), perfect.target(), BATCHES, KEY).flat()
    of_full = full.flat()
    assert "reconstruction/pgd_20" not in cheap
    assert {name: of_full[name] for name in cheap} == pytest.approx(cheap, rel=1e-5)


def test_a_flat_record_joins_names_and_leaves_words_out(full: Result) -> None:
    flat = full.flat("eval/")
    assert flat["eval/identity_ci_error/linear1/0.1"] == 0.0
    assert "eval/alive_rule" not in flat
    assert all(isinstance(value, float) for value in flat.values())


def test_the_same_key_gives_the_same_bits_and_another_does_not(stochastic: Evaluation) -> None:
    arguments = perfect.decomposition(), perfect.target(), BATCHES
    first, again = stochastic(*arguments, KEY), stochastic(*arguments, KEY)
    assert error(first) == error(again)
    assert error(first) != error(stochastic(*arguments, jax.random.key(6)))


def test_one_evaluation_compiles_once_for_all_targets_and_reads_each(
    stochastic: Evaluation, caplog: pytest.LogCaptureFixture
) -> None:
    before = stochastic(perfect.decomposition(), perfect.target(), BATCHES, KEY)
    other = jax.tree.map(lambda leaf: 1.5 * leaf, perfect.target())
    with jax.log_compiles(), caplog.at_level("WARNING"):
        after = stochastic(perfect.decomposition(0.7), other, BATCHES, KEY)
    compiled = [r.getMessage() for r in caplog.records if "ompiling" in r.getMessage()]
    assert compiled == []
    assert error(after) != error(before)
    assert after.report["faithfulness"]["total"] != before.report["faithfulness"]["total"]


def test_a_metric_at_the_end_changes_no_other_and_each_draws_its_own() -> None:
    metrics = (
        STOCHASTIC_ERROR,
        Reconstruction("random", RandomMasks()),
        Reconstruction("again", STOCHASTIC),
    )
    arguments = perfect.decomposition(), perfect.target(), BATCHES, KEY
    alone, more = (
        make_evaluation(EvaluationSettings(metrics[:n], n_batches=2))(*arguments) for n in (1, 3)
    )
    assert error(alone) == pytest.approx(error(more), rel=1e-6)
    assert error(more, "again") != pytest.approx(error(more), rel=1e-6)


def test_batches_are_pooled_and_drawn_from_the_key_and_their_number() -> None:
    settings = EvaluationSettings((Reconstruction("ci_masked", CI_MASKED),), n_batches=3)
    evaluation = make_evaluation(settings)
    decomposition, target = perfect.decomposition(), perfect.target()
    found = error(evaluation(decomposition, target, BATCHES, KEY), "ci_masked")
    errors: list[float] = []
    for index in range(3):
        key_batch, key_metrics = jax.random.split(jax.random.fold_in(KEY, index))
        inputs = BATCHES(key_batch, jnp.int32(index))
        (measured,) = evaluation.measure_batch(decomposition, target, inputs, key_metrics)
        errors.append(float(measured["reconstruction"].value))
    assert found == pytest.approx(sum(errors) / 3, rel=1e-5)
    assert len(set(errors)) == 3


def test_what_is_called_between_dispatches_can_end_it(stochastic: Evaluation) -> None:
    calls: list[int] = []

    def between() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise InterruptedError("asked to stop")

    with pytest.raises(InterruptedError, match="asked to stop"):
        stochastic(perfect.decomposition(), perfect.target(), BATCHES, KEY, between)
    assert len(calls) == 3


def test_two_metrics_of_one_name_are_refused() -> None:
    settings = EvaluationSettings((STOCHASTIC_ERROR, STOCHASTIC_ERROR), n_batches=1)
    with pytest.raises(ValueError, match="report/reconstruction/stochastic; rename one"):
        make_evaluation(settings)(perfect.decomposition(), perfect.target(), BATCHES, KEY)


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="n_batches is 0"):
        EvaluationSettings((STOCHASTIC_ERROR,), n_batches=0)


def test_sites_are_reported_in_the_targets_order() -> None:
    """A pytree's dictionaries are sorted by name; `hidden_layers.0` would come before `linear1`."""
    weight = perfect.pentagon()
    target = TMS(weight, (jnp.eye(2),), weight.T, jnp.zeros(5))
    whole: Any = perfect.decomposition()
    V = whole.components.V | {"hidden_layers.0": jnp.eye(2)}
    U = whole.components.U | {"hidden_layers.0": 0.5 * jnp.eye(2)}
    components = type(whole.components)(V, U)
    decomposition = type(whole)(components, whole.ci_fn)
    metric = Faithfulness()
    values = jax.jit(metric.measure)(decomposition, target)
    report, _ = metric.report(values, ["linear1", "hidden_layers.0", "linear2"])
    assert list(report["faithfulness_relative"]) == ["linear1", "hidden_layers.0", "linear2"]
    assert report["faithfulness_relative"]["hidden_layers.0"] == pytest.approx(0.25)
    assert report["faithfulness"]["total"] == pytest.approx(0.5 / 24)


def test_an_adversary_of_all_batches_climbs_them_together() -> None:
    def attacked(steps: int) -> float:
        adversary = SharedAdversary("shared", steps, 0.1)
        settings = EvaluationSettings((), n_batches=2, adversaries=(adversary,))
        evaluation = make_evaluation(settings)
        arguments = perfect.decomposition(0.8), perfect.target(), BATCHES, KEY
        return error(evaluation(*arguments), "shared")

    assert attacked(10) > 1.2 * attacked(0)
