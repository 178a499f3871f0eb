"""Golden parity of the importance functions by site: outputs, gradients, the whole path, initial statistics."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, PRNGKeyArray

from parity import peer
from parity.golden import Golden
from pd_eqx.ci.base import CausalImportances
from pd_eqx.ci.mlp import (
    ComponentMLP,
    LayerwiseCI,
    SharedMLP,
    SiteCI,
    VectorMLP,
    init_component_mlps,
    init_shared_mlps,
    init_vector_mlps,
)
from pd_eqx.components import Components, init_components
from pd_eqx.linear import capture
from pd_eqx.sites import Site
from pd_eqx.targets.tms import TMS

GOLDEN = "09_ci_fns"
KINDS: dict[str, Callable[..., SiteCI]] = {
    "mlp": ComponentMLP,
    "vector_mlp": VectorMLP,
    "shared_mlp": SharedMLP,
}


@pytest.mark.parametrize(
    "case",
    [
        "mlp_h6", "mlp_h6_4", "vector_mlp_h6", "vector_mlp_h6_3",
        "shared_mlp_h8", "shared_mlp_h8_6", "shared_mlp_h0",
    ],
)  # fmt: skip
def test_logits_and_their_gradients(golden: Golden, case: str) -> None:
    kind = KINDS[case.partition("_h")[0]]
    # The per-component function is given activations as they are: V is the identity.
    V = jnp.eye(5) if kind is ComponentMLP else jnp.zeros((4, 5))

    @jax.jit
    def logits(params: Mapping[str, Array], x: Array) -> Array:
        return kind(peer.mlp(params, "layers")).logits("site", {"site": x}, V)

    params = golden.under(f"{case}/param")
    for shape in ("B", "BS"):
        golden.check(f"{case}/out_{shape}", logits(params, golden[f"{case}/in_{shape}"]), "A")

    def value(leaves: Mapping[str, Array]) -> Array:
        return jnp.sum(logits(leaves, leaves["in_B"]) * golden[f"{case}/G"])

    grads = jax.jit(jax.grad(value))(params | {"in_B": golden[f"{case}/in_B"]})
    golden.check_under(f"{case}/grad", grads, "A")


SITES = ("linear1", "hidden_layers.0", "linear2")


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_whole_path_from_batch_to_importances(golden: Golden, kind: str) -> None:
    at = f"model_{kind}"
    target = TMS(
        linear1=golden[f"{at}/target/linear1.weight"].T,
        hidden=(golden[f"{at}/target/hidden_layers.0.weight"].T,),
        linear2=golden[f"{at}/target/linear2.weight"].T,
        bias=golden[f"{at}/target/linear2.bias"],
    )
    _, site_inputs, _ = capture(target, golden[f"{at}/batch"])
    golden.check_under(f"{at}/pre_acts", site_inputs, "A")
    leaves = {f"V/{site}": golden[f"{at}/V/{site}"] for site in SITES}
    leaves |= {f"U/{site}": golden[f"{at}/U/{site}"] for site in SITES}
    leaves |= {f"ci_fn/{name}": leaf for name, leaf in golden.under(f"{at}/ci_fn").items()}

    def parts(leaves: Mapping[str, Array]) -> tuple[LayerwiseCI, Components]:
        components = Components(
            V={site: leaves[f"V/{site}"] for site in SITES},
            U={site: leaves[f"U/{site}"] for site in SITES},
        )
        sites = {site: KINDS[kind](peer.mlp(leaves, f"ci_fn/{site}/layers")) for site in SITES}
        return LayerwiseCI(sites=sites), components

    @jax.jit
    def importances(
        leaves: Mapping[str, Array], noise: Mapping[str, Array] | None = None
    ) -> CausalImportances:
        ci_fn, components = parts(leaves)
        return ci_fn(site_inputs, components, noise)

    found = importances(leaves)
    golden.check_under(f"{at}/pre_sigmoid", found.logits, "A")
    golden.check_under(f"{at}/lower", found.lower, "A")
    golden.check_under(f"{at}/upper", found.upper, "A")

    noised = importances(leaves, golden.under(f"{at}/binomial/noise"))
    golden.check_under(f"{at}/binomial/lower", noised.lower, "A")
    golden.check_under(f"{at}/binomial/upper", noised.upper, "A")

    def value(leaves: Mapping[str, Array]) -> Array:
        ci = importances(leaves)
        lower = sum(jnp.sum(ci.lower[site] * golden[f"{at}/Gl/{site}"]) for site in SITES)
        upper = sum(jnp.sum(ci.upper[site] * golden[f"{at}/Gu/{site}"]) for site in SITES)
        return jnp.asarray(lower + upper)

    golden.check_under(f"{at}/grad", jax.jit(jax.grad(value))(leaves), "A")


def statistics(leaf: Array) -> Array:
    return jnp.stack([jnp.mean(leaf), jnp.std(leaf)])


@jax.jit
def measured(key: PRNGKeyArray) -> dict[str, Array]:
    """Mean and standard deviation of initial parameters, of sizes like the peer's."""
    components = init_components(key, [Site("site", 300, 200)], {"site": 400})
    narrow = init_components(key, [Site("site", 100, 3)], {"site": 200})
    found = {"V": components.V["site"], "U": components.U["site"]}
    per_component = init_component_mlps(key, components, [64]).sites["site"]
    assert isinstance(per_component, ComponentMLP)
    found["mlp_W0"] = per_component.layers[0].weight
    found["mlp_b0"] = per_component.layers[0].bias
    found["mlp_W2"] = per_component.layers[1].weight
    vector = init_vector_mlps(key, narrow, [64]).sites["site"]
    assert isinstance(vector, VectorMLP)
    found["vector_W0"] = vector.layers[0].weight
    shared = init_shared_mlps(key, narrow, [256]).sites["site"]
    assert isinstance(shared, SharedMLP)
    found["shared_W0"] = shared.layers[0].weight
    found["shared_W2"] = shared.layers[1].weight
    return {name: statistics(leaf) for name, leaf in found.items()}


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_initial_statistics(golden: Golden) -> None:
    golden.check_under("init_stats", measured(jax.random.key(0)), "S")
