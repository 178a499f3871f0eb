"""Components start as published, and each site's draw is its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.components import (
    Components,
    component_activations,
    init_components,
    weight_deltas,
)
from pd_eqx.sites import Site

SITES = (Site("wide", 400, 30), Site("narrow", 25, 300))
KEY = jax.random.key(3)


def test_shapes_and_counts() -> None:
    components = init_components(KEY, SITES, {"narrow": 7, "wide": 5})
    assert components.counts == {"narrow": 7, "wide": 5}
    assert {site: V.shape for site, V in components.V.items()} == {
        "narrow": (25, 7),
        "wide": (400, 5),
    }
    assert {site: U.shape for site, U in components.U.items()} == {
        "narrow": (7, 300),
        "wide": (5, 30),
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(components)} == {jnp.dtype(jnp.float32)}


def test_variances_are_one_over_the_width_that_is_summed_over() -> None:
    components = init_components(KEY, SITES, {"wide": 100, "narrow": 64})
    deviations = {
        "V wide": (components.V["wide"], 400),
        "U wide": (components.U["wide"], 100),
        "V narrow": (components.V["narrow"], 25),
        "U narrow": (components.U["narrow"], 64),
    }
    for name, (leaf, width) in deviations.items():
        values = np.asarray(leaf)
        assert values.std() * width**0.5 == pytest.approx(1.0, rel=0.05), name
        assert abs(values.mean()) * width**0.5 < 0.08, name


def test_the_order_of_sites_and_counts_does_not_matter() -> None:
    one = init_components(KEY, SITES, {"wide": 5, "narrow": 7})
    other = init_components(KEY, SITES[::-1], {"narrow": 7, "wide": 5})
    for site in ("wide", "narrow"):
        assert np.asarray(one.V[site]).tobytes() == np.asarray(other.V[site]).tobytes()
        assert np.asarray(one.U[site]).tobytes() == np.asarray(other.U[site]).tobytes()


def test_sites_of_one_shape_get_draws_of_their_own() -> None:
    twins = (Site("a", 4, 4), Site("b", 4, 4))
    components = init_components(KEY, twins, {"a": 4, "b": 4})
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(components)]
    assert len(set(leaves)) == 4


def test_deltas_are_what_the_components_leave() -> None:
    components = Components(
        {"a": jnp.array([[1.0], [2.0]])}, {"a": jnp.array([[10.0, 20.0, 30.0]])}
    )
    weights = {"a": jnp.arange(6.0).reshape(2, 3), "not decomposed": jnp.ones((1, 1))}
    deltas = weight_deltas(components, weights)
    assert list(deltas) == ["a"]
    assert deltas["a"].tolist() == [[-10.0, -19.0, -28.0], [-17.0, -36.0, -55.0]]


def test_integers_look_up_rows() -> None:
    V = jnp.arange(12.0).reshape(4, 3)
    tokens = jnp.array([[3, 0], [1, 1]])
    one_hot = jax.nn.one_hot(tokens, 4)
    assert jnp.array_equal(component_activations(tokens, V), component_activations(one_hot, V))


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [
        ({"wide": 3, "wild": 3}, r"\['wild'\].*\['wide', 'narrow'\]"),
        ({"wide": 0}, "1 or more"),
        ({}, "no site to decompose"),
    ],
)
def test_impossible_counts_are_refused(counts: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        init_components(KEY, SITES, counts)
