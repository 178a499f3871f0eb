"""Golden parity of the toy targets and their data.

`{case}/target/{param}` are weights as the peer stores them, `{case}/in` a batch, `{case}/out` the target's output
and `{case}/pre_acts/{site}` what each site sees. `data/` gives injected uniform draws and the batch that is made of
them; `stats/` are statistics of 20000 rows: fraction non-zero, mean, standard deviation, minimum and maximum of the
non-zero values, fraction of all-zero rows, and mean number of features a row.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from parity.golden import Golden, golden_cases
from pd_eqx.components import Components
from pd_eqx.data.sparse_features import (
    ExactlyActive,
    SparseFeatures,
    exactly_active_features,
    independent_features,
    synchronised_features,
)
from pd_eqx.linear import capture, masked
from pd_eqx.masks import SiteMask
from pd_eqx.targets.resid_mlp import Activation, Label, ResidMLP, labels
from pd_eqx.targets.tms import TMS, feature_importances

GOLDEN = "10_targets_data"


def tms(golden: Golden, case: str) -> TMS:
    weights = golden.under(f"{case}/target")
    hidden = sorted(name for name in weights if name.startswith("hidden_layers"))
    return TMS(
        linear1=weights["linear1.weight"].T,
        hidden=tuple(weights[name].T for name in hidden),
        linear2=weights["linear2.weight"].T,
        bias=weights["linear2.bias"],
    )


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "tms_*/in"))
def test_the_target_and_what_its_sites_see(golden: Golden, case: str) -> None:
    outputs, site_inputs, _ = capture(tms(golden, f"tms_{case}"), golden[f"tms_{case}/in"])
    golden.check(f"tms_{case}/out", outputs, "A")
    golden.check_under(f"tms_{case}/pre_acts", site_inputs, "A")


def resid_mlp(golden: Golden, case: str) -> ResidMLP:
    weights = golden.under(f"{case}/target")

    def by_layer(name: str) -> tuple[Array, ...]:
        keys = sorted(key for key in weights if key.endswith(name))
        return tuple(weights[key].T for key in keys)

    return ResidMLP(
        embedding=weights["W_E"],
        unembedding=weights["W_U"],
        mlp_in=by_layer("mlp_in.weight"),
        mlp_out=by_layer("mlp_out.weight"),
        in_bias=by_layer("mlp_in.bias"),
        out_bias=by_layer("mlp_out.bias"),
        activation="gelu" if "gelu" in case else "relu",
    )


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "resid_*/in"))
def test_the_residual_mlp_and_what_its_sites_see(golden: Golden, case: str) -> None:
    case = f"resid_{case}"
    target, inputs = resid_mlp(golden, case), golden[f"{case}/in"]
    outputs, site_inputs, _ = capture(target, inputs)
    golden.check(f"{case}/out", outputs, "A")
    golden.check(f"{case}/residual", target.stream(inputs).vectors(), "A")
    golden.check_under(f"{case}/pre_acts", site_inputs, "A")


@pytest.mark.parametrize(
    ("key", "label", "activation"),
    [
        ("act_plus_resid_relu", "act_plus_resid", "relu"),
        ("act_plus_resid_gelu", "act_plus_resid", "gelu"),
        ("abs_None", "abs", "relu"),
    ],
)
def test_labels(golden: Golden, key: str, label: Label, activation: Activation) -> None:
    found = labels(golden["labels/x"], golden["labels/coeffs"], label, activation)
    golden.check(f"labels/{key}", found, "A")


def test_a_decomposed_identity(golden: Golden) -> None:
    plain = tms(golden, "ident")
    identity = jnp.eye(plain.linear1.shape[1], dtype=plain.linear1.dtype)
    golden.check("ident/target_weight", identity, "A")
    target = TMS(plain.linear1, (identity,), plain.linear2, plain.bias)
    golden.check("ident/out_target", target(golden["ident/in"]), "A")
    components = Components(
        V={"hidden_layers.0": golden["ident/V/linear2.pre_identity"]},
        U={"hidden_layers.0": golden["ident/U/linear2.pre_identity"]},
    )
    linear = masked(components, {"hidden_layers.0": SiteMask(golden["ident/mask"])})
    golden.check("ident/out", target(golden["ident/in"], linear), "A")


@pytest.mark.parametrize(
    ("case", "probability", "low"), [("tms_p0.3", 0.3, 0.0), ("neg_p0.5", 0.5, -1.0)]
)
def test_independent_features(golden: Golden, case: str, probability: float, low: float) -> None:
    u_value, u_mask = golden[f"data/{case}/u_value"], golden[f"data/{case}/u_mask"]
    batch = independent_features(u_value, u_mask, probability, low, 1.0)
    golden.check(f"data/{case}/batch", batch, "A")


@pytest.mark.parametrize("n", [1, 2])
def test_exactly_active_features(golden: Golden, n: int) -> None:
    u_order, u_value = golden[f"data/exactly{n}/u_perm"], golden[f"data/exactly{n}/u_value"]
    golden.check(f"data/exactly{n}/batch", exactly_active_features(u_order, u_value, 0.0, 1.0), "A")


def test_synchronised_features(golden: Golden) -> None:
    batch = independent_features(
        golden["data/synced/u_value"], golden["data/synced/u_mask"], 0.3, 0.0, 1.0
    )
    u_groups = jnp.stack([golden["data/synced/u_group0"], golden["data/synced/u_group1"]])
    found = synchronised_features(batch, u_groups, ((0, 3), (1, 4)), 0.0, 1.0)
    golden.check("data/synced/batch", found, "A")


def statistics(batch: Array) -> Array:
    rows = np.asarray(batch)
    active = rows != 0.0
    values = rows[active]
    found = [
        active.mean(),
        values.mean(),
        values.std(),
        values.min(),
        values.max(),
        (~active.any(axis=1)).mean(),
        active.sum(axis=1).mean(),
    ]
    return jnp.asarray(found, rows.dtype)


@pytest.mark.parametrize(
    ("case", "batches"),
    [
        ("tms_p0.05", SparseFeatures(20000, 5, 0.05)),
        ("resid_p0.01", SparseFeatures(20000, 100, 0.01, low=-1.0)),
        ("exactly_one", ExactlyActive(20000, 5, 1)),
        ("exactly_two_neg", ExactlyActive(20000, 10, 2, low=-1.0)),
    ],
)
def test_statistics(golden: Golden, case: str, batches: SparseFeatures | ExactlyActive) -> None:
    batch = batches(jax.random.key(3), jnp.int32(0))
    golden.check(f"stats/{case}", statistics(batch), "S")


@pytest.mark.parametrize(("key", "importance"), [("0.9", 0.9), ("1", 1.0)])
def test_feature_importances(golden: Golden, key: str, importance: float) -> None:
    found = jnp.broadcast_to(feature_importances(5, importance), (2, 5))
    golden.check(f"importances_{key}", found, "A")
