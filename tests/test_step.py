"""The train step: what it draws, what it refuses, what it leaves out of the executable, how it stops."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import toy
from pd_eqx.adversary import AdamAscent, PersistentAdversary, Scope, Sigmoid, SignAscent
from pd_eqx.components import weight_deltas
from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.donation import measure_reuse
from pd_eqx.losses import Frequency, MeanSquaredError
from pd_eqx.masks import BinomialSource, UniformSubset
from pd_eqx.objective import (
    Context,
    Faithfulness,
    ImportanceMinimality,
    MergedReconstruction,
    Objective,
    PersistentReconstruction,
    Reconstruction,
    Term,
)
from pd_eqx.schedule import constant
from pd_eqx.state import TrainState
from pd_eqx.step import TrainStep, init_state, make_train_step, non_finite

KEY = jax.random.key(2)
MSE = MeanSquaredError()
PLAIN = Objective((Faithfulness(), ImportanceMinimality(1e-3), Reconstruction("stochastic", MSE)))
# Everything that a state can carry: averages, adversaries of two kinds, in two dtypes.
CARRYING = Objective(
    (
        ImportanceMinimality(1e-3, frequency=Frequency(0.1, 100, decay=0.9)),
        Reconstruction("binomial", MSE, BinomialSource()),
        PersistentReconstruction(
            "pgd",
            MSE,
            PersistentAdversary(AdamAscent(constant(0.05)), Scope(2), 2, dtype=jnp.bfloat16),
            UniformSubset(),
            0.5,
        ),
        MergedReconstruction(
            "merged",
            MSE,
            PersistentAdversary(SignAscent(constant(0.1)), Scope(None), projection=Sigmoid()),
            constant(0.5),
        ),
    )
)


@pytest.fixture(scope="module")
def plain() -> TrainStep:
    return make_train_step(PLAIN, toy.OPTIMIZERS, toy.TOTAL)


@pytest.fixture(scope="module")
def carrying() -> TrainStep:
    return make_train_step(CARRYING, toy.OPTIMIZERS, toy.TOTAL)


def test_n_updates_in_one_call_are_n_calls_bit_for_bit(carrying: TrainStep) -> None:
    one_call, metrics = carrying(toy.fresh(CARRYING), toy.target(), toy.BATCHES, KEY, 5)
    state, last = toy.fresh(CARRYING), {}
    for _ in range(5):
        state, last = carrying(state, toy.target(), toy.BATCHES, KEY, 1)
    assert toy.bits(one_call) == toy.bits(state)
    assert toy.bits(metrics) == toy.bits(last)
    assert int(state.training.step) == 5
    # All that is carried has moved.
    start = toy.fresh(CARRYING).training
    for before, after in (
        (start.adversaries["pgd"].sources, state.training.adversaries["pgd"].sources),
        (start.adversaries["merged"].sources, state.training.adversaries["merged"].sources),
        (start.averages, state.training.averages),
    ):
        assert all(b != a for b, a in zip(toy.bits(before), toy.bits(after), strict=True))
    # Two warm-ups and the main ascent, five times.
    assert int(state.training.adversaries["pgd"].opt_state.count) == 15


def test_every_number_of_updates_runs_on_one_executable(carrying: TrainStep) -> None:
    state, _ = carrying(toy.fresh(CARRYING), toy.target(), toy.BATCHES, KEY, 1)
    compiled = carrying._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
    carrying(state, toy.target(), toy.BATCHES, KEY, 3)
    assert carrying._cache_size() == compiled  # pyright: ignore[reportAttributeAccessIssue]


def test_an_update_is_traced_once_for_the_loop_and_the_shapes_of_its_metrics() -> None:
    traced: list[str] = []

    class Noted(Faithfulness):
        def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
            traced.append(self.name)
            return super().value(context, key)

    objective = Objective((Noted(),))
    step = make_train_step(objective, toy.OPTIMIZERS, toy.TOTAL)
    step.lower(toy.fresh(objective), toy.target(), toy.BATCHES, KEY, 1)
    assert traced == ["faithfulness"]


def test_no_update_changes_nothing(plain: TrainStep) -> None:
    state, _ = plain(toy.fresh(PLAIN), toy.target(), toy.BATCHES, KEY, 0)
    assert toy.bits(state) == toy.bits(toy.fresh(PLAIN))


def test_an_update_draws_from_the_key_and_its_own_number_alone(plain: TrainStep) -> None:
    def after(step: int, key: PRNGKeyArray) -> list[bytes]:
        state = toy.fresh(PLAIN)
        moved = eqx.tree_at(lambda s: s.training.step, state, jnp.int32(step))
        return toy.bits(plain(moved, toy.target(), toy.BATCHES, key, 1)[0].decomposition)

    assert after(4, KEY) == after(4, KEY)
    assert after(4, KEY) != after(5, KEY)
    assert after(4, KEY) != after(4, jax.random.key(3))


def test_the_step_donates_all_that_it_carries(carrying: TrainStep) -> None:
    _, report = measure_reuse(carrying, toy.fresh(CARRYING), toy.target(), toy.BATCHES, KEY, 2)
    assert report.missed == ()
    assert report.fraction == 1.0


def lowered(step: Callable[..., object], *args: object) -> str:
    return jax.jit(step).lower(*args).as_text()


def test_the_targets_weights_are_not_in_the_executable(plain: TrainStep) -> None:
    one, other = toy.target(0), toy.target(1)
    state = toy.fresh(PLAIN)
    texts = [plain.lower(state, t, toy.BATCHES, KEY, 1).as_text() for t in (one, other)]
    assert texts[0] == texts[1]
    first = float(one.linear1[0, 0])
    assert not holds(texts[0], first)
    # It would show: a step that closes over its target has the weight as a constant.
    closed = lowered(lambda state, key: plain(state, one, toy.BATCHES, key, 1), state, KEY)
    assert holds(closed, first)


def holds(text: str, number: float) -> bool:
    """Whether a lowered program holds a float32 among its constants, in digits or in hexadecimal."""
    big_endian = np.float32(number).tobytes()[::-1].hex()
    return (
        f"{number:.4f}"[:-1] in text
        or np.float32(number).tobytes().hex().upper() in text
        or (f"0x{big_endian.upper()}" in text)
    )


def test_another_target_needs_no_compilation_and_gives_another_result(plain: TrainStep) -> None:
    state, _ = plain(toy.fresh(PLAIN), toy.target(0), toy.BATCHES, KEY, 1)
    compiled = plain._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
    other, _ = plain(toy.fresh(PLAIN), toy.target(1), toy.BATCHES, KEY, 1)
    assert plain._cache_size() == compiled  # pyright: ignore[reportAttributeAccessIssue]
    assert toy.bits(other.decomposition) != toy.bits(state.decomposition)


@dataclasses.dataclass(frozen=True)
class FailsInValue(Term):
    """Finite before step 3, infinite from there on; its gradient is always 0."""

    name: str = "fails"
    coefficient: float = 1.0

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.where(context.step >= 3, jnp.inf, 0.0)


@dataclasses.dataclass(frozen=True)
class FailsInGradient(Term):
    """Always 0, with a gradient at one site that is no number from step 3 on."""

    name: str = "fails"
    coefficient: float = 1.0

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        deltas = weight_deltas(context.components, context.weights)
        scale = jnp.where(context.step >= 3, 0.0, 1.0)
        return 0.0 * jnp.sqrt(scale * jnp.sum(jnp.square(deltas["linear2"])))


@pytest.mark.parametrize(
    ("term", "name"),
    [(FailsInValue(), "loss/fails"), (FailsInGradient(), "grad_norm/components/linear2")],
)
def test_the_first_update_that_is_not_finite_is_named_and_not_made(term: Term, name: str) -> None:
    objective = Objective((Faithfulness(), term))
    step = make_train_step(objective, toy.OPTIMIZERS, toy.TOTAL)
    good, metrics = step(toy.fresh(objective), toy.target(), toy.BATCHES, KEY, 3)
    assert non_finite(metrics) == []
    stopped, metrics = step(toy.fresh(objective), toy.target(), toy.BATCHES, KEY, 10)
    assert int(stopped.training.step) == 3
    assert toy.bits(stopped) == toy.bits(good)
    bad = non_finite(metrics)
    assert bad[0] == name
    assert "grad_norm/components/linear1" not in bad
    again, _ = step(stopped, toy.target(), toy.BATCHES, KEY, 1)
    assert int(again.training.step) == 3


def test_gradient_norms_of_sites_make_up_the_groups(carrying: TrainStep) -> None:
    _, metrics = carrying(toy.fresh(CARRYING), toy.target(), toy.BATCHES, KEY, 1)
    by_site = [float(metrics[f"grad_norm/components/{site}"]) for site in toy.COUNTS]
    assert sum(n * n for n in by_site) ** 0.5 == pytest.approx(
        float(metrics["grad_norm/components"])
    )
    assert float(metrics["grad_norm/pgd"]) > 0.0
    weighted = (1e-3, 1.0, 0.5, 1.0)
    losses = [float(metrics[f"loss/{term.name}"]) for term in CARRYING.terms]
    total = sum(c * v for c, v in zip(weighted, losses, strict=True))
    assert float(metrics["loss/total"]) == pytest.approx(total, rel=1e-5)


def test_a_smaller_batch_is_refused(carrying: TrainStep) -> None:
    with pytest.raises(ValueError, match="leave out a last, smaller one"):
        carrying(toy.fresh(CARRYING), toy.target(), SparseFeatures(6, 5, 0.4), KEY, 1)


def test_a_state_made_without_the_objective_is_refused_where_it_carries_too_little(
    carrying: TrainStep,
) -> None:
    bare = toy.fresh(PLAIN)
    with pytest.raises(ValueError, match="adversaries holds"):
        carrying(bare, toy.target(), toy.BATCHES, KEY, 1)


def test_an_objective_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="both `objective` and `batches`"):
        init_state(
            KEY, toy.target(), toy.COUNTS, toy.importance_mlps, toy.OPTIMIZERS, objective=PLAIN
        )


class Counting(eqx.Module):
    """Batches that would say if they were computed."""

    @property
    def shape(self) -> tuple[int, int]:
        return 8, 5

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, "batch features"]:
        def fail(_: object) -> np.ndarray:
            raise AssertionError("a batch was computed")

        return jax.pure_callback(fail, jax.ShapeDtypeStruct(self.shape, jnp.float32), step)


def test_only_shapes_of_batches_are_read_for_a_fresh_state() -> None:
    state = init_state(
        KEY,
        toy.target(),
        toy.COUNTS,
        toy.importance_mlps,
        toy.OPTIMIZERS,
        objective=CARRYING,
        batches=Counting(),
    )
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, toy.fresh(CARRYING))


def test_parameters_do_not_depend_on_what_terms_carry() -> None:
    assert toy.bits(toy.fresh(PLAIN).decomposition) == toy.bits(toy.fresh(CARRYING).decomposition)


def test_a_state_holds_arrays_alone_and_each_in_a_buffer_of_its_own() -> None:
    leaves = jax.tree.leaves(toy.fresh(CARRYING))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in leaves]
    assert len(set(pointers)) == len(pointers)
    assert isinstance(toy.fresh(PLAIN), TrainState)
