import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.targets.tms import TMS, TMSTraining, check_tms, tms_problems
from pd_eqx.targets.training import BadTargetError, Progress, train_target

PENTAGON = TMSTraining(n_features=5, n_hidden=2, steps=1000, batch_size=512)


def pentagon(norms: float | list[float] = 1.13, turned: float = 0.0) -> TMS:
    """A perfect 5-2 target; the second direction may be turned by some degrees."""
    angles = np.radians(72.0 * np.arange(5) + 10.0) + np.radians([0.0, turned, 0.0, 0.0, 0.0])
    weight = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.reshape(norms, (-1, 1))
    linear1 = jnp.asarray(weight, jnp.float32)
    return TMS(linear1, (), linear1.T, jnp.full(5, -0.25))


def leaf_bytes(target: TMS) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(target)]


@pytest.fixture(scope="module")
def trained() -> tuple[TMS, list[Progress]]:
    progress: list[Progress] = []
    return train_target(jax.random.key(1), PENTAGON, progress.append), progress


def test_a_trained_target_is_tied_and_good(trained: tuple[TMS, list[Progress]]) -> None:
    target, progress = trained
    check_tms(target)
    assert jnp.array_equal(target.linear2, target.linear1.T)
    one_hot = 0.75 * jnp.eye(5)
    assert jnp.max(jnp.abs(target(one_hot) - one_hot)) < 0.1
    assert progress[-1].step == progress[-1].steps == PENTAGON.steps
    assert progress[-1].loss < progress[0].loss


def test_other_dispatches_and_fixed_identities_change_no_bit_of_the_rest(
    trained: tuple[TMS, list[Progress]],
) -> None:
    plain, _ = trained
    deep = train_target(
        jax.random.key(1),
        dataclasses.replace(PENTAGON, n_hidden_layers=2, updates_per_dispatch=170),
    )
    assert [site.name for site in deep.sites()] == [
        "linear1",
        "hidden_layers.0",
        "hidden_layers.1",
        "linear2",
    ]
    assert all(jnp.array_equal(weight, jnp.eye(2)) for weight in deep.hidden)
    assert leaf_bytes(dataclasses.replace(deep, hidden=())) == leaf_bytes(plain)
    inputs = jax.random.uniform(jax.random.key(0), (7, 5))
    assert jnp.allclose(deep(inputs), plain(inputs), atol=1e-6)


def test_a_feature_that_does_not_matter_is_weighed_down() -> None:
    training = dataclasses.replace(PENTAGON, importance=0.05, attempts=1, steps=400)
    with pytest.raises(BadTargetError, match=r"feature 4 has norm 0.*expected 0.9 to 1.3"):
        train_target(jax.random.key(0), training)


def test_what_the_watcher_raises_stops_the_training_between_dispatches() -> None:
    seen: list[int] = []

    def stop(progress: Progress) -> None:
        seen.append(progress.step)
        if progress.step >= 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_target(
            jax.random.key(0), dataclasses.replace(PENTAGON, updates_per_dispatch=100), stop
        )
    assert seen == [100, 200]


def test_attempts_run_out_with_the_reason() -> None:
    progress: list[Progress] = []
    training = dataclasses.replace(PENTAGON, steps=3, attempts=2)
    with pytest.raises(BadTargetError, match=r"in 2 attempts; the last one: .* Train longer"):
        train_target(jax.random.key(0), training, progress.append)
    assert [p.attempt for p in progress] == [0, 1]


def test_a_bad_first_attempt_is_followed_by_the_next_key() -> None:
    progress: list[Progress] = []
    # The first attempt of this key settles in a square, with one feature dropped.
    target = train_target(jax.random.key(2), PENTAGON, progress.append)
    assert progress[-1].attempt > 0
    assert tms_problems(target) == []


def test_a_pentagon_is_good() -> None:
    assert tms_problems(pentagon(turned=2.0)) == []


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (pentagon(norms=[1.1, 1.2, 0.02, 1.1, 1.0]), "feature 2 has norm 0.020.*that was dropped"),
        (
            pentagon(norms=[1.1, 1.2, 1.0, 1.1, 1.4]),
            r"feature 4 has norm 1.400, expected 0.9 to 1.3\.",
        ),
        (pentagon(turned=5.0), r"features 0 and 1 are 77.0° apart.*features 1 and 2 are 67.0°"),
        (pentagon(norms=float("nan")), "not finite"),
    ],
)
def test_a_bad_target_is_refused_with_the_reason(target: TMS, complaint: str) -> None:
    with pytest.raises(BadTargetError, match=complaint):
        check_tms(target)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_features", 0),
        ("steps", 0),
        ("attempts", 0),
        ("n_hidden_layers", -1),
        ("importance", 0.0),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(PENTAGON, **{field: value})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("shape", [(5, 2), (40, 10)])
def test_every_seed_ends_in_a_good_target(seed: int, shape: tuple[int, int]) -> None:
    check_tms(train_target(jax.random.key(seed), TMSTraining(*shape)))
