"""Attending importance functions: rotary positions, chunks that run as one, the reverse stream."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.ci.attention import init_attention, rms_norm, rotate
from pd_eqx.ci.base import CIFunction
from pd_eqx.ci.reverse import ReverseCI, init_reverse
from pd_eqx.ci.transformer import TransformerCI, init_transformers, partitioned
from pd_eqx.components import Components
from pd_eqx.sites import Site

Chunks = tuple[tuple[str, ...], ...]

KEY = jax.random.key(0)
SITES = tuple(
    Site(f"layers.{layer}.{kind}", *sizes)
    for layer in range(3)
    for kind, sizes in (("in", (4, 8)), ("out", (8, 4)))
)
COUNTS = {site.name: {"in": 5, "out": 3}[site.name.rpartition(".")[2]] for site in SITES}
NAMES = [site.name for site in SITES]
BY_LAYER: Chunks = (("layers.0.*",), ("layers.1.*",), ("layers.2.*",))


def components() -> Components:
    random = np.random.default_rng(0)
    shapes = {site.name: (site.d_in, COUNTS[site.name], site.d_out) for site in SITES}
    V = {s: jnp.asarray(random.normal(size=(n, C)), jnp.float32) for s, (n, C, _) in shapes.items()}
    U = {s: jnp.asarray(random.normal(size=(C, n)), jnp.float32) for s, (_, C, n) in shapes.items()}
    return Components(V, U)


def inputs(*lead: int) -> dict[str, Array]:
    random = np.random.default_rng(1)
    draws = {site.name: random.normal(size=(*lead, site.d_in)) for site in SITES}
    return {site: jnp.asarray(draw, jnp.float32) for site, draw in draws.items()}


@cache
def transformers(chunks: Chunks | None = None) -> TransformerCI:
    sizes: dict[str, Any] = {"d_model": 8, "n_blocks": 1, "n_heads": 2, "hidden": [6]}
    return jax.jit(partial(init_transformers, chunks=chunks, **sizes))(KEY, components())


@cache
def reverse(n_heads: int = 2) -> ReverseCI:
    blocks = [[f"layers.{layer}.{kind}" for kind in ("out", "in")] for layer in (2, 1, 0)]
    sizes: dict[str, Any] = {"d_model": 8, "reader_hidden": [6], "passage_hidden": [5]}
    init = partial(init_reverse, blocks=blocks, n_heads=n_heads, **sizes)
    return jax.jit(init)(KEY, components())


@jax.jit
def logits(ci_fn: CIFunction, given: dict[str, Array]) -> dict[str, Array]:
    return ci_fn.logits(given, components())


def moved(ci_fn: CIFunction, before: dict[str, Array], after: dict[str, Array]) -> list[str]:
    """The sites whose logits differ between two inputs."""
    one, other = logits(ci_fn, before), logits(ci_fn, after)
    return sorted(site for site in one if not np.allclose(one[site], other[site], atol=1e-6))


def test_the_norm_is_of_mean_square_one_and_needs_no_nonzero_input() -> None:
    x = jnp.array([[3.0, -4.0], [0.0, 0.0]])
    found = np.asarray(rms_norm(x))
    assert found[0] == pytest.approx(np.array([3.0, -4.0]) / 12.5**0.5)
    assert found[1].tolist() == [0.0, 0.0]
    assert rms_norm(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_rotation_keeps_lengths_and_knows_only_relative_positions() -> None:
    query, key = jax.random.normal(KEY, (2, 6))
    at_every_position = rotate(jnp.tile(query, (7, 1, 1)), 100.0)[:, 0]
    lengths = np.linalg.norm(np.asarray(at_every_position), axis=-1)
    assert lengths == pytest.approx(float(jnp.linalg.norm(query)), rel=1e-5)
    keys = rotate(jnp.tile(key, (7, 1, 1)), 100.0)[:, 0]
    products = np.asarray(at_every_position @ keys.T)
    for offset in range(-6, 7):
        diagonal = np.diagonal(products, offset)
        assert diagonal == pytest.approx(diagonal[0], abs=1e-4)
    assert np.ptp(products[0]) > 0.1


def test_attention_sees_both_ways_along_the_sequence_and_never_across_the_batch() -> None:
    attention = jax.jit(init_attention(KEY, 8, 2).__call__)
    x = jax.random.normal(KEY, (2, 5, 8))
    for position in (0, 4):
        other = attention(x.at[0, position].add(1.0))
        differs = np.asarray(jnp.any(jnp.abs(other - attention(x)) > 1e-6, axis=-1))
        assert differs.tolist() == [[True] * 5, [False] * 5]


@pytest.mark.parametrize(("d_model", "n_heads"), [(8, 3), (6, 2), (8, 0)])
def test_heads_that_cannot_be_rotated_are_refused(d_model: int, n_heads: int) -> None:
    with pytest.raises(ValueError, match=f"{d_model} and {n_heads}"):
        init_attention(KEY, d_model, n_heads)


def test_one_chunk_of_all_sites_is_the_default() -> None:
    assert transformers().chunks == ((tuple(NAMES),),)
    assert logits(transformers(), inputs(1, 3))["layers.1.in"].shape == (1, 3, 5)


def test_sites_of_a_chunk_see_each_other_and_no_other_site() -> None:
    before = inputs(1, 3)
    after = before | {"layers.1.in": before["layers.1.in"] * jnp.array([1.0, -1.0, 2.0, 0.5])}
    assert moved(transformers(), before, after) == NAMES
    assert moved(transformers(BY_LAYER), before, after) == ["layers.1.in", "layers.1.out"]


def test_chunks_of_one_shape_are_one_stack_and_give_the_numbers_they_would_give_alone() -> None:
    ci_fn = transformers((*BY_LAYER[:2], ("layers.2.in",), ("layers.2.out",)))
    assert ci_fn.chunks == (
        (("layers.0.in", "layers.0.out"), ("layers.1.in", "layers.1.out")),
        (("layers.2.in",),),
        (("layers.2.out",),),
    )
    together = logits(ci_fn, inputs(1, 3))
    second = jax.tree.map(lambda leaf: np.asarray(leaf)[1:], ci_fn.stacks[0])
    alone = TransformerCI(stacks=(second,), chunks=(ci_fn.chunks[0][1:],))
    for site, x in logits(alone, inputs(1, 3)).items():
        assert np.asarray(together[site]) == pytest.approx(np.asarray(x), abs=1e-5)


def test_chunks_at_different_positions_are_refused() -> None:
    given = inputs(1, 3) | {"layers.1.in": inputs(1, 2)["layers.1.in"]}
    for chunks in (BY_LAYER, None):
        with pytest.raises(ValueError, match="same positions"):
            transformers(chunks).logits(given, components())


def test_chunks_start_with_weights_of_their_own() -> None:
    stack = transformers(BY_LAYER).stacks[0]
    weights = np.asarray(stack.projector.weight)
    assert weights.shape == (3, 12, 8)
    assert len({row.tobytes() for row in weights}) == 3


@pytest.mark.parametrize(
    ("chunks", "complaint"),
    [
        ([["a", "c"]], r"'c' matches none"),
        ([["a"], ["*"]], r"\['a'\] are held twice"),
        ([["a"]], r"\['b'\] by none"),
        ([["a", "a"], ["b"], []], None),
    ],
)
def test_chunks_hold_each_site_once(chunks: Any, complaint: str | None) -> None:
    if complaint is None:
        chunks = [chunk for chunk in chunks if chunk]
        assert partitioned(["a", "b"], chunks) == (("a",), ("b",))
    else:
        with pytest.raises(ValueError, match=complaint):
            partitioned(["a", "b"], chunks)


def test_a_batch_without_sequences_has_sequences_of_one() -> None:
    given = {site: x[0] for site, x in inputs(1, 3).items()}
    changed = {site: x.at[1].add(1.0) for site, x in given.items()}
    for ci_fn in (transformers(), reverse()):
        before, after = logits(ci_fn, given), logits(ci_fn, changed)
        for site, x in before.items():
            differs = np.any(np.abs(np.asarray(x - after[site])) > 1e-6, axis=-1)
            assert differs.tolist() == [False, True, False]


def test_the_reverse_stream_runs_from_late_sites_to_early_ones() -> None:
    before = inputs(1, 3)
    for layer in range(3):
        changed = f"layers.{layer}.in"
        after = before | {changed: before[changed] + 1.0}
        reached = [name for name in NAMES if int(name.split(".")[1]) <= layer]
        assert moved(reverse(), before, after) == reached


def test_the_reverse_stream_attends_only_where_it_has_heads() -> None:
    before = inputs(1, 3)
    late = "layers.2.out"
    after = before | {late: before[late].at[0, 2].add(1.0)}
    for n_heads, reached in ((0, [False, False, True]), (2, [True, True, True])):
        ci_fn = reverse(n_heads)
        one, other = (logits(ci_fn, given)["layers.0.in"][0] for given in (before, after))
        assert np.any(np.abs(one - other) > 1e-6, axis=-1).tolist() == reached


def test_reverse_blocks_hold_each_site_once() -> None:
    with pytest.raises(ValueError, match="belongs to one"):
        init_reverse(KEY, components(), [NAMES[:-1]], d_model=8)


@pytest.mark.parametrize("make", [partial(transformers, BY_LAYER), reverse])
def test_every_leaf_is_trained_and_none_is_a_table(make: Callable[[], CIFunction]) -> None:
    @jax.jit
    @jax.grad
    def gradient(ci_fn: CIFunction) -> Array:
        found = ci_fn.logits(inputs(1, 3), components())
        return jnp.sum(jnp.stack([jnp.sum(x**2) for x in found.values()]))

    pairs = zip(jax.tree.leaves(make()), jax.tree.leaves(gradient(make())), strict=True)
    for leaf, grad in pairs:
        assert leaf.dtype == jnp.float32
        assert np.asarray(grad).any()
