"""Golden parity of the masked linear map: masks, delta channel, routing, embeddings, gradients.

The peer's `W` is `[d_out, d_in]` and its component weight is `(V U)ᵀ`; tokens look up rows, untransposed.
"""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from parity.golden import Golden
from pd_eqx.components import Components, weight_deltas
from pd_eqx.linear import frozen, masked
from pd_eqx.masks import SiteMask

GOLDEN = "02_component_forward"
LEFT_OUT = {
    "grad/const_delta/[VU]": "the delta held constant: kept by the peer for contrast, not what training does",
}
NO_MASK = SiteMask(None)


def parts(golden: Golden, at: str = "") -> tuple[Components, Array]:
    components = Components(V={"fc": golden[f"{at}V"]}, U={"fc": golden[f"{at}U"]})
    weight = golden[f"{at}W"]
    return components, weight if at == "emb/" else weight.T


def run(golden: Golden, x: Array, mask: SiteMask, at: str = "") -> Array:
    components, weight = parts(golden, at)
    return masked(components, {"fc": mask})("fc", x, weight)


def test_component_weight_and_delta(golden: Golden) -> None:
    components, weight = parts(golden)
    deltas = weight_deltas(components, {"fc": weight})
    golden.check("weight", run(golden, jnp.eye(4), NO_MASK).T, "A")
    golden.check("weight_delta", deltas["fc"].T, "A")
    golden.check("model_weight_delta", deltas["fc"].T, "A")


@pytest.mark.parametrize("rank", ["", "3"])
def test_component_activations(golden: Golden, rank: str) -> None:
    V = golden["V"]
    to_activations = Components(V={"fc": V}, U={"fc": jnp.eye(V.shape[1])})
    found = masked(to_activations, {"fc": NO_MASK})("fc", golden[f"x{rank}"], jnp.zeros((4, 7)))
    golden.check(f"acts{rank}", found, "A")


@pytest.mark.parametrize(
    ("name", "rank", "mask", "delta", "bias"),
    [
        ("out_nomask", "", None, None, True),
        ("out_nomask_nobias", "", None, None, False),
        ("out_mask", "", "mask", None, True),
        ("out_maskC", "", "maskC", None, True),
        ("out_mask3", "3", "mask3", None, True),
        ("out_delta_nomask", "", None, "dmask", True),
        ("out_mask_delta", "", "mask", "dmask", True),
        ("out_mask_delta_nobias", "", "mask", "dmask", False),
        ("out_mask_delta3", "3", "mask3", "dmask3", True),
    ],
)
def test_masked_output(
    golden: Golden, name: str, rank: str, mask: str | None, delta: str | None, bias: bool
) -> None:
    site_mask = SiteMask(golden[mask] if mask else None, golden[delta] if delta else None)
    found = run(golden, golden[f"x{rank}"], site_mask)
    golden.check(name, found + golden["b"] if bias else found, "A")


def test_everything_kept_is_the_target(golden: Golden) -> None:
    found = run(golden, golden["x"], SiteMask(jnp.ones((5, 7)), jnp.ones(5)))
    golden.check("out_full", found + golden["b"], "A")


@pytest.mark.parametrize("rank", ["", "3"])
def test_frozen_and_routed_output(golden: Golden, rank: str) -> None:
    x, bias, weight = golden[f"x{rank}"], golden["b"], parts(golden)[1]
    golden.check(f"target_out{rank}", frozen("fc", x, weight) + bias, "A")
    mask, delta, route = (golden[f"{name}{rank}"] for name in ("mask", "dmask", "route"))
    golden.check(f"out_routed{rank}", run(golden, x, SiteMask(mask, delta, route)) + bias, "A")
    if not rank:
        found = run(golden, x, SiteMask(mask, None, route)) + bias
        golden.check("out_routed_nodelta", found, "A")


def test_gradients_reach_the_components_through_the_delta(golden: Golden) -> None:
    _, weight = parts(golden)

    def value(leaves: dict[str, Array]) -> Array:
        components = Components(V={"fc": leaves["V"]}, U={"fc": leaves["U"]})
        linear = masked(components, {"fc": SiteMask(leaves["mask"], leaves["dmask"])})
        return jnp.sum(linear("fc", leaves["x"], weight) * golden["G"])

    grads = jax.grad(value)({name: golden[name] for name in ("V", "U", "mask", "dmask", "x")})
    golden.check_under("grad/live_delta", grads, "A")
    for name in ("mask", "dmask", "x"):
        golden.check(f"grad/const_delta/{name}", grads[name], "A")


def test_embedding(golden: Golden) -> None:
    tokens = golden["emb/tokens"]
    V = golden["emb/V"]
    golden.check("emb/weight", run(golden, jnp.arange(6), NO_MASK, "emb/"), "A")
    to_activations = Components(V={"fc": V}, U={"fc": jnp.eye(V.shape[1])})
    linear = masked(to_activations, {"fc": NO_MASK})
    golden.check("emb/acts", linear("fc", tokens, jnp.zeros((6, 5))), "A")
    mask = SiteMask(golden["emb/mask"], golden["emb/dmask"])
    golden.check("emb/out", run(golden, tokens, mask, "emb/"), "A")
