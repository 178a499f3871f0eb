"""Golden parity of the importance functions over all sites: outputs, gradients, rotary tables, a whole path."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from parity import peer
from parity.golden import Golden
from pd_eqx.ci.attention import rotary_frequencies
from pd_eqx.ci.base import CIFunction
from pd_eqx.ci.mlp import GlobalMLP
from pd_eqx.ci.reverse import Passage, ReverseBlock, ReverseCI
from pd_eqx.ci.transformer import Block, Transformer, TransformerCI
from pd_eqx.components import Components
from pd_eqx.linear import LinearMap, capture, frozen
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target

GOLDEN = "09b_global_ci_fns_devbranch"
LEFT_OUT = {"*/G_B/*": "cotangents of gradients that the file does not hold"}
SIZES = {"l.0.in": (4, 5), "l.0.out": (6, 3), "l.1.in": (4, 7)}
REVERSE = {"b1": ("l.1.in",), "b0": ("l.0.out", "l.0.in")}

Params = Mapping[str, Array]


def global_mlp(params: Params) -> CIFunction:
    return GlobalMLP(layers=peer.mlp(params, "layers"))


def transformer(
    n_heads: int, base: float, n_blocks: int, sites: tuple[str, ...]
) -> Callable[[Params], CIFunction]:
    def build(params: Params) -> CIFunction:
        blocks = [
            Block(
                peer.attention(params, f"_blocks.{index}.attn", n_heads, base),
                peer.mlp(params, f"_blocks.{index}.mlp"),
            )
            for index in range(n_blocks)
        ]
        alone = Transformer(
            peer.dense(params, "_input_projector"),
            tuple(blocks),
            peer.dense(params, "_output_head"),
        )
        stack = jax.tree.map(lambda leaf: leaf[None], alone)
        return TransformerCI(stacks=(stack,), chunks=((sites,),))

    return build


def reverse(n_heads: int) -> Callable[[Params], CIFunction]:
    def build(params: Params) -> CIFunction:
        blocks: list[ReverseBlock] = []
        for block in REVERSE:
            passage = None
            if f"_transition_norms.{block}.weight" in params:
                passage = Passage(
                    mlp=peer.mlp(params, f"_transitions.{block}"),
                    mlp_gain=params[f"_transition_norms.{block}.weight"],
                    attention=peer.attention(params, f"_attn_transitions.{block}", n_heads, 1e4)
                    if n_heads
                    else None,
                    attention_gain=params[f"_attn_norms.{block}.weight"] if n_heads else None,
                )
            blocks.append(
                ReverseBlock(
                    projector=peer.dense(params, f"_inp_projectors.{block}"),
                    passage=passage,
                    reader=peer.mlp(params, f"_readers.{block}"),
                    reader_gain=params[f"_reader_norms.{block}.weight"],
                )
            )
        return ReverseCI(blocks=tuple(blocks), sites=tuple(REVERSE.values()))

    return build


BUILD: dict[str, Callable[[Params], CIFunction]] = {
    "shared_mlp": global_mlp,
    "transformer": transformer(2, 1e4, 2, tuple(SIZES)),
    "transformer_1h_long": transformer(1, 100.0, 1, tuple(SIZES)),
    "reverse_mlp": reverse(0),
    "reverse_attn": reverse(2),
}


def components() -> Components:
    """Of the golden sizes; the functions of this file read no more of them."""
    return Components(
        V={site: jnp.zeros((d_in, count)) for site, (d_in, count) in SIZES.items()},
        U={site: jnp.zeros((count, 1)) for site, (_, count) in SIZES.items()},
    )


def _as_one_sequence(inputs: Params) -> Params:
    return {site: x[None] for site, x in inputs.items()}


@pytest.mark.parametrize("name", list(BUILD))
def test_logits_and_their_gradients(golden: Golden, name: str) -> None:
    @jax.jit
    def logits(params: Params, inputs: Params) -> Params:
        return BUILD[name](params).logits(inputs, components())

    params = golden.under(f"{name}/param")
    found = logits(params, golden.under(f"{name}/in_BS"))
    golden.check_under(f"{name}/out_BS", found, "E")

    inputs = golden.under(f"{name}/in_B")
    if name == "reverse_attn":
        # Without a sequence axis the peer's reverse attention runs over the batch: its elements see each other.
        # Here they do not; given the batch as one sequence, the numbers are the peer's.
        alone = logits(params, inputs)
        found = {site: x[0] for site, x in logits(params, _as_one_sequence(inputs)).items()}
        assert not np.allclose(alone["l.0.in"], found["l.0.in"], atol=1e-3)
    else:
        found = logits(params, inputs)
    golden.check_under(f"{name}/out_B", found, "E")

    cotangents = golden.under(f"{name}/G_BS")

    def value(leaves: Params) -> Array:
        found = logits(leaves, {site: leaves[f"in/{site}"] for site in SIZES})
        return jnp.sum(jnp.stack([jnp.sum(found[s] * cotangents[s]) for s in SIZES]))

    inputs = {f"in/{s}": x for s, x in golden.under(f"{name}/in_BS").items()}
    grads = jax.jit(jax.grad(value))(dict(params) | inputs)
    golden.check_under(f"{name}/grad_BS", grads, "E")


@pytest.mark.parametrize(
    ("at", "base"),
    [
        ("transformer/buffer/_blocks.0.attn", 1e4),
        ("transformer/buffer/_blocks.1.attn", 1e4),
        ("transformer_1h_long/buffer/_blocks.0.attn", 100.0),
        ("reverse_attn/buffer/_attn_transitions.b1", 1e4),
    ],
)
def test_rotary_frequencies(golden: Golden, at: str, base: float) -> None:
    """Class B: the peer computes exponents, powers and reciprocals in float32."""
    d_head = {"transformer": 4, "transformer_1h_long": 6, "reverse_attn": 4}[at.partition("/")[0]]
    golden.check(f"{at}.rope.inv_freq", rotary_frequencies(d_head, base), "B")


class TwoLayers(Target):
    """The peer's `seq` target, up to what happens after `fc2`."""

    fc1: Float[Array, "d_in d_hidden"]
    bias1: Float[Array, " d_hidden"]
    fc2: Float[Array, "d_hidden d_out"]
    bias2: Float[Array, " d_out"]

    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        return {"fc1": self.fc1, "fc2": self.fc2}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Float[Array, "..."]:
        hidden = jax.nn.relu(linear("fc1", inputs, self.fc1) + self.bias1)
        return linear("fc2", hidden, self.fc2) + self.bias2


def test_the_whole_path_from_batch_to_importances(golden: Golden) -> None:
    target = TwoLayers(
        golden["model/target/fc1.weight"].T,
        golden["model/target/fc1.bias"],
        golden["model/target/fc2.weight"].T,
        golden["model/target/fc2.bias"],
    )
    _, site_inputs, _ = capture(target, golden["model/batch"])
    decomposed = Components(V=golden.under("model/V"), U=golden.under("model/U"))
    ci_fn = transformer(2, 1e4, 1, ("fc1", "fc2"))(golden.under("model/param"))
    found = jax.jit(ci_fn.__call__)(site_inputs, decomposed)
    golden.check_under("model/pre_sigmoid", found.logits, "E")
    golden.check_under("model/lower", found.lower, "E")
    golden.check_under("model/upper", found.upper, "E")
