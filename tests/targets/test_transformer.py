"""The transformer's forward under any linear map, scanned or not, and what it refuses."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components
from pd_eqx.linear import LinearMap, capture, frozen, masked, recording
from pd_eqx.masks import SiteMask
from pd_eqx.sites import select_sites
from pd_eqx.targets.rotary import Rotary
from pd_eqx.targets.transformer import (
    FusedByHeadQKV,
    GatedMLP,
    LayerNorm,
    PlainMLP,
    RMSNorm,
    Transformer,
    TransformerConfig,
    init_transformer,
)
from pd_eqx.unembedding import logits_of

SIMPLE_MLP = TransformerConfig(
    vocabulary=13,
    width=8,
    depth=4,
    heads=4,
    kv_heads=2,
    head_width=2,
    mlp_width=12,
    norm=RMSNorm(1e-6),
    mlp=PlainMLP("gelu_tanh"),
    rotary=Rotary(2),
    tied=True,
)
IDS = jnp.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 12]])


# Compiled in a hurry: the numbers are held to tolerances, and the time goes into compiling.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})
forward = quick_jit(lambda target, ids: target(ids))


def numbers(seed: int, *shape: int, low: float = -0.7, high: float = 0.7) -> Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(low, high, shape), jnp.float32)


def model(depth: int = 4, config: TransformerConfig = SIMPLE_MLP, **changes: Any) -> Transformer:
    """Weights large enough that every part of the forward shows in the logits."""
    config = dataclasses.replace(config, depth=depth)
    shapes = jax.eval_shape(lambda: init_transformer(jax.random.key(0), config))
    leaves, structure = jax.tree.flatten(shapes)
    filled = [numbers(index, *leaf.shape) for index, leaf in enumerate(leaves)]
    return dataclasses.replace(jax.tree.unflatten(structure, filled), **changes)


def components_for(target: Transformer, patterns: Mapping[str, int]) -> Components:
    V: dict[str, Array] = {}
    U: dict[str, Array] = {}
    counts = select_sites(target.sites(), patterns)
    for index, site in enumerate(target.sites()):
        if site.name in counts:
            V[site.name] = numbers(100 + index, site.d_in, counts[site.name])
            U[site.name] = numbers(200 + index, counts[site.name], site.d_out)
    return Components(V, U)


def site_masks(
    components: Components, lead: tuple[int, ...], with_route: bool = False
) -> dict[str, SiteMask]:
    masks: dict[str, SiteMask] = {}
    for index, (site, count) in enumerate(components.counts.items()):
        component = numbers(300 + index, *lead, count, low=0.0, high=1.0)
        delta = numbers(400 + index, *lead, low=0.0, high=1.0)
        route = numbers(500 + index, *lead) > -0.3 if with_route else None
        masks[site] = SiteMask(component, delta, route)
    return masks


def unsliced(linear: LinearMap) -> LinearMap:
    """The same map as a plain function, which no scan can slice."""

    def call(site: str, x: Array, weight: Array, /) -> Array:
        return linear(site, x, weight)

    return call


def test_the_simple_mlp_family_computes_what_its_formulas_say() -> None:
    target = model(depth=2)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), target)
    expected = _simple_mlp_by_hand(exact, np.asarray(IDS))
    np.testing.assert_allclose(forward(target, IDS), expected, atol=1e-5 * np.abs(expected).max())


def _simple_mlp_by_hand(w: Transformer, ids: np.ndarray) -> np.ndarray:
    """One sequence, one head, one position at a time, in float64."""

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return scale * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def turn(x: np.ndarray) -> np.ndarray:
        angle = np.arange(len(x))
        cos, sin = np.cos(angle), np.sin(angle)
        return np.stack([x[:, 0] * cos - x[:, 1] * sin, x[:, 1] * cos + x[:, 0] * sin], axis=-1)

    logits: list[np.ndarray] = []
    for sequence in ids:
        x = np.asarray(w.embedding)[sequence]
        for i in range(2):
            m = {kind: np.asarray(stack)[i] for kind, stack in w.layers.weights.items()}
            h = norm(x, np.asarray(w.layers.norms["attn"].scale)[i])
            heads: list[np.ndarray] = []
            for head in range(4):
                group = head // 2
                q = turn((h @ m["attn.q"])[:, 2 * head : 2 * head + 2])
                k = turn((h @ m["attn.k"])[:, 2 * group : 2 * group + 2])
                v = (h @ m["attn.v"])[:, 2 * group : 2 * group + 2]
                read = np.zeros_like(q)
                for t in range(len(sequence)):
                    weights = np.exp(q[t] @ k[: t + 1].T / np.sqrt(2.0))
                    read[t] = weights / weights.sum() @ v[: t + 1]
                heads.append(read)
            x = x + np.concatenate(heads, axis=-1) @ m["attn.o"]
            h = norm(x, np.asarray(w.layers.norms["mlp"].scale)[i]) @ m["mlp.up"]
            gelu = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
            x = x + gelu @ m["mlp.down"]
        logits.append(norm(x, np.asarray(w.norm.scale)) @ np.asarray(w.embedding).T)
    return np.stack(logits)


def test_sites_are_all_matrices_in_the_order_of_the_forward() -> None:
    target = model(depth=2)
    called: list[tuple[str | int, ...]] = []

    def note(site: str, x: Array, weight: Array, /) -> Array:
        called.append((site, *weight.shape))
        return frozen(site, x, weight)

    jax.eval_shape(lambda ids: target(ids, note), IDS)
    assert called == [(site.name, site.d_in, site.d_out) for site in target.sites()]
    assert called[0] == ("layers.0.attn.q", 8, 8)
    assert called[-1] == ("layers.1.mlp.down", 12, 8)
    for site, weight in target.weights().items():
        index, kind = site.split(".", 2)[1:]
        assert np.array_equal(weight, target.layers.weights[kind][int(index)])


@pytest.mark.parametrize(
    "patterns",
    [
        pytest.param({"*": 3}, id="every site"),
        pytest.param({"layers.[1-2].mlp.*": 3}, id="a run of layers"),
        pytest.param(
            {"layers.2.attn.o": 3, "layers.3.mlp.up": 2}, id="layers that are like no neighbour"
        ),
        pytest.param(
            {"layers.*.attn.q": 3, "layers.[23].attn.q": 4}, id="two numbers of components"
        ),
    ],
)
def test_a_scan_gives_the_numbers_and_gradients_of_a_loop(patterns: dict[str, int]) -> None:
    target = model()
    expected = value_and_grads(target, patterns, unsliced)
    compare(value_and_grads(target, patterns), expected)


@pytest.mark.parametrize(
    "changes", [{"rematerialise": True}, {"scan": False}, {"queries_at_once": 4}]
)
def test_how_the_layers_are_run_changes_no_number(changes: dict[str, Any]) -> None:
    patterns = {"layers.[1-2].mlp.*": 3}
    expected = value_and_grads(model(), patterns)
    compare(value_and_grads(model(**changes), patterns), expected)


Trained = tuple[dict[str, Array], dict[str, Array], dict[str, Array]]


def value_and_grads(
    target: Transformer,
    patterns: Mapping[str, int],
    wrap: Callable[[LinearMap], LinearMap] = lambda linear: linear,
) -> tuple[Array, Trained]:
    """Of a masked, routed forward, by V, U and component masks."""
    components = components_for(target, patterns)
    masks = site_masks(components, IDS.shape, with_route=True)

    def loss(trained: Trained, target: Transformer) -> Array:
        V, U, component = trained
        masked_by = {
            site: SiteMask(component[site], mask.delta, mask.route) for site, mask in masks.items()
        }
        logits = logits_of(target(IDS, wrap(masked(Components(V, U), masked_by))))
        return jnp.mean(jnp.sin(logits))

    trained = (components.V, components.U, {site: mask.component for site, mask in masks.items()})
    return quick_jit(jax.value_and_grad(loss))(trained, target)


def compare(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(wanted).max() > 0.0
        np.testing.assert_allclose(leaf, wanted, atol=1e-4 * np.abs(wanted).max())


def test_a_scan_records_what_a_loop_records() -> None:
    target = model()
    components = components_for(target, {"layers.[1-2].*": 3})
    linear = masked(components, site_masks(components, IDS.shape))
    chosen = ["layers.1.mlp.down", "layers.2.mlp.down", "layers.3.attn.k"]

    def record(target: Transformer, linear: LinearMap) -> list[tuple[str, Array, Array]]:
        def run(target: Transformer) -> tuple[list[Array], list[Array]]:
            site_inputs: dict[str, Array] = {}
            site_outputs: dict[str, Array] = {}
            target(IDS, recording(linear, site_inputs, site_outputs, chosen))
            assert list(site_inputs) == list(site_outputs) == chosen
            return list(site_inputs.values()), list(site_outputs.values())

        return list(zip(chosen, *quick_jit(run)(target), strict=True))

    scanned = record(target, linear)
    assert scanned[0][1].shape == (2, 6, 12)
    looped = record(dataclasses.replace(target, scan=False), linear)
    for others in (looped, record(target, unsliced(linear))):
        for (site, x, y), (_, other_x, other_y) in zip(scanned, others, strict=True):
            np.testing.assert_allclose(x, other_x, rtol=1e-4, atol=1e-4, err_msg=site)
            np.testing.assert_allclose(y, other_y, rtol=1e-4, atol=1e-4, err_msg=site)


def test_capturing_takes_every_site() -> None:
    target = model(depth=2)

    def run(target: Transformer) -> tuple[Array, list[tuple[Array, Array]]]:
        logits, site_inputs, site_outputs = capture(target, IDS)
        names = [site.name for site in target.sites()]
        assert set(site_inputs) == set(site_outputs) == set(names)
        return logits_of(logits), [(site_inputs[name], site_outputs[name]) for name in names]

    logits, taken = quick_jit(run)(target)
    np.testing.assert_allclose(logits, forward(target, IDS), rtol=1e-5, atol=1e-5)
    for (x, y), weight in zip(taken, target.weights().values(), strict=True):
        np.testing.assert_allclose(np.asarray(x) @ weight, y, rtol=1e-4, atol=1e-4)


def lowered(depth: int, patterns: dict[str, int], scan: bool = True) -> str:
    """A masked forward and its gradient, as they are given to the compiler."""
    target = model(depth, scan=scan)
    components = components_for(target, patterns)
    masks = site_masks(components, IDS.shape)

    def loss(components: Components, target: Transformer, masks: dict[str, SiteMask]) -> Array:
        return jnp.mean(logits_of(target(IDS, masked(components, masks))))

    return jax.jit(jax.grad(loss)).lower(components, target, masks).as_text()


def test_what_is_compiled_does_not_grow_with_depth() -> None:
    one_site = {"layers.2.mlp.up": 3}
    few, many = (
        lowered(6, one_site),
        lowered(14, one_site),
    )  # layers on both sides of it are scanned
    assert len(many.splitlines()) < 1.1 * len(few.splitlines())
    # With every layer masked, masks and components are stacked layer by layer, but computed with once.
    every_layer = {"*.mlp.*": 3}
    few, many = lowered(4, every_layer), lowered(12, every_layer)
    assert few.count("dot_general") == many.count("dot_general") > 10
    looped = lowered(12, every_layer, scan=False)
    assert looped.count("dot_general") > 2 * few.count("dot_general")


def temporary_bytes(rematerialise: bool, length: int) -> tuple[int, int]:
    """Of a masked forward's gradient beside the weights of the layers."""
    config = dataclasses.replace(SIMPLE_MLP, width=128, mlp_width=512)
    target = model(6, config, rematerialise=rematerialise)
    components = components_for(target, {"*.mlp.up": 2})
    ids = jnp.arange(length)[None] % 13
    masks = site_masks(components, ids.shape)

    def loss(components: Components, target: Transformer, masks: dict[str, SiteMask]) -> Array:
        return jnp.mean(logits_of(target(ids, masked(components, masks))))

    compiled = jax.jit(jax.grad(loss)).lower(components, target, masks).compile()
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(target.layers))
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes, weights


def test_a_backward_pass_holds_no_second_copy_of_the_weights() -> None:
    temporary, weights = temporary_bytes(rematerialise=False, length=4)
    assert temporary < 0.7 * weights


def test_rematerialised_layers_hold_no_activations() -> None:
    kept, _ = temporary_bytes(rematerialise=False, length=256)
    rematerialised, _ = temporary_bytes(rematerialise=True, length=256)
    assert rematerialised < 0.6 * kept


def test_blocks_of_queries_keep_nothing_of_the_square_of_the_length() -> None:
    """Neither probabilities nor masks of all blocks, in a layer that is computed again on the way back."""
    target = model(queries_at_once=16, rematerialise=True)
    components = components_for(target, {"layers.1.mlp.up": 2})
    ids = jnp.arange(64)[None] % 13
    masks = site_masks(components, ids.shape)

    def loss(components: Components, target: Transformer, masks: dict[str, SiteMask]) -> Array:
        return jnp.mean(logits_of(target(ids, masked(components, masks))))

    text = jax.jit(jax.grad(loss)).lower(components, target, masks).as_text()
    one_block = r"tensor<1x4x16x64x(f32|i1)>"
    assert re.search(one_block, text)
    assert not re.search(one_block.replace("<", "<4x"), text)


def test_a_site_without_a_mask_is_never_taken_apart() -> None:
    target = model()
    components = components_for(target, {"*": 101})
    masks = {"layers.1.mlp.up": site_masks(components, IDS.shape)["layers.1.mlp.up"]}
    text = jax.jit(lambda: target(IDS, masked(components, masks))).lower().as_text()
    assert text.count("2x6x101xf32") > 0
    of_one = [line for line in text.splitlines() if "dot_general" in line and "x101" in line]
    assert len(of_one) == 2  # x @ V and · @ U, of the one site


def test_arithmetic_runs_in_the_weights_dtype_or_in_the_one_named() -> None:
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model())
    wide = dataclasses.replace(narrow, dtype="float32")
    logits = forward(wide, IDS)
    assert logits.dtype == jnp.float32
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow)
    np.testing.assert_allclose(logits, forward(rounded, IDS), rtol=1e-4, atol=1e-4)
    assert eqx.filter_eval_shape(narrow, IDS).dtype == jnp.bfloat16
    components = components_for(narrow, {"*": 3})  # float32, beside bfloat16 activations
    linear = masked(components, site_masks(components, IDS.shape))
    assert jax.eval_shape(lambda ids: narrow(ids, linear), IDS).dtype == jnp.bfloat16
    assert jax.eval_shape(lambda ids: wide(ids, linear), IDS).dtype == jnp.float32


def test_positions_see_themselves_and_what_came_before() -> None:
    target = model()
    changed = IDS.at[:, 3].set(7)
    before, after = forward(target, IDS), forward(target, changed)
    assert np.array_equal(before[:, :3], after[:, :3])
    assert np.all(np.any(before[:, 3:] != after[:, 3:], axis=-1))


def test_a_token_beyond_the_vocabulary_is_not_taken_for_another() -> None:
    logits = forward(model(), IDS.at[0, 5].set(13))
    assert np.all(np.isnan(logits[0, 5]))
    assert np.all(np.isfinite(logits[1]))


def test_more_tokens_than_learned_positions_are_refused() -> None:
    config = dataclasses.replace(SIMPLE_MLP, rotary=None, learned_positions=5, norm=LayerNorm(1e-5))
    target = model(config=config)
    assert eqx.filter_eval_shape(target, IDS[:, :5]).shape == (2, 5, 13)
    with pytest.raises(ValueError, match="6 tokens, but the model has learned 5 positions"):
        target(IDS)


def test_activations_are_no_token_ids() -> None:
    with pytest.raises(Exception, match=r"float32|inputs"):
        model()(IDS.astype(jnp.float32))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_heads": 3}, "4 query heads cannot share 3"),
        ({"qkv": FusedByHeadQKV()}, "kv_heads is 2, but heads is 4"),
        ({"rotary": Rotary(4)}, "turn 4 coordinates, but a head has only 2"),
        ({"biased": frozenset({"mlp.gate"})}, r"\['mlp.gate'\], but the matrices are \['attn.q'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SIMPLE_MLP, **changes)


def test_an_odd_rotary_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width 3 is not 2, 4, 6"):
        Rotary(3)


def test_a_fresh_model_starts_near_the_uniform_prediction() -> None:
    config = dataclasses.replace(
        SIMPLE_MLP, mlp=GatedMLP("silu"), biased=frozenset({"attn.q"}), tied=False
    )
    target = init_transformer(jax.random.key(0), config)
    assert target.layers.biases["attn.q"].shape == (4, 8)
    assert target.head is not None
    assert float(jnp.abs(forward(target, IDS)).max()) < 0.5
    again = init_transformer(jax.random.key(0), dataclasses.replace(config, mlp_width=13))
    assert np.array_equal(again.layers.weights["attn.q"], target.layers.weights["attn.q"])
