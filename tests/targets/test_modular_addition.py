import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.data.toy_tokens import modular_rows, modular_sums
from pd_eqx.linear import capture, frozen
from pd_eqx.sites import Site
from pd_eqx.targets.modular_addition import ModularAddition, ModularAdditionTraining
from pd_eqx.targets.training import BadTargetError, Progress, abstract_target, train_target

SMALL = ModularAdditionTraining(
    modulus=11, width=32, heads=2, mlp_width=64, shown=0.8, steps=50, updates_per_dispatch=25
)


def drawn() -> ModularAddition:
    return SMALL.target(*jax.jit(SMALL.init)(jax.random.key(0)))


def test_sites_are_those_of_one_layer_at_all_three_positions() -> None:
    target = drawn()
    assert target.sites() == (
        Site("layers.0.attn.q", 32, 32),
        Site("layers.0.attn.k", 32, 32),
        Site("layers.0.attn.v", 32, 32),
        Site("layers.0.attn.o", 32, 32),
        Site("layers.0.mlp.up", 32, 64),
        Site("layers.0.mlp.down", 64, 32),
    )
    assert {name: W.shape for name, W in target.weights().items()} == {
        site.name: (site.d_in, site.d_out) for site in target.sites()
    }
    rows = SMALL.batches(5)(jax.random.key(0), jnp.int32(0))
    outputs, site_inputs, _ = eqx.filter_eval_shape(capture, target, rows)
    assert outputs.shape == (5, 11)
    assert set(site_inputs) == {site.name for site in target.sites()}
    assert site_inputs["layers.0.mlp.down"].shape == (5, 3, 64)


def test_answers_are_read_at_the_last_position_and_are_never_the_sign() -> None:
    target = drawn()
    rows = modular_rows(jnp.arange(20), 11)
    logits = jax.jit(lambda target: target.transformer(rows, frozen))(target)
    assert logits.shape == (20, 3, 12)
    np.testing.assert_allclose(
        jax.jit(lambda target: target(rows))(target), logits[:, -1, :11], rtol=1e-5, atol=1e-6
    )


def test_it_is_trained_on_the_shown_pairs_alone() -> None:
    trained, order = jax.jit(SMALL.init)(jax.random.key(0))
    assert sorted(order.tolist()) == list(range(121))
    assert SMALL.n_shown == 96
    loss = jax.jit(SMALL.loss)
    of_order, of_others_swapped, of_shown_swapped = (
        loss(trained, order[places], jax.random.key(0), jnp.int32(0))
        for places in (
            jnp.arange(121),
            jnp.concatenate([jnp.arange(96), jnp.arange(96, 121)[::-1]]),
            jnp.arange(121)[::-1],
        )
    )
    assert of_order == of_others_swapped
    assert of_order != of_shown_swapped


def test_a_table_learned_by_heart_is_refused_with_the_reason() -> None:
    """All shown pairs right, and the others at chance."""
    progress: list[Progress] = []
    training = dataclasses.replace(SMALL, steps=150, weight_decay=0.0, attempts=1)
    with pytest.raises(BadTargetError) as refused:
        train_target(jax.random.key(0), training, progress.append)
    assert progress[-1].loss < 0.1
    assert "it adds rightly" in str(refused.value)
    assert "expected at least 99 %, with at most 0.1" in str(refused.value)
    assert "by heart" in str(refused.value)


def test_a_target_is_judged_by_the_pairs_that_it_was_not_shown() -> None:
    """One that answers 0 is right for the pairs whose sum is 0, and no others."""
    weights = jax.tree.map(jnp.zeros_like, drawn())
    head = jnp.zeros((32, 12)).at[:, 0].set(1.0)
    constant = ModularAddition(
        dataclasses.replace(
            weights.transformer,
            embedding=jnp.ones((12, 32)),
            norm=dataclasses.replace(weights.transformer.norm, scale=jnp.ones(32)),
            head=head,
        )
    )
    pairs = jnp.arange(121)
    zero = modular_sums(modular_rows(pairs, 11), 11) == 0
    at_the_end, at_the_start = (
        jnp.argsort(zero == wanted, stable=True) for wanted in (True, False)
    )
    lenient = dataclasses.replace(SMALL, shown=110.5 / 121)
    assert lenient.n_shown == 110
    assert lenient.problems(constant, at_the_end, jax.random.key(0)) == []
    (problem,) = lenient.problems(constant, at_the_start, jax.random.key(0))
    assert problem.startswith(
        "it adds rightly 0.0 % of the pairs that it was not shown, with a loss of 32"
    )


def test_the_abstract_target_has_the_shapes_of_the_trained_one() -> None:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), drawn())
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, shapes, abstract_target(SMALL)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mlp_width": 0}, "mlp_width is 0"),
        ({"heads": 3}, "width 32 cannot be shared by 3 heads"),
        ({"shown": 1.0}, "shown = 1.0 is 121; there must be at least one"),
        ({"shown": 0.001}, "shown = 0.001 is 0;"),
        ({"modulus": 1}, "below modulus 1"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(
    changes: dict[str, float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_seed_finds_the_rule(seed: int) -> None:
    progress: list[Progress] = []
    train_target(jax.random.key(seed), ModularAdditionTraining(), progress.append)
    assert progress[-1].attempt == 0
