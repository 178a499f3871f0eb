"""Linear maps: one forward serves as the clean, the capturing and every masked one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components, weight_deltas
from pd_eqx.linear import LinearMap, capture, frozen, masked, recording
from pd_eqx.masks import SiteMask
from pd_eqx.unembedding import logits_of

W = {
    "embed": jnp.arange(12.0).reshape(4, 3) / 7.0,
    "read": jnp.linspace(-1.0, 1.0, 6).reshape(3, 2),
}
TOKENS = jnp.array([[3, 0, 2], [1, 1, 0]])


def forward(tokens: Array, linear: LinearMap = frozen) -> Array:
    """An embedding, a bias and a readout."""
    x = linear("embed", tokens, W["embed"]) + jnp.array([0.1, 0.2, 0.3])
    return linear("read", x, W["read"])


def components() -> Components:
    key = jax.random.key(5)
    shapes = {"embed": (4, 6, 3), "read": (3, 5, 2)}
    V = {
        s: jax.random.normal(jax.random.fold_in(key, n), (n, C)) for s, (n, C, _) in shapes.items()
    }
    U = {
        s: jax.random.normal(jax.random.fold_in(key, C), (C, n)) for s, (_, C, n) in shapes.items()
    }
    return Components(V, U)


def bits(x: Array) -> bytes:
    return np.asarray(x).tobytes()


def test_capturing_changes_no_bit_of_the_output() -> None:
    outputs, site_inputs, site_outputs = capture(forward, TOKENS)
    assert bits(logits_of(outputs)) == bits(forward(TOKENS))
    assert list(site_inputs) == list(site_outputs) == ["embed", "read"]
    assert bits(site_inputs["embed"]) == bits(TOKENS)
    assert bits(site_outputs["embed"]) == bits(W["embed"][TOKENS])
    assert bits(site_outputs["read"]) == bits(site_inputs["read"] @ W["read"])


def test_only_the_sites_asked_for_are_recorded() -> None:
    _, site_inputs, site_outputs = capture(forward, TOKENS, ["read"])
    assert list(site_inputs) == list(site_outputs) == ["read"]


def test_a_site_called_twice_is_refused_by_name() -> None:
    def twice(x: Array, linear: LinearMap = frozen) -> Array:
        square = jnp.eye(3)
        return linear("same", linear("same", x, square), square)

    assert twice(jnp.ones(3)).shape == (3,)
    with pytest.raises(ValueError, match="'same' twice"):
        capture(twice, jnp.ones(3))


def test_a_plain_function_is_a_linear_map_and_can_be_recorded() -> None:
    def doubled(site: str, x: Array, weight: Array, /) -> Array:
        return 2.0 * frozen(site, x, weight)

    seen: dict[str, Array] = {}
    said: dict[str, Array] = {}
    outputs = forward(TOKENS, recording(doubled, seen, said))
    assert bits(said["embed"]) == bits(2.0 * W["embed"][TOKENS])
    assert bits(outputs) == bits(said["read"])


def test_sites_without_a_mask_are_frozen() -> None:
    assert bits(forward(TOKENS, masked(components(), {}))) == bits(forward(TOKENS))


def test_keeping_everything_is_the_target() -> None:
    parts = components()
    masks = {s: SiteMask(jnp.ones(C), jnp.ones(())) for s, C in parts.counts.items()}
    outputs = forward(TOKENS, masked(parts, masks))
    assert np.asarray(outputs) == pytest.approx(np.asarray(forward(TOKENS)), abs=1e-5)


def test_without_a_delta_and_a_mask_only_the_components_are_left() -> None:
    parts = components()
    outputs = masked(parts, {"embed": SiteMask(None)})("embed", TOKENS, W["embed"])
    expected = (parts.V["embed"] @ parts.U["embed"])[TOKENS]
    assert np.asarray(outputs) == pytest.approx(np.asarray(expected), abs=1e-5)


def test_the_delta_is_scaled_by_its_own_mask_at_each_position() -> None:
    parts = components()
    x = jax.random.normal(jax.random.key(0), (2, 4, 3))
    mask = jax.random.uniform(jax.random.key(1), (2, 4, 5))
    delta = jax.random.uniform(jax.random.key(2), (2, 4))
    found = masked(parts, {"read": SiteMask(mask, delta)})("read", x, W["read"])
    left = weight_deltas(parts, W)["read"]
    expected = ((x @ parts.V["read"]) * mask) @ parts.U["read"] + delta[..., None] * (x @ left)
    assert np.asarray(found) == pytest.approx(np.asarray(expected), abs=1e-5)


@pytest.mark.parametrize("delta", [None, jnp.full((2, 3), 0.7)])
def test_positions_that_are_not_routed_keep_the_bits_of_the_frozen_output(delta: Any) -> None:
    route = jnp.array([[True, False, True], [False, False, True]])
    masks = {"embed": SiteMask(jnp.zeros(6), delta, route)}
    found = masked(components(), masks)("embed", TOKENS, W["embed"])
    clean = frozen("embed", TOKENS, W["embed"])
    everywhere = masked(components(), {"embed": SiteMask(jnp.zeros(6), delta)})
    outputs = everywhere("embed", TOKENS, W["embed"])
    assert bits(found[~route]) == bits(clean[~route])
    assert bits(found[route]) == bits(outputs[route])
    assert bits(found[route]) != bits(clean[route])


def test_no_gradient_reaches_components_where_nothing_is_routed() -> None:
    def value(parts: Components, route: Array) -> Array:
        masks = {"embed": SiteMask(jnp.full(6, 0.5), None, route)}
        return jnp.sum(masked(parts, masks)("embed", TOKENS, W["embed"]) ** 2)

    nowhere = jax.grad(value)(components(), jnp.zeros((2, 3), bool))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(nowhere))
    somewhere = jax.grad(value)(components(), jnp.array([[True, False, False], [False] * 3]))
    rows = np.asarray(somewhere.V["embed"]).any(axis=1)
    assert rows.tolist() == [False, False, False, True]


def shapes_in(jaxpr: Any) -> set[tuple[int, ...]]:
    """The shapes of all that a program computes, inside its loops and calls too."""
    found = {v.aval.shape for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= shapes_in(inner)
    return found


def test_sites_that_do_not_route_make_nothing_of_the_size_of_their_components() -> None:
    masks = {"read": SiteMask(jnp.full((2, 3, 5), 0.5), jnp.full((2, 3), 0.5))}

    def loss(components: Components, masks: Any) -> Array:
        return jnp.sum(forward(TOKENS, masked(components, masks)) ** 2)

    both = masks | {"embed": SiteMask(jnp.full((2, 3, 6), 0.5))}
    made = [shapes_in(jax.make_jaxpr(jax.grad(loss))(components(), m).jaxpr) for m in (both, masks)]
    assert (2, 3, 6) in made[0], "it would show"
    assert (2, 3, 5) in made[1]
    assert (2, 3, 6) not in made[1]
