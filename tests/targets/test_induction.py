import dataclasses
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.linear import capture
from pd_eqx.sites import Site
from pd_eqx.targets.induction import InductionTraining
from pd_eqx.targets.training import BadTargetError, Progress, abstract_target, train_target
from pd_eqx.targets.transformer import Transformer, init_transformer
from pd_eqx.unembedding import logits_of

SMALL = InductionTraining(
    vocabulary=16,
    length=14,
    shortest=4,
    longest=7,
    batch_size=32,
    steps=500,
    learning_rate=1e-2,
    updates_per_dispatch=250,
)


@dataclasses.dataclass
class Trained:
    target: Transformer
    progress: list[Progress]


@pytest.fixture(scope="module")
def trained() -> Trained:
    progress: list[Progress] = []
    return Trained(train_target(jax.random.key(0), SMALL, progress.append), progress)


@pytest.mark.slow
def test_a_trained_target_finds_where_it_has_seen_a_token(trained: Trained) -> None:
    assert trained.progress[-1].step == SMALL.steps
    assert trained.progress[-1].loss < trained.progress[0].loss
    assert SMALL.accuracy(trained.target, jax.random.key(99)) >= 0.99


@pytest.mark.slow
def test_it_reads_what_followed_and_not_where(trained: Trained) -> None:
    """Another token after the first occurrence is what it says after the second."""
    for successor in (3, 11):
        tokens = jnp.array([5, successor, 7, 9, 5])
        assert jnp.argmax(logits_of(trained.target(tokens))[-1]) == successor


def test_sites_are_those_of_attention_in_both_layers() -> None:
    target = abstract_target(SMALL)
    kinds = ["attn.q", "attn.k", "attn.v", "attn.o"]
    names = [f"layers.{layer}.{kind}" for layer in range(2) for kind in kinds]
    assert target.sites() == tuple(Site(name, 32, 32) for name in names)
    tokens = SMALL.batches(jax.random.key(0), jnp.int32(0))
    outputs, site_inputs, _ = eqx.filter_eval_shape(capture, target, tokens)
    assert set(site_inputs) == set(names)
    assert outputs.shape == (32, 14, 16)


def test_the_abstract_target_has_the_shapes_of_a_real_one() -> None:
    drawn = SMALL.target(*jax.jit(SMALL.init)(jax.random.key(0)))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), drawn)
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, shapes, abstract_target(SMALL)))


def test_accuracy_asks_repeated_tokens_alone() -> None:
    """A network that names the previous token plus one is right exactly where the sequence counts up."""
    training = dataclasses.replace(SMALL, vocabulary=4, length=6, shortest=4, longest=4)
    tokens, repeated = training.batches.with_repeats(jax.random.key(5))
    assert not np.all(np.asarray(repeated))
    blank = init_transformer(jax.random.key(0), training.config)
    # Heads and layers silenced, a token's embedding alone decides: one-hot, and a head that counts up.
    silent = jax.tree.map(jnp.zeros_like, blank.layers)
    counting = dataclasses.replace(
        blank,
        embedding=jnp.eye(4, 32),
        positions=jnp.zeros((6, 32)),
        layers=silent,
        head=jnp.roll(jnp.eye(32, 4), 1, axis=1).at[3].set(jnp.eye(4)[0]),
    )
    asked, nexts = np.asarray(repeated)[:, :-1], np.asarray(tokens)[:, 1:]
    wanted = ((np.asarray(tokens)[:, :-1] + 1) % 4 == nexts)[asked].mean()
    assert 0.0 < wanted < 1.0
    assert training.accuracy(counting, jax.random.key(5)) == pytest.approx(wanted)


def test_a_target_that_has_learned_nothing_is_bad_and_says_why() -> None:
    untrained = jax.jit(lambda key: init_transformer(key, SMALL.config))(jax.random.key(0))
    (problem,) = SMALL.problems(untrained, (), jax.random.key(1))
    assert re.search(r"says the successor of \d+\.\d % of repeated.*at least 99 %", problem)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"heads": 3}, "width 32 cannot be shared by 3 heads"),
        ({"longest": 13}, "must have at least 15"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(
    changes: dict[str, int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.slow
def test_one_layer_cannot_learn_it() -> None:
    with pytest.raises(BadTargetError):
        train_target(jax.random.key(0), dataclasses.replace(SMALL, depth=1, attempts=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_seed_ends_in_a_good_target(seed: int) -> None:
    progress: list[Progress] = []
    train_target(jax.random.key(seed), InductionTraining(), progress.append)
    assert progress[-1].attempt == 0
