import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

from pd_eqx.ci.mlp import init_shared_mlps
from pd_eqx.components import init_components
from pd_eqx.evals.evaluation import Result, make_evaluation
from pd_eqx.evals.tokens import tokens_in_full, tokens_in_loop
from pd_eqx.linear import LinearMap, frozen
from pd_eqx.sites import Site
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target

KEY = jax.random.key(2)
VOCABULARY = 7


class Bigram(Target):
    """`tanh(emb[tokens]) @ fc`, of which `fc` is decomposed."""

    emb: Array
    fc: Array

    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Array]:
        return {"emb": self.emb, "fc": self.fc}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Array:
        return linear("fc", jnp.tanh(linear("emb", inputs, self.emb)), self.fc)


class Uniform(eqx.Module):
    """Tokens, all equally likely."""

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "2 6"]:
        return jax.random.randint(key, (2, 6), 0, VOCABULARY)


@pytest.fixture(scope="module")
def full() -> Result:
    return evaluate(full=True)


def evaluate(*, full: bool) -> Result:
    target = Bigram(
        jax.random.normal(KEY, (VOCABULARY, 4)), jax.random.normal(KEY, (4, VOCABULARY))
    )
    components = init_components(KEY, target.sites(), {"fc": 5})
    decomposition = Decomposition(components, init_shared_mlps(KEY, components, [8]))
    settings = (
        tokens_in_full(next_token=True, n_batches=2)
        if full
        else tokens_in_loop(next_token=True, n_batches=2)
    )
    return make_evaluation(settings)(decomposition, target, Uniform(), KEY)


def test_a_language_model_is_told_what_masks_cost_it(full: Result) -> None:
    report = full.report
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["cross_entropy"]["zeroed"] == pytest.approx(math.log(VOCABULARY), rel=1e-5)
    assert list(report["alive"]) == ["fc"], "the embedding is not decomposed"
    assert set(report["reconstruction"]) > {"pgd_20", "rounded", "zeroed"}
    assert report["reconstruction"]["pgd_20"] > report["reconstruction"]["stochastic"] > 0


def test_the_loop_measures_the_same_numbers(full: Result) -> None:
    cheap, of_full = evaluate(full=False).flat(), full.flat()
    assert {name: of_full[name] for name in cheap} == pytest.approx(cheap, rel=1e-5)


def test_a_target_that_answers_once_has_no_cross_entropy() -> None:
    names = {type(metric).__name__ for metric in tokens_in_full(next_token=False).batch}
    assert "LanguageModelling" not in names
