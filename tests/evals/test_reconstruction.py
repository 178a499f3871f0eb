import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evals import perfect
from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components
from pd_eqx.evals.ablations import CI_MASKED, STOCHASTIC, UNMASKED, Zeroed
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.evals.observation import Observation, observe
from pd_eqx.evals.reconstruction import LanguageModelling, Reconstruction, next_token_cross_entropy
from pd_eqx.linear import LinearMap, frozen
from pd_eqx.losses import KLDivergence, MeanSquaredError
from pd_eqx.masks import SiteMask
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target
from pd_eqx.unembedding import logits_of

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observe(perfect.decomposition(0.8), perfect.target(), perfect.features())


def test_samples_are_averaged(seen: Observation) -> None:
    def error(key: jax.Array, samples: int) -> float:
        metric = Reconstruction("stochastic", STOCHASTIC, samples=samples)
        return float(metric.measure(seen, key)["reconstruction"].value)

    def one(sample: int) -> float:
        (masks,) = STOCHASTIC.passes(seen, jax.random.fold_in(KEY, sample), MeanSquaredError())
        return float(MeanSquaredError()(seen.ablated(masks), seen.clean))

    assert error(KEY, 2) == pytest.approx((one(0) + one(1)) / 2, rel=1e-6)
    assert one(0) != one(1)


def test_further_distances_are_of_the_same_outputs(seen: Observation) -> None:
    metric = Reconstruction("zeroed", Zeroed(), also=(("kl", KLDivergence()),))
    measured = metric.measure(seen, KEY)
    report, _ = metric.report({name: m.value for name, m in measured.items()}, [])
    clean = logits_of(seen.clean)
    outputs = jnp.broadcast_to(jax.nn.relu(perfect.target().bias), clean.shape)
    assert report["reconstruction"]["zeroed"] == pytest.approx(float(jnp.mean(clean**2)))
    assert report["kl"]["zeroed"] == pytest.approx(float(KLDivergence()(outputs, clean)))


def test_cross_entropy_predicts_the_next_token_and_nothing_after_the_last() -> None:
    logits = jax.random.normal(KEY, (2, 4, 3))
    tokens = jnp.array([[2, 0, 1, 1], [0, 2, 2, 0]])
    mean = next_token_cross_entropy(logits, tokens)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected = -np.mean([log_p[b, t, int(tokens[b, t + 1])] for b in range(2) for t in range(3)])
    assert float(mean.value) == pytest.approx(expected, rel=1e-6)
    assert mean.weight == 6
    moved = logits.at[:, -1].add(jnp.array([50.0, 0.0, 0.0]))
    assert next_token_cross_entropy(moved, tokens).value == mean.value


class Lookup(Target):
    """`table[tokens]`: its one site reads integers."""

    table: jax.Array

    def sites(self) -> tuple[Site, ...]:
        return (Site("table", *self.table.shape),)

    def weights(self) -> dict[str, jax.Array]:
        return {"table": self.table}

    def __call__(self, inputs: jax.Array, linear: LinearMap = frozen) -> jax.Array:
        return linear("table", inputs, self.table)


def lookup() -> Observation:
    """The components are half of the table, so all-zero masks and half ones differ."""
    table = jax.random.normal(KEY, (3, 3))
    tokens = jnp.array([[2, 0, 1, 1], [0, 2, 2, 0]])
    importances = {"table": jnp.ones((2, 4, 3))}
    return Observation(
        target=Lookup(table),
        components=Components({"table": jnp.eye(3)}, {"table": 0.5 * table}),
        inputs=tokens,
        clean=table[tokens],
        site_inputs={"table": tokens},
        site_outputs={"table": table[tokens]},
        importances=CausalImportances(importances, importances, importances),
    )


def test_cross_entropy_under_masks_is_reported_beside_the_targets_own() -> None:
    seen = lookup()
    clean = logits_of(seen.clean)
    metric = LanguageModelling((("half", CI_MASKED), ("none", Zeroed())), KLDivergence())
    values = jax.tree.map(
        lambda mean: mean.value, metric.measure(seen, KEY), is_leaf=lambda m: hasattr(m, "weight")
    )
    report, _ = metric.report(values, ["table"])
    of = report["cross_entropy"]
    assert of["none"] == of["zeroed"] == pytest.approx(np.log(3.0), rel=1e-6)
    expected = next_token_cross_entropy(0.5 * clean, seen.inputs).value
    assert of["half"] == pytest.approx(float(expected), rel=1e-6)
    assert report["cross_entropy_difference"]["half"] == of["half"] - of["target"]
    assert report["cross_entropy_recovered"]["none"] == pytest.approx(0.0)
    half = KLDivergence()(0.5 * clean, clean)
    assert report["reconstruction"]["half"] == pytest.approx(float(half), rel=1e-6)
    zeroed = report["reconstruction"]["zeroed"]
    assert report["reconstruction_recovered"]["half"] == pytest.approx(1.0 - float(half) / zeroed)


def test_a_share_of_nothing_lost_is_left_open() -> None:
    metric = LanguageModelling((("same", UNMASKED),), KLDivergence())
    nothing = {"distance": 0.0, "cross_entropy": 1.5}
    report, _ = metric.report({"target": 1.5, "zeroed": nothing, "ablated": {"same": nothing}}, [])
    assert report["cross_entropy_recovered"] == {"same": None}
    assert report["reconstruction_recovered"] == {"same": None}


def test_hidden_errors_look_inside(seen: Observation) -> None:
    zeroed = HiddenActivations("outputs", Zeroed())
    measured = zeroed.measure(seen, KEY)
    for site, outputs in seen.site_outputs.items():
        assert measured["site"][site].value == pytest.approx(float(jnp.mean(outputs**2)))
    inputs = HiddenActivations("inputs", Zeroed()).measure(seen, KEY)["site"]
    assert inputs["linear1"].value == 0.0
    assert inputs["linear2"].value == pytest.approx(
        float(jnp.mean(seen.site_inputs["linear2"] ** 2))
    )


def test_hidden_inputs_that_are_tokens_cannot_move() -> None:
    error = HiddenActivations("inputs", Zeroed()).measure(lookup(), KEY)["site"]["table"]
    assert (float(error.value), float(error.weight)) == (0.0, 8.0)


def test_masks_do_not_reach_into_the_clean_activations(seen: Observation) -> None:
    masks = {"linear1": SiteMask(jnp.zeros(()))}
    site_inputs, _ = seen.ablated_activations(masks)
    assert jnp.array_equal(site_inputs["linear2"], jnp.zeros((64, 2)))
    assert jnp.array_equal(
        seen.site_inputs["linear2"], perfect.features() @ perfect.target().linear1
    )
