"""Importance functions by MLP: who reads what, and what they refuse."""

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.ci.base import CausalImportances, CIFunction
from pd_eqx.ci.mlp import (
    LayerwiseCI,
    init_component_mlps,
    init_global_mlp,
    init_mlp,
    init_shared_mlps,
    init_vector_mlps,
)
from pd_eqx.ci.squashing import Hard
from pd_eqx.components import Components
from pd_eqx.sites import Site

SITES = (Site("b", 4, 3), Site("a", 3, 5))
COUNTS = {"b": 6, "a": 2}
KEY = jax.random.key(0)
INITS: dict[str, Callable[..., CIFunction]] = {
    "component": init_component_mlps,
    "vector": init_vector_mlps,
    "shared": init_shared_mlps,
    "global": init_global_mlp,
}


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
def made(kind: str, *hidden: int) -> CIFunction:
    return jax.jit(partial(INITS[kind], hidden=hidden))(KEY, components())


@jax.jit
def importances(
    ci_fn: CIFunction,
    given: dict[str, Array],
    parts: Components,
    noise: dict[str, Array] | None = None,
) -> CausalImportances:
    return ci_fn(given, parts, noise)


def logits(kind: str, given: dict[str, Array]) -> dict[str, Array]:
    return importances(made(kind, 5), given, components()).logits


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
@pytest.mark.parametrize("kind", list(INITS))
def test_importances_have_a_column_for_each_component(kind: str, hidden: tuple[int, ...]) -> None:
    ci = jax.eval_shape(made(kind, *hidden).__call__, inputs(2, 3), components())
    for by_site in (ci.lower, ci.upper, ci.logits):
        assert {site: x.shape for site, x in by_site.items()} == {"a": (2, 3, 2), "b": (2, 3, 6)}


@pytest.mark.parametrize("kind", list(INITS))
def test_positions_do_not_see_each_other(kind: str) -> None:
    given = inputs(4)
    after = logits(kind, {site: x.at[0].add(1.0) for site, x in given.items()})
    for site, x in logits(kind, given).items():
        differs = np.any(np.abs(np.asarray(x - after[site])) > 1e-6, axis=-1)
        assert differs.tolist() == [True, False, False, False]


def changed(kind: str, site: str) -> list[str]:
    """The sites whose logits change with the input of one site."""
    before = logits(kind, inputs(4))
    after = logits(kind, inputs(4) | {site: inputs(4)[site] + 1.0})
    return [s for s in before if not np.allclose(before[s], after[s])]


def test_only_the_global_function_looks_across_sites() -> None:
    for kind in ("component", "vector", "shared"):
        assert changed(kind, "a") == ["a"]
    assert sorted(changed("global", "a")) == ["a", "b"]


@pytest.mark.parametrize("kind", list(INITS))
def test_only_the_per_component_function_reads_v(kind: str) -> None:
    @jax.jit
    @jax.grad
    def gradient(parts: Components) -> Array:
        return jnp.sum(made(kind, 5).logits(inputs(4), parts)["b"])

    grads = gradient(components())
    assert np.asarray(grads.V["b"]).any() == (kind == "component")
    assert not np.asarray(grads.U["b"]).any()


def test_a_component_s_logit_is_its_own_activation_s_alone() -> None:
    V = components().V["b"].at[:, 4].add(1.0)
    moved = Components(components().V | {"b": V}, components().U)
    before = importances(made("component", 5), inputs(4), components()).logits["b"]
    after = importances(made("component", 5), inputs(4), moved).logits["b"]
    assert np.asarray(before != after).any(axis=0).tolist() == [i == 4 for i in range(6)]


def test_a_per_component_function_reads_an_embedding() -> None:
    tokens = jnp.array([[3, 0], [1, 1]])
    given = inputs(2, 2) | {"b": tokens}
    looked_up = importances(made("component", 5), given, components())
    one_hot = given | {"b": jnp.eye(4)[tokens]}
    expected = importances(made("component", 5), one_hot, components())
    assert np.asarray(looked_up.lower["b"]) == pytest.approx(np.asarray(expected.lower["b"]))


@pytest.mark.parametrize("kind", ["vector", "shared", "global"])
def test_other_functions_refuse_an_embedding_by_name(kind: str) -> None:
    ci_fn = made(kind, 5)
    with pytest.raises(ValueError, match=r"'b'.*integers"):
        ci_fn(inputs(2) | {"b": jnp.array([3, 0])}, components())


def test_the_global_function_refuses_sites_at_different_positions() -> None:
    ci_fn = made("global", 5)
    with pytest.raises(ValueError, match="same positions"):
        ci_fn(inputs(2) | {"b": inputs(3)["b"]}, components())


def test_a_site_without_an_input_is_named() -> None:
    ci_fn = made("shared", 5)
    with pytest.raises(ValueError, match=r"\['a'\]"):
        ci_fn({"b": inputs(2)["b"]}, components())


def test_a_site_without_a_function_is_named() -> None:
    ci_fn = made("shared", 5)
    assert isinstance(ci_fn, LayerwiseCI)
    without = LayerwiseCI(sites={"b": ci_fn.sites["b"]})
    with pytest.raises(ValueError, match=r"importances of \['b'\]"):
        without(inputs(2), components())


def test_sites_that_are_not_decomposed_are_ignored() -> None:
    ci_fn = made("global", 5)
    more = inputs(2) | {"c": jnp.ones((2, 9))}
    assert list(jax.eval_shape(ci_fn.__call__, more, components()).lower) == ["a", "b"]


def test_noise_lowers_only_what_feeds_the_masks() -> None:
    ci_fn = made("shared", 5)
    plain = importances(ci_fn, inputs(4), components())
    noise = {site: jnp.full(x.shape, 0.5) for site, x in plain.logits.items()}
    noised = importances(ci_fn, inputs(4), components(), noise)
    for site, logits in plain.logits.items():
        expected = np.clip(1.05 * np.asarray(logits) - 0.025, 0.0, 1.0)
        assert np.asarray(noised.lower[site]) == pytest.approx(expected, abs=1e-6)
        assert np.array_equal(noised.upper[site], plain.upper[site])
        assert np.array_equal(noised.logits[site], logits)


def test_the_squashing_can_be_chosen() -> None:
    ci_fn = init_shared_mlps(KEY, components(), [], squashing=Hard())
    ci = ci_fn({site: 9.0 * x for site, x in inputs(2).items()}, components())
    assert max(float(jnp.max(x)) for x in ci.upper.values()) == 1.0


@pytest.mark.parametrize("kind", list(INITS))
def test_every_leaf_is_a_trained_array(kind: str) -> None:
    ci_fn = made(kind, 5)

    @jax.jit
    @jax.grad
    def gradient(ci_fn: CIFunction) -> Array:
        found = ci_fn.logits(inputs(4), components())
        return jnp.sum(jnp.stack([jnp.sum(x**2) for x in found.values()]))

    pairs = zip(jax.tree.leaves(ci_fn), jax.tree.leaves(gradient(ci_fn)), strict=True)
    for leaf, grad in pairs:
        assert leaf.dtype == jnp.float32
        assert np.asarray(grad).any()


@pytest.mark.parametrize("widths", [[3], [], [3, 0, 2]])
def test_widths_that_make_no_layer_are_refused(widths: list[int]) -> None:
    with pytest.raises(ValueError, match="widths"):
        init_mlp(KEY, widths)
