"""Adversaries: scopes, fresh ascents, and what a persistent one keeps."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from pd_eqx.adversary import (
    AdamAscent,
    Ascent,
    Clamp,
    PersistentAdversary,
    ProjectedGradient,
    Scope,
    Sigmoid,
    SignAscent,
    Sources,
    ascend,
)
from pd_eqx.masks import SiteSource
from pd_eqx.schedule import constant

KEY = jax.random.key(5)
LEAD = (4, 3)
SCOPES = {"c": Scope(), "bc": Scope(None), "sc": Scope(1, True), "bsc": Scope(None, True)}


def importances() -> dict[str, Array]:
    ramp = jnp.linspace(0.0, 1.0, 4 * 3 * 5).reshape(4, 3, 5)
    return {"a": ramp, "b": ramp[..., :2] ** 2}


def loss(sources: Mapping[str, SiteSource]) -> Array:
    """Climbed by raising `a` at the first position, lowering it at the last, and raising `b`'s delta."""
    a, b = sources["a"], sources["b"]
    assert a.component is not None
    weights = jnp.broadcast_to(a.component, (*LEAD, 5)) * jnp.linspace(2.0, -1.0, 12).reshape(
        4, 3, 1
    )
    rest = 0.0 if b.delta is None else jnp.mean(jnp.broadcast_to(b.delta, LEAD))
    return jnp.mean(weights) + rest


@pytest.mark.parametrize(
    ("letters", "shape"), [("c", (1, 1)), ("bc", (4, 1)), ("sc", (1, 3)), ("bsc", (4, 3))]
)
def test_a_scope_keeps_an_axis_for_each_of_its_letters(
    letters: str, shape: tuple[int, int]
) -> None:
    assert SCOPES[letters].shape(LEAD) == shape
    assert SCOPES[letters].shape(LEAD[:1]) == shape[:1]
    assert SCOPES[letters].shape(()) == ()


def test_repeated_sources_are_tiled_along_the_batch() -> None:
    scope = Scope(2, True)
    raw = jnp.arange(2 * 3 * 5.0).reshape(2, 3, 5)
    spread = scope.spread({"a": SiteSource(raw, raw[..., 0])}, LEAD)["a"]
    assert spread.component is not None
    assert spread.delta is not None
    for element in range(4):
        assert (spread.component[element] == raw[element % 2]).all()
        assert (spread.delta[element] == raw[element % 2, :, 0]).all()


def test_a_batch_that_is_no_multiple_of_repeated_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="3 sources cannot be repeated along a batch of 4"):
        Scope(3).shape(LEAD)
    with pytest.raises(ValueError, match="1 source or more"):
        Scope(0)


@pytest.mark.parametrize("letters", SCOPES)
def test_a_fresh_adversary_climbs_and_stays_in_the_unit_interval(letters: str) -> None:
    def reached(steps: int) -> Sources:
        source = ProjectedGradient(steps, 0.3, scope=SCOPES[letters])
        return source.draw(KEY, importances(), loss)

    values = [float(loss(reached(steps))) for steps in (0, 1, 4)]
    assert values[0] < values[1] < values[2]
    for leaf in jax.tree.leaves(reached(4)):
        assert float(jnp.min(leaf)) >= 0.0
        assert float(jnp.max(leaf)) <= 1.0
    delta = reached(4)["b"].delta
    assert delta is not None
    assert (delta == 1.0).all()


def test_steps_add_up_and_a_source_without_gradient_stays() -> None:
    start = ProjectedGradient(0, 0.3).draw(KEY, importances(), loss)
    once = start
    for _ in range(3):
        once = ascend(once, loss, 1, 0.125)
    thrice = ascend(start, loss, 3, 0.125)
    for one, three in zip(jax.tree.leaves(once), jax.tree.leaves(thrice), strict=True):
        assert one.tobytes() == three.tobytes()
    # The loss does not read the components of `b`.
    assert thrice["b"].component.tobytes() == start["b"].component.tobytes()  # pyright: ignore[reportOptionalMemberAccess]
    assert thrice["a"].component.tobytes() != start["a"].component.tobytes()  # pyright: ignore[reportOptionalMemberAccess]


def test_a_fresh_adversary_starts_where_it_is_told() -> None:
    ones = ProjectedGradient(0, 0.1, "ones", delta=False).draw(KEY, importances(), loss)
    zeros = ProjectedGradient(0, 0.1, "zeros", Scope(2)).draw(KEY, importances(), loss)
    drawn = ProjectedGradient(0, 0.1).draw(KEY, importances(), loss)
    assert {float(x) for leaf in jax.tree.leaves(ones) for x in jnp.ravel(leaf)} == {1.0}
    assert ones["a"].delta is None
    assert {float(x) for leaf in jax.tree.leaves(zeros) for x in jnp.ravel(leaf)} == {0.0}
    assert zeros["a"].component.shape == (4, 1, 5)  # pyright: ignore[reportOptionalMemberAccess]
    assert (
        len({float(x) for leaf in jax.tree.leaves(drawn) for x in jnp.ravel(leaf)}) == 5 + 1 + 2 + 1
    )


def test_nothing_is_differentiated_through_an_ascent() -> None:
    def total(sources: Mapping[str, SiteSource]) -> Array:
        component = sources["a"].component
        assert component is not None
        return jnp.sum(component)

    def end(scale: Array) -> Array:
        return total(ascend({"a": SiteSource(scale * 0.5)}, total, 2, 0.1))

    assert float(jax.grad(end)(jnp.float32(0.4))) == 0.0


ASCENTS: list[Ascent] = [AdamAscent(constant(0.1)), SignAscent(constant(0.1))]


@pytest.mark.parametrize("projection", [Clamp(), Sigmoid()])
@pytest.mark.parametrize("ascent", ASCENTS)
def test_a_persistent_adversary_climbs_from_step_to_step(
    ascent: Ascent, projection: Clamp | Sigmoid
) -> None:
    adversary = PersistentAdversary(ascent, Scope(2, True), projection=projection)
    state = adversary.init(KEY, importances())

    def value(raw: Sources) -> Array:
        return loss(adversary.sources(raw, importances()))

    values: list[float] = []
    for step in range(8):
        found, grads = jax.value_and_grad(value)(adversary.raw(state))
        values.append(float(found))
        state = adversary.ascended(state, grads, jnp.int32(step), 10)
    assert values == sorted(values)
    assert values[-1] > values[0]
    for source in jax.tree.leaves(adversary.sources(adversary.raw(state), importances())):
        assert float(jnp.min(source)) >= 0.0
        assert float(jnp.max(source)) <= 1.0


def test_warm_ups_count_for_adam_and_each_has_its_number() -> None:
    adversary = PersistentAdversary(AdamAscent(constant(0.1)), warmups=3)
    state = adversary.init(KEY, importances())
    seen: list[Array] = []

    def value(raw: Sources, index: Array) -> Array:
        seen.append(index)
        return (1.0 + index) * loss(adversary.sources(raw, importances()))

    warmed = adversary.warmed_up(state, value, jnp.int32(0), 10)
    assert int(warmed.opt_state.count) == 3
    by_hand = state
    for index in range(3):
        grads = jax.grad(value)(adversary.raw(by_hand), jnp.int32(index))
        by_hand = adversary.ascended(by_hand, grads, jnp.int32(0), 10)
    for one, other in zip(jax.tree.leaves(warmed), jax.tree.leaves(by_hand), strict=True):
        assert jnp.allclose(one, other, rtol=1e-6)


def test_stored_in_bfloat16_and_moved_in_float32() -> None:
    adversary = PersistentAdversary(AdamAscent(constant(0.1)), dtype=jnp.bfloat16)
    state = adversary.init(KEY, importances())
    raw = adversary.raw(state)
    assert {leaf.dtype for leaf in jax.tree.leaves(raw)} == {jnp.dtype("float32")}
    grads = jax.grad(lambda raw: loss(adversary.sources(raw, importances())))(raw)
    moved = adversary.ascended(state, grads, jnp.int32(0), 10)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(moved), strict=True):
        assert before.dtype == after.dtype
    stored = {leaf.dtype for leaf in jax.tree.leaves((moved.sources, moved.opt_state.mu))}
    assert stored == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(moved.opt_state.nu)} == {jnp.dtype("float32")}


def test_a_batch_of_another_shape_is_refused_with_the_site_named() -> None:
    adversary = PersistentAdversary(SignAscent(constant(0.1)), Scope(None, True))
    raw = adversary.raw(adversary.init(KEY, importances()))
    smaller = {site: ci[:3] for site, ci in importances().items()}
    with pytest.raises(ValueError, match=r"site 'a' have shape \(4, 3, 5\).*needs \(3, 3, 5\)"):
        adversary.sources(raw, smaller)


def test_sources_shared_along_the_batch_serve_a_batch_of_any_size() -> None:
    adversary = PersistentAdversary(SignAscent(constant(0.1)), Scope(1, True))
    raw = adversary.raw(adversary.init(KEY, importances()))
    smaller = {site: ci[:3] for site, ci in importances().items()}
    assert adversary.sources(raw, smaller).keys() == raw.keys()


def test_an_adversary_without_a_delta_channel_has_no_source_for_it() -> None:
    adversary = PersistentAdversary(SignAscent(constant(0.1)), delta=False)
    assert all(s.delta is None for s in adversary.init(KEY, importances()).sources.values())
    with pytest.raises(ValueError, match="0 warm-up ascents or more, found -1"):
        PersistentAdversary(SignAscent(constant(0.1)), warmups=-1)
