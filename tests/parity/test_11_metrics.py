"""Golden parity of evaluation metrics: patterns, matching, activity, geometry, KL and cross-entropy.

The peer's `W` is `[d_out, d_in]`. Its MMCS and ML2R exist for the first site of a TMS only; ours run on every site.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

from parity.golden import Golden, golden_cases
from pd_eqx.ci.base import CausalImportances
from pd_eqx.ci.mlp import ComponentMLP, LayerwiseCI
from pd_eqx.ci.mlp import Dense as Layer
from pd_eqx.components import Components
from pd_eqx.evals import means
from pd_eqx.evals.ablations import (
    CI_MASKED,
    UNMASKED,
    Ablation,
    Interpolated,
    Masks,
    Rounded,
)
from pd_eqx.evals.activity import Activity
from pd_eqx.evals.geometry import Geometry, feature_cosines, match_features
from pd_eqx.evals.observation import Observation
from pd_eqx.evals.patterns import (
    Dense,
    Identity,
    SingleFeatures,
    dense_error,
    identity_error,
    match_columns,
    order_by_mass,
)
from pd_eqx.evals.reconstruction import LanguageModelling
from pd_eqx.linear import LinearMap, frozen
from pd_eqx.losses import Distance, KLDivergence
from pd_eqx.masks import MaskSource, SiteMask, SiteSource
from pd_eqx.sites import Site
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target
from pd_eqx.targets.tms import TMS

GOLDEN = "11_metrics"
TOLERANCES = (0.1, 0.2)
KEY = jax.random.key(0)


def ordered(golden: Golden, key: str) -> np.ndarray[Any, Any]:
    matrix = golden.numpy(key)
    return matrix[:, match_columns(matrix)]


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "ident/*/ci"))
def test_identity_error_and_matching(golden: Golden, case: str) -> None:
    matrix = golden.numpy(f"ident/{case}/ci")
    exact, greedy = match_columns(matrix, exact=True), match_columns(matrix, exact=False)
    rows = np.arange(matrix.shape[0])
    best = np.asarray(golden[f"ident/{case}/ci"])[rows, exact[: len(rows)]].sum()
    golden.check(f"ident/{case}/best_sum", best, "A")
    for name, order in (
        ("hungarian", exact),
        ("greedy", greedy),
        ("noperm", np.arange(matrix.shape[1])),
    ):
        errors = [identity_error(matrix[:, order], tolerance) for tolerance in TOLERANCES]
        golden.check(f"ident/{case}/err_{name}", errors, "A")
    # Where all entries are equal any order is as good, and none is stored.
    if golden.keys(f"ident/{case}/perm_hungarian"):
        golden.check(f"ident/{case}/perm_hungarian", exact, "A")
        golden.check(f"ident/{case}/perm_greedy", greedy, "A")
        golden.check(f"ident/{case}/permuted", golden[f"ident/{case}/ci"][:, exact], "A")
    assert [Identity().error(matrix, tolerance) for tolerance in TOLERANCES] == [
        identity_error(matrix[:, exact], tolerance) for tolerance in TOLERANCES
    ]


def test_more_features_than_components(golden: Golden) -> None:
    matrix = golden.numpy("tall/ci")
    golden.check("tall/perm_hungarian", match_columns(matrix, exact=True), "A")
    golden.check("tall/perm_greedy", match_columns(matrix, exact=False), "A")
    with pytest.raises(ValueError, match="a component for each of 8 features, found 5"):
        Identity().error(matrix, 0.1)


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "lsa/*/cost"))
def test_assignment(golden: Golden, case: str) -> None:
    """The assignment of rows to columns that costs least; of a tall matrix, that of its transpose."""
    cost = golden.numpy(f"lsa/{case}/cost")
    rows, columns = cost.shape
    if rows <= columns:
        found = np.arange(rows), match_columns(-cost)[:rows]
    else:
        matched = match_columns(-cost.T)[:columns]
        found = np.sort(matched), np.argsort(matched)
    golden.check(f"lsa/{case}/rows", found[0], "A")
    golden.check(f"lsa/{case}/cols", found[1], "A")


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "dense/*/ci"))
def test_dense_error(golden: Golden, case: str) -> None:
    matrix, k = golden.numpy(f"dense/{case}/ci"), int(golden.scalar(f"dense/{case}/k"))
    if golden.keys(f"dense/{case}/perm"):
        golden.check(f"dense/{case}/perm", order_by_mass(matrix), "A")
    for entries in (1, 2):
        errors = [dense_error(matrix, k, tolerance, entries) for tolerance in TOLERANCES]
        golden.check(f"dense/{case}/err_min{entries}", errors, "A")
        assert [Dense(k, entries).error(matrix, tolerance) for tolerance in TOLERANCES] == errors


def test_errors_of_several_sites(golden: Golden) -> None:
    """A total is a sum over sites."""
    matrices = {
        "layers.0.mlp_in": golden.numpy("ident/id5x20_noise0.15/ci"),
        "layers.1.mlp_in": golden.numpy("ident/id5x20_drop1_extra3/ci"),
        "layers.0.mlp_out": golden.numpy("dense/hidden_k2_2x20/ci"),
        "layers.1.mlp_out": golden.numpy("dense/hidden_k2_weak/ci"),
    }
    metric = SingleFeatures(5, {"*.mlp_in": Identity(), "*.mlp_out": Dense(2)})
    report, _ = metric.report(matrices, list(matrices))
    errors = report["identity_ci_error"]
    for site in matrices:
        golden.check(f"target_metrics/{site}", errors[site]["0.1"], "A")
    golden.check("target_metrics/total", sum(e["0.1"] for e in errors.values()), "A")
    golden.check("target_metrics/total_0p2", sum(e["0.2"] for e in errors.values()), "A")


def test_single_features_end_to_end(golden: Golden) -> None:
    target = TMS(
        linear1=golden["e2e/target/linear1.weight"].T,
        hidden=(golden["e2e/target/hidden_layers.0.weight"].T,),
        linear2=golden["e2e/target/linear2.weight"].T,
        bias=golden["e2e/target/linear2.bias"],
    )
    V, U = golden.under("e2e/V"), golden.under("e2e/U")
    ci_fn = LayerwiseCI(
        sites={
            site: ComponentMLP(
                tuple(
                    Layer(
                        golden[f"e2e/ci_fn/{site}/layers.{i}.W"],
                        golden[f"e2e/ci_fn/{site}/layers.{i}.b"],
                    )
                    for i in (0, 2)
                )
            )
            for site in V
        }
    )
    metric = SingleFeatures(5, {"linear*": Identity(), "hidden_layers.*": Dense(2)})
    importances = jax.jit(metric.measure)(Decomposition(Components(V, U), ci_fn), target)
    golden.check_under("e2e/ci", importances, "A")
    report, _ = metric.report(jax.device_get(importances), [site.name for site in target.sites()])
    errors = report["identity_ci_error"]
    for site in V:
        golden.check(f"e2e/err/{site}", errors[site]["0.1"], "A")
    golden.check("e2e/err/total", sum(e["0.1"] for e in errors.values()), "A")
    golden.check("e2e/err/total_0p2", sum(e["0.2"] for e in errors.values()), "A")


def test_activity(golden: Golden) -> None:
    sites = ["linear1", "hidden_layers.0", "linear2"]
    metric = Activity(thresholds=(0.0, 0.1), groups=(("lin", "linear*"),))
    pooled: Any = None
    for batch in ("0", "1"):
        importances = golden.under(f"l0/ci/{batch}")
        nothing = dict.fromkeys(sites, jnp.zeros(()))
        seen = Observation(
            target=Bigram(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.zeros(1)),
            components=Components({}, {}),
            inputs=jnp.zeros(()),
            clean=jnp.zeros(()),
            site_inputs=dict(nothing),
            site_outputs=nothing,
            importances=CausalImportances(importances, importances, importances),
        )
        measured = jax.jit(metric.measure)(seen, KEY)
        pooled = measured if pooled is None else means.combine(pooled, measured)
    report, arrays = metric.report(jax.device_get(means.values(pooled)), sites)
    for name, by_threshold in report["l0"].items():
        for threshold, value in by_threshold.items():
            golden.check(
                f"l0/thr{threshold}/{name}", np.asarray(value, jnp.result_type(float)), "B"
            )
    for site in sites:
        golden.check(f"l0/mean_ci/{site}", arrays["mean_importance"][site], "A")
        for threshold in ("0.0", "0.1"):
            golden.check(
                f"l0/density_thr{threshold}/{site}", arrays["density"][site][threshold], "A"
            )


def test_geometry(golden: Golden) -> None:
    """Features come in at the first site; at one that is its transpose they go out, with the same numbers."""
    weight = golden["mmcs/target/linear1.weight"].T
    V, U = golden["mmcs/V"], golden["mmcs/U"]
    cosines = feature_cosines(V, U, weight)
    golden.check("mmcs/cos", cosines, "A")
    best = jnp.argmax(cosines, axis=0)
    golden.check("mmcs/rows_at_max", V[jnp.arange(5), best][:, None] * U[best], "A")
    match = match_features(V, U, weight, "in")
    golden.check("mmcs/max_cos", match.cosine, "A")
    assert jnp.array_equal(match.cosine, match_features(U.T, V.T, weight.T, "out").cosine)

    target = TMS(
        weight, (), golden["mmcs/target/linear2.weight"].T, golden["mmcs/target/linear2.bias"]
    )
    components = Components({"linear1": V}, {"linear1": U})
    measured = jax.jit(Geometry().measure)(Decomposition(components, LayerwiseCI(sites={})), target)
    report, _ = Geometry().report(jax.device_get(measured), ["linear1"])
    site = report["geometry"]["linear1"]
    summary = [site[name] for name in ("mmcs", "mmcs_std", "ml2r", "ml2r_std")]
    golden.check("mmcs/summary", np.asarray(summary, jnp.result_type(float)), "A")
    assert (report["mmcs"], report["ml2r"]) == (site["mmcs"], site["ml2r"])


class Bigram(Target):
    """`tanh(emb[tokens]) @ fc + bias`."""

    emb: Array
    fc: Array
    bias: Array

    def sites(self) -> tuple[Site, ...]:
        return tuple(
            Site(name, weight.shape[0], weight.shape[1]) for name, weight in self.weights().items()
        )

    def weights(self) -> dict[str, Array]:
        return {"emb": self.emb, "fc": self.fc}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Array:
        return linear("fc", jnp.tanh(linear("emb", inputs, self.emb)), self.fc) + self.bias


class Drawn(MaskSource):
    """Sources that were drawn elsewhere."""

    def __init__(self, sources: dict[str, SiteSource]) -> None:
        self.sources = sources

    def draw(self, key: PRNGKeyArray, importances: Any, loss: Any) -> dict[str, SiteSource]:
        return self.sources


class GivenMasks(Ablation):
    """Masks that were drawn elsewhere."""

    def __init__(self, masks: dict[str, Array]) -> None:
        self.masks = masks

    def passes(self, seen: Observation, key: PRNGKeyArray, distance: Distance) -> list[Masks]:
        return [{site: SiteMask(mask) for site, mask in self.masks.items()}]


def test_kl_and_cross_entropy(golden: Golden) -> None:
    target = Bigram(
        golden["cekl/target/emb.weight"],
        golden["cekl/target/fc.weight"].T,
        golden["cekl/target/fc.bias"],
    )
    tokens = golden["cekl/tokens"]
    importances = golden.under("cekl/ci")
    seen = Observation(
        target=target,
        components=Components(golden.under("cekl/V"), golden.under("cekl/U")),
        inputs=tokens,
        clean=target(tokens),
        site_inputs={},
        site_outputs={},
        importances=CausalImportances(importances, importances, importances),
    )
    draws, deltas = golden.under("cekl/draws/src"), golden.under("cekl/draws/delta")
    stochastic = {site: SiteSource(draws[site], deltas[site]) for site in draws}
    ablations: dict[str, Ablation] = {
        "ci_masked": CI_MASKED,
        "unmasked": UNMASKED,
        "stoch_masked": Interpolated(Drawn(stochastic)),
        "random_masked": GivenMasks(golden.under("cekl/draws/random_mask")),
        "rounded_masked": Rounded(0.4),
    }
    metric = LanguageModelling(tuple(ablations.items()), KLDivergence())
    report, _ = metric.report(
        jax.device_get(means.values(metric.measure(seen, KEY))), ["emb", "fc"]
    )
    dtype = jnp.result_type(float)
    for name in ablations:
        difference = report["cross_entropy_difference"][name]
        golden.check(f"cekl/ce_difference_{name}", np.asarray(difference, dtype), "A")
        recovered = report["cross_entropy_recovered"][name]
        golden.check(f"cekl/ce_unrecovered_{name}", np.asarray(1.0 - recovered, dtype), "A")
        distance = report["reconstruction"][name]
        golden.check(f"cekl/kl_{name}", np.asarray(distance, dtype), "A")
    zeroed = report["reconstruction"]["zeroed"]
    golden.check("cekl/kl_zero_masked", np.asarray(zeroed, dtype), "A")
