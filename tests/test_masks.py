"""Masks, sources and routings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components
from pd_eqx.linear import masked
from pd_eqx.masks import (
    AllSites,
    BinomialSource,
    ConstantSource,
    MaskSource,
    OneSiteAtATime,
    SiteSource,
    StaticProbability,
    StochasticSource,
    UniformSubset,
    Unmasked,
    coarse_uniform,
    interpolate,
)

KEY = jax.random.key(3)
SITES = ("a", "b", "c")


def importances(dtype: jnp.dtype | None = None) -> dict[str, Array]:
    ramp = jnp.linspace(0.0, 1.0, 4 * 3 * 5, dtype=dtype).reshape(4, 3, 5)
    return {"a": ramp, "b": ramp[..., :2] ** 2}


def no_loss(_: object) -> Array:
    raise AssertionError("only adversaries climb the loss")


def test_a_mask_is_one_where_importance_is_and_its_source_where_importance_is_zero() -> None:
    source = SiteSource(jnp.float32(0.25), jnp.float32(0.75))
    ci = {"a": jnp.array([0.0, 0.5, 1.0])}
    mask = interpolate(ci, {"a": source}, {"a": None})["a"]
    assert mask.component is not None
    assert mask.component.tolist() == [0.25, 0.625, 1.0]
    assert mask.delta == 0.75


def test_masks_take_the_dtype_of_the_importances() -> None:
    source = SiteSource(jnp.full((4, 3, 5), 0.3), jnp.full((4, 3), 0.6))
    mask = interpolate(importances(jnp.dtype("bfloat16")), {"a": source}, {"a": None})["a"]
    assert mask.component is not None
    assert mask.delta is not None
    assert (mask.component.dtype, mask.delta.dtype) == (jnp.bfloat16, jnp.bfloat16)


def test_a_route_to_an_unknown_site_is_named() -> None:
    with pytest.raises(KeyError, match="'elsewhere' is routed"):
        interpolate(
            importances(), Unmasked().draw(KEY, importances(), no_loss), {"elsewhere": None}
        )


@pytest.mark.parametrize("source", [StochasticSource(), BinomialSource()])
def test_stochastic_sources_differ_at_each_position_and_lie_in_the_unit_interval(
    source: MaskSource,
) -> None:
    big = {"a": jnp.zeros((200, 3, 5)), "b": jnp.zeros((200, 3, 5))}
    drawn = source.draw(KEY, big, no_loss)
    for site in drawn.values():
        assert site.component is not None
        assert site.delta is not None
        assert site.component.shape == (200, 3, 5)
        assert site.delta.shape == (200, 3)
        values = set(jnp.ravel(site.component).tolist())
        assert values == {0.0, 1.0} if isinstance(source, BinomialSource) else len(values) > 2900
        assert 0.0 <= min(values) <= max(values) <= 1.0
        assert abs(float(jnp.mean(site.component)) - 0.5) < 0.05
        # The delta's source stays uniform under both.
        assert len(set(jnp.ravel(site.delta).tolist())) > 590
    a, b = drawn["a"].component, drawn["b"].component
    assert a is not None
    assert b is not None
    assert (a != b).any()


@pytest.mark.parametrize("kind", [StochasticSource, BinomialSource])
def test_without_a_delta_channel_no_delta_is_drawn(
    kind: type[StochasticSource] | type[BinomialSource],
) -> None:
    assert kind(delta=False).draw(KEY, importances(), no_loss)["a"].delta is None


def test_a_constant_of_zero_masks_by_importance() -> None:
    sources = ConstantSource(0.0).draw(KEY, importances(), no_loss)
    masks = interpolate(importances(), sources, dict.fromkeys(importances()))
    for site, ci in importances().items():
        component = masks[site].component
        assert component is not None
        assert component.tolist() == ci.tolist()
        assert masks[site].delta is None


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_constants_and_probabilities_outside_the_unit_interval_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"0 … 1, found the constant {value}"):
        ConstantSource(value)
    with pytest.raises(ValueError, match=rf"0 … 1, found {value}"):
        StaticProbability(value)


def test_unmasked_makes_no_mask_and_reads_no_importance() -> None:
    masks = interpolate(
        importances(), Unmasked().draw(KEY, importances(), no_loss), dict.fromkeys(importances())
    )
    assert jax.tree.leaves(masks) == []
    components = Components({"a": jnp.ones((3, 5))}, {"a": jnp.ones((5, 2))})

    def products(linear: object) -> int:
        jaxpr = jax.make_jaxpr(lambda x: linear("a", x, jnp.ones((3, 2))))(jnp.ones((4, 3, 3)))  # pyright: ignore[reportCallIssue]
        return str(jaxpr).count(" mul ")

    ones = interpolate(importances(), {"a": SiteSource(jnp.ones((4, 3, 5)))}, {"a": None})
    assert products(masked(components, {"a": masks["a"]})) == 0
    assert products(masked(components, ones)) == 1


def test_each_pass_of_one_site_at_a_time_masks_that_site_alone() -> None:
    passes = OneSiteAtATime().passes(KEY, SITES, (4,))
    assert passes == [{"a": None}, {"b": None}, {"c": None}]
    assert AllSites().passes(KEY, SITES, (4,)) == [{"a": None, "b": None, "c": None}]


def test_a_uniform_subset_is_never_empty_and_differs_from_position_to_position() -> None:
    (routes,) = UniformSubset().passes(KEY, SITES, (50, 4))
    routed = jnp.stack([jnp.asarray(routes[site]) for site in SITES])
    counts = jnp.sum(routed, axis=0)
    assert set(jnp.ravel(counts).tolist()) == {1, 2, 3}
    assert routed.shape == (3, 50, 4)


def test_static_probability_routes_each_site_by_itself() -> None:
    (routes,) = StaticProbability(0.25).passes(KEY, SITES, (4000,))
    shares = [float(jnp.mean(jnp.asarray(routes[site]))) for site in SITES]
    assert all(abs(share - 0.25) < 0.03 for share in shares)
    both = jnp.mean(jnp.asarray(routes["a"]) & jnp.asarray(routes["b"]))
    assert abs(float(both) - 0.0625) < 0.02


def test_coarse_draws_are_uniform_and_independent_of_their_neighbours() -> None:
    drawn = np.asarray(coarse_uniform(jax.random.key(3), (4000, 5), jnp.float32))
    assert drawn.shape == (4000, 5)
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.03)
    np.testing.assert_allclose(drawn.var(axis=0), 1 / 12, atol=0.01)
    # Two draws share a word of random bits: they must not show it.
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(5), atol=0.07)
