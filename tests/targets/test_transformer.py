"""The transformer's forward under any linear map, scanned or not, and what it refuses."""

import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components, init_components
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

SIMPLE_MLP = TransformerConfig(
    vocabulary=13,
    width=8,
    depth=5,
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


def model(depth: int = 5, **changes: object) -> Transformer:
    """Weights large enough that every part of the forward shows in the logits."""
    config = dataclasses.replace(SIMPLE_MLP, depth=depth)
    target = init_transformer(jax.random.key(1), config)
    target = jax.tree.map(
        lambda leaf: leaf + 0.3 * jnp.sin(jnp.arange(leaf.size)).reshape(leaf.shape), target
    )
    return dataclasses.replace(target, **changes)  # pyright: ignore[reportArgumentType]


def site_masks(
    components: Components, lead: tuple[int, ...], with_route: bool = False
) -> dict[str, SiteMask]:
    masks: dict[str, SiteMask] = {}
    for index, (site, count) in enumerate(components.counts.items()):
        key = jax.random.fold_in(jax.random.key(7), index)
        component, delta, route = (
            jax.random.uniform(k, (*lead, count)) for k in jax.random.split(key, 3)
        )
        masks[site] = SiteMask(
            component, delta[..., 0], route[..., 0] > 0.3 if with_route else None
        )
    return masks


def components_for(target: Transformer, patterns: Mapping[str, int]) -> Components:
    return init_components(
        jax.random.key(2), target.sites(), select_sites(target.sites(), patterns)
    )


def unsliced(linear: LinearMap) -> LinearMap:
    """The same map as a plain function, which no scan can slice."""

    def call(site: str, x: Array, weight: Array, /) -> Array:
        return linear(site, x, weight)

    return call


def test_the_simple_mlp_family_computes_what_its_formulas_say() -> None:
    target = model(depth=2)
    found = target(IDS)
    with jax.enable_x64(True):
        w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), target)
        np.testing.assert_allclose(found, _simple_mlp_by_hand(w, np.asarray(IDS)), atol=2e-5)


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
    called: list[tuple[str, int, int]] = []

    def note(site: str, x: Array, weight: Array, /) -> Array:
        called.append((site, *weight.shape))
        return frozen(site, x, weight)

    target(IDS, note)
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
        pytest.param({"layers.[1-3].mlp.*": 3}, id="a run of layers"),
        pytest.param(
            {"layers.2.attn.o": 3, "layers.4.mlp.up": 2}, id="layers that are like no neighbour"
        ),
        pytest.param(
            {"layers.*.attn.q": 3, "layers.[23].attn.q": 4}, id="two numbers of components"
        ),
    ],
)
@pytest.mark.parametrize("rematerialise", [False, True])
def test_a_scan_gives_the_numbers_and_gradients_of_a_loop(
    patterns: dict[str, int], rematerialise: bool
) -> None:
    scanned = model(rematerialise=rematerialise)
    looped = model(scan=False)
    components = components_for(scanned, patterns)
    masks = site_masks(components, IDS.shape, with_route=True)

    @eqx.filter_jit
    def loss(
        target: Transformer, components: Components, masks: dict[str, SiteMask], plain: bool
    ) -> Array:
        def of(trained: tuple[Components, dict[str, SiteMask]]) -> Array:
            linear = masked(*trained)
            logits = target(IDS, unsliced(linear) if plain else linear)
            return jnp.mean(jnp.sin(logits))

        return eqx.filter_value_and_grad(of)((components, masks))

    expected, expected_grads = loss(looped, components, masks, True)
    for target in (scanned, looped):
        value, grads = loss(target, components, masks, False)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        assert jax.tree.structure(grads) == jax.tree.structure(expected_grads)
        for found, wanted in zip(
            jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True
        ):
            assert np.abs(wanted).max() > 0.0
            np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_scan_records_what_a_loop_records() -> None:
    scanned, looped = model(), model(scan=False)
    components = components_for(scanned, {"layers.[1-3].*": 3})
    linear = masked(components, site_masks(components, IDS.shape))
    chosen = ["layers.1.mlp.down", "layers.2.mlp.down", "layers.4.attn.k"]
    records: list[dict[str, dict[str, Array]]] = []
    for target, map_ in ((scanned, linear), (looped, linear), (looped, unsliced(linear))):
        site_inputs: dict[str, Array] = {}
        site_outputs: dict[str, Array] = {}
        target(IDS, recording(map_, site_inputs, site_outputs, chosen))
        records.append({"in": site_inputs, "out": site_outputs})
        assert list(site_inputs) == chosen
        assert site_inputs["layers.2.mlp.down"].shape == (2, 6, 12)
    for record in records[1:]:
        assert eqx.tree_equal(record, records[0], rtol=1e-5, atol=1e-5)


def test_capturing_changes_no_bit_of_the_output() -> None:
    target = model()
    logits, site_inputs, site_outputs = capture(target, IDS)
    assert np.array_equal(logits, target(IDS))
    assert list(site_inputs) == [site.name for site in target.sites()]
    for site, weight in target.weights().items():
        np.testing.assert_allclose(
            site_inputs[site] @ weight, site_outputs[site], rtol=1e-5, atol=1e-5
        )


def lowered_size(depth: int, scan: bool = True) -> int:
    """Of a masked forward and its gradient, as it is given to the compiler."""
    target = model(depth, scan=scan)
    components = components_for(target, {"*.mlp.*": 3})
    masks = site_masks(components, IDS.shape)

    def loss(components: Components, target: Transformer, masks: dict[str, SiteMask]) -> Array:
        return jnp.mean(target(IDS, masked(components, masks)))

    return len(jax.jit(jax.grad(loss)).lower(components, target, masks).as_text().splitlines())


def test_what_is_compiled_does_not_grow_with_depth() -> None:
    few, many = lowered_size(4), lowered_size(12)
    # What grows is the stacking of each layer's masks and components, a few lines a layer.
    assert many < 1.5 * few
    assert lowered_size(12, scan=False) > 2.5 * lowered_size(4, scan=False)


def temporary_bytes(
    target: Transformer, patterns: dict[str, int], rematerialise: bool = False
) -> int:
    target = dataclasses.replace(target, rematerialise=rematerialise)
    components = components_for(target, patterns)
    masks = site_masks(components, IDS.shape)

    def loss(components: Components, target: Transformer, masks: dict[str, SiteMask]) -> Array:
        return jnp.mean(target(IDS, masked(components, masks)))

    compiled = jax.jit(jax.grad(loss)).lower(components, target, masks).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_a_backward_pass_holds_no_second_copy_of_the_weights() -> None:
    config = dataclasses.replace(SIMPLE_MLP, depth=6, width=64, mlp_width=256)
    target = init_transformer(jax.random.key(0), config)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(target.layers))
    kept = temporary_bytes(target, {"layers.[1-4].mlp.up": 2})
    assert kept < 0.5 * weights
    # Rematerialised, the layers' activations are not held either.
    assert temporary_bytes(target, {"layers.[1-4].mlp.up": 2}, rematerialise=True) < 0.75 * kept


def test_a_site_without_a_mask_is_never_taken_apart() -> None:
    target = model()
    components = components_for(target, {"*": 101})
    masks = {"layers.1.mlp.up": site_masks(components, IDS.shape)["layers.1.mlp.up"]}
    text = jax.jit(lambda: target(IDS, masked(components, masks))).lower().as_text()
    assert text.count("2x6x101xf32") > 0
    of_one = [line for line in text.splitlines() if "dot_general" in line and "101" in line]
    assert len(of_one) == 2  # x @ V and · @ U, of the one site


def test_weights_keep_their_dtype_and_arithmetic_has_its_own() -> None:
    target = model()
    stored = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), target)
    logits = stored(IDS)
    assert logits.dtype == jnp.float32
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), stored)
    np.testing.assert_allclose(logits, rounded(IDS), rtol=1e-5, atol=1e-5)
    assert dataclasses.replace(stored, dtype="bfloat16")(IDS).dtype == jnp.bfloat16
    components = components_for(target, {"*": 3})  # float32, beside bfloat16 activations
    linear = masked(components, site_masks(components, IDS.shape))
    assert dataclasses.replace(stored, dtype="bfloat16")(IDS, linear).dtype == jnp.bfloat16


def test_positions_see_themselves_and_what_came_before() -> None:
    target = model()
    changed = IDS.at[:, 3].set(7)
    before, after = target(IDS), target(changed)
    assert np.array_equal(before[:, :3], after[:, :3])
    assert np.all(np.any(before[:, 3:] != after[:, 3:], axis=-1))


def test_a_token_beyond_the_vocabulary_is_not_taken_for_another() -> None:
    logits = model()(IDS.at[0, 5].set(13))
    assert np.all(np.isnan(logits[0, 5]))
    assert np.all(np.isfinite(logits[1]))


def test_more_tokens_than_learned_positions_are_refused() -> None:
    config = dataclasses.replace(SIMPLE_MLP, rotary=None, learned_positions=5, norm=LayerNorm(1e-5))
    target = init_transformer(jax.random.key(0), config)
    assert target(IDS[:, :5]).shape == (2, 5, 13)
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
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SIMPLE_MLP, **changes)  # pyright: ignore[reportArgumentType]


def test_an_odd_rotary_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width 3 is not 2, 4, 6"):
        Rotary(3)


def test_a_fresh_model_starts_near_the_uniform_prediction() -> None:
    config = dataclasses.replace(
        SIMPLE_MLP, mlp=GatedMLP("silu"), biased=frozenset({"attn.q"}), tied=False
    )
    target = init_transformer(jax.random.key(0), config)
    assert target.layers.biases["attn.q"].shape == (5, 8)
    assert target.head is not None
    assert float(jnp.abs(target(IDS)).max()) < 0.5
    again = init_transformer(jax.random.key(0), dataclasses.replace(config, mlp_width=13))
    assert np.array_equal(again.layers.weights["attn.q"], target.layers.weights["attn.q"])
