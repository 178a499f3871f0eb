"""Schedules place their knots where published results had them, and hold beyond the end."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pd_eqx.schedule import Knot, Schedule, constant, decaying


def values(schedule: Schedule, total: int, beyond: int = 0) -> list[float]:
    return [float(schedule.at(step, total)) for step in range(total + beyond)]


def test_linear_interpolates_between_knots_and_starts_each_at_its_own_step() -> None:
    schedule = Schedule((Knot(0.0, 1.0), Knot(0.5, 3.0), Knot(1.0, 0.0)))
    assert values(schedule, 9) == [1.0, 1.5, 2.0, 2.5, 3.0, 2.25, 1.5, 0.75, 0.0]


def test_hold_keeps_its_value_up_to_the_next_knot() -> None:
    schedule = Schedule((Knot(0.0, 1.0, "hold"), Knot(0.5, 3.0, "hold")))
    assert values(schedule, 4) == [1.0, 1.0, 3.0, 3.0]


def test_two_knots_at_one_time_are_a_jump() -> None:
    schedule = Schedule((Knot(0.0, 1.0), Knot(0.5, 2.0), Knot(0.5, 8.0), Knot(1.0, 9.0)))
    assert values(schedule, 4) == [1.0, 1.5, 8.0, 9.0]


def test_cosine_is_half_way_at_half_time() -> None:
    assert values(decaying(4.0, "cosine"), 5) == pytest.approx(
        [4.0, 3.4142135, 2.0, 0.5857865, 0.0]
    )


def test_the_end_is_reached_at_the_last_update_and_holds() -> None:
    assert values(decaying(4.0, "linear", final_fraction=0.25), 4, beyond=3)[3:] == [1.0] * 4


def test_a_warmup_rises_from_zero() -> None:
    found = values(decaying(4.0, "hold", 1.0, warmup=0.5), 8)
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("total", [1, 2, 3])
def test_a_short_run_stays_between_start_and_end(total: int) -> None:
    found = values(decaying(4.0, "linear", 0.25, warmup=0.5), total)
    assert all(0.0 <= value <= 4.0 for value in found)
    assert all(isinstance(value, float) for value in found)


def test_a_constant_schedule_is_constant() -> None:
    assert set(values(constant(0.3), 5, beyond=2)) == {float(jnp.float32(0.3))}


def test_the_step_may_be_traced() -> None:
    schedule = decaying(4.0, "cosine", warmup=0.25)
    traced = jax.jit(lambda step: schedule.at(step, 8))
    for step in range(8):
        assert float(traced(jnp.asarray(step))) == pytest.approx(float(schedule.at(step, 8)))


def test_late_steps_of_a_long_run_are_told_apart() -> None:
    """Steps beyond 2²⁴ are no float32 integers; the time since the knot before is."""
    total = 1 << 26
    schedule = Schedule((Knot(0.0, 0.0), Knot(1.0 - 8 / total, 0.0), Knot(1.0, 7.0)))
    found = [float(schedule.at(step, total)) for step in range(total - 8, total)]
    assert all(earlier < later for earlier, later in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Schedule(()), "ascending"),
        (lambda: Schedule((Knot(0.5, 1.0), Knot(0.2, 1.0))), "ascending"),
        (lambda: Schedule((Knot(-0.1, 1.0),)), "ascending"),
        (lambda: Schedule((Knot(1.1, 1.0),)), "ascending"),
        (lambda: decaying(1.0, warmup=1.5), "ascending"),
        (lambda: constant(1.0).at(0, 0), "1 or more updates"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
