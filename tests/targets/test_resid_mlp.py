import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components, init_components
from pd_eqx.linear import capture, frozen, masked
from pd_eqx.masks import SiteMask
from pd_eqx.sites import Site
from pd_eqx.targets.resid_mlp import ResidMLP, ResidMLPTraining
from pd_eqx.targets.training import Progress, abstract_target, train_target

SMALL = ResidMLPTraining(
    n_features=10,
    d_embed=60,
    n_neurons=8,
    probability=0.05,
    batch_size=512,
    steps=600,
    learning_rate=1e-2,
    max_loss=0.6,
    min_response=0.2,
    updates_per_dispatch=300,
)


def drawn(n_layers: int, **changes: object) -> ResidMLP:
    """An untrained target, its biases not zero."""
    training = dataclasses.replace(SMALL, n_layers=n_layers, **changes)
    target = training.target(*jax.jit(training.init)(jax.random.key(3)))
    bumps = jax.tree.map(lambda leaf: 0.1 * jnp.cos(jnp.arange(leaf.size)), target)
    return dataclasses.replace(target, in_bias=bumps.in_bias, out_bias=bumps.out_bias)


def test_sites_are_named_layer_by_layer_in_the_order_of_the_forward_pass() -> None:
    target = drawn(2)
    assert target.sites() == (
        Site("layers.0.mlp_in", 60, 4),
        Site("layers.0.mlp_out", 4, 60),
        Site("layers.1.mlp_in", 60, 4),
        Site("layers.1.mlp_out", 4, 60),
    )
    _, site_inputs, _ = capture(target, jnp.ones((3, 10)))
    assert list(site_inputs) == [site.name for site in target.sites()]


@pytest.mark.parametrize("n_layers", [1, 2, 4])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (False, True), (True, True)])
def test_a_map_that_knows_no_streams_sees_vectors_and_the_network_is_the_same(
    n_layers: int, biases: tuple[bool, bool]
) -> None:
    target = drawn(n_layers, in_bias=biases[0], out_bias=biases[1], activation="gelu")
    assert (len(target.in_bias), len(target.out_bias)) == (
        n_layers * biases[0],
        n_layers * biases[1],
    )
    inputs = jax.random.normal(jax.random.key(0), (5, 10))
    shapes: dict[str, tuple[int, ...]] = {}

    def plain(site: str, x: Array, weight: Array, /) -> Array:
        shapes[site] = jnp.asarray(x).shape
        return x @ weight

    np.testing.assert_allclose(target(inputs, plain), target(inputs), rtol=2e-5, atol=2e-6)
    assert shapes == {site.name: (5, site.d_in) for site in target.sites()}


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("routed", [True, False])
def test_a_masked_forward_is_that_of_vectors_with_its_gradients(delta: bool, routed: bool) -> None:
    target = drawn(2, out_bias=True)
    counts = {site.name: 6 for site in target.sites()}
    components = init_components(jax.random.key(1), target.sites(), counts)
    keys = iter(jax.random.split(jax.random.key(2), 12))
    masks = {
        site: SiteMask(
            jax.random.uniform(next(keys), (5, 6)),
            jax.random.uniform(next(keys), (5,)) if delta else None,
            jax.random.bernoulli(next(keys), 0.5, (5,)) if routed else None,
        )
        for site in counts
    }
    inputs = jax.random.normal(jax.random.key(0), (5, 10))

    def loss(components: Components, plain: bool) -> Array:
        linear = masked(components, masks)

        def by_vectors(site: str, x: Array, weight: Array, /) -> Array:
            return linear(site, x, weight)

        return jnp.sum(jnp.cos(target(inputs, by_vectors if plain else linear)))

    apart = jax.value_and_grad(loss)(components, False)
    formed = jax.value_and_grad(loss)(components, True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), apart, formed)


def test_a_step_never_forms_the_stream() -> None:
    target = drawn(1)
    inputs = jnp.ones((2000, 10))

    def output(linear: Any) -> str:
        return jax.jit(lambda inputs: target(inputs, linear)).lower(inputs).as_text()

    assert "2000x60x" not in output(frozen)
    assert "2000x60x" in output(lambda site, x, weight: x @ weight)


def test_a_trained_target_computes_every_feature() -> None:
    progress: list[Progress] = []
    target = train_target(jax.random.key(0), SMALL, progress.append)
    assert progress[-1].step == 600
    assert progress[-1].loss < progress[0].loss
    assert jnp.all(SMALL.responses(target, jnp.ones(10)) > 0.2)
    norms = jnp.linalg.norm(target.embedding, axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-6)
    assert jnp.array_equal(target.unembedding, target.embedding.T)


def test_the_abstract_target_has_the_shapes_of_the_trained_one() -> None:
    training = dataclasses.replace(SMALL, in_bias=True)
    trained = training.target(*training.init(jax.random.key(0)))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), trained)
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, shapes, abstract_target(training)))


def test_a_bad_target_is_told_by_its_loss_and_by_the_features_that_it_skips() -> None:
    trained, fixed = jax.jit(SMALL.init)(jax.random.key(0))
    idle = SMALL.target(jax.tree.map(jnp.zeros_like, trained), fixed)
    of_loss, of_features = SMALL.problems(idle, fixed, jax.random.key(1))
    assert re.search(
        r"is 1\.00 of the .* that it has without neurons, expected at most 0\.6", of_loss
    )
    assert of_features.startswith("features hardly computed: 0 (0.00), 1 (0.00)")
    assert "expected at least 0.2 of" in of_features
    broken = dataclasses.replace(idle, mlp_out=(jnp.full((8, 60), jnp.nan),))
    (problem,) = SMALL.problems(broken, fixed, jax.random.key(1))
    assert "not finite, so training diverged" in problem


def test_each_feature_is_asked_by_itself() -> None:
    """Two neurons a feature make a perfect absolute value; without those of feature 2 only that is missed."""
    training = ResidMLPTraining(3, 3, 6, label="abs", coefficient_low=2.0, coefficient_high=2.0)
    signed = jnp.concatenate([jnp.eye(3), -jnp.eye(3)], axis=1)
    back = 2.0 * jnp.abs(signed.T)
    target = ResidMLP(
        jnp.eye(3), jnp.eye(3), (signed,), (back - jnp.eye(6, 3) + jnp.eye(6, 3, -3),)
    )
    coefficients = jnp.full(3, 2.0)
    np.testing.assert_allclose(training.responses(target, coefficients), [1.0, 1.0, 1.0])
    deaf = dataclasses.replace(target, mlp_in=(signed.at[2].set(0.0),))
    np.testing.assert_allclose(training.responses(deaf, coefficients), [1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"n_features": 0}, "n_features is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"n_neurons": 8, "n_layers": 3}, "3 layers cannot share evenly; try 6"),
        ({"coefficient_low": 2.0}, "the first must not be larger"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(
    changes: dict[str, float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SMALL, **changes)


def test_layers_that_do_not_belong_together_are_refused() -> None:
    target = drawn(2, in_bias=True)
    with pytest.raises(ValueError, match=r"with 2 matrices mlp_in.*in_bias \(1\)"):
        dataclasses.replace(target, in_bias=target.in_bias[:1])


@pytest.mark.slow
@pytest.mark.parametrize(("n_layers", "n_neurons"), [(1, 50), (2, 50), (3, 51)])
def test_the_published_sizes_end_in_a_good_target(n_layers: int, n_neurons: int) -> None:
    progress: list[Progress] = []
    train_target(
        jax.random.key(5), ResidMLPTraining(100, 1000, n_neurons, n_layers), progress.append
    )
    assert progress[-1].attempt == 0
