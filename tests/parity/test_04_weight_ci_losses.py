"""Golden parity of faithfulness and importance minimality: p, eps, the frequency term, annealing.

The peer's frequency term reads the batch's sum, `log2(1 + world_size · s)`: a reference count of
`world_size · positions`. Its evaluation sums over all batches before the logarithm.
"""

import math

import jax
import jax.numpy as jnp
import pytest

from parity.golden import Golden, golden_cases
from pd_eqx.losses import Anneal, Frequency, annealed, faithfulness, importance_minimality

GOLDEN = "04_weight_ci_losses"
TOTAL = 1_000_000


def settings(case: str) -> tuple[float, float, float]:
    p, eps, beta = case.split("_")
    return float(p[1:]), float(eps[3:]), float(beta[4:])


def frequency(beta: float, reference: int) -> Frequency | None:
    return Frequency(beta, reference) if beta else None


def test_faithfulness_pools_all_entries(golden: Golden) -> None:
    deltas = {site: delta.T for site, delta in golden.under("faith/delta").items()}
    value, grads = jax.value_and_grad(faithfulness)(deltas)
    golden.check("faith/loss", value, "A")
    golden.check_under("faith/grad", {site: grad.T for site, grad in grads.items()}, "A")


@pytest.mark.parametrize("lead", ["B", "BS"])
@pytest.mark.parametrize("case", golden_cases(GOLDEN, "B/imp/*/loss"))
def test_importance_minimality(golden: Golden, lead: str, case: str) -> None:
    p, eps, beta = settings(case)
    upper = golden.under(f"{lead}/ci_upper")
    positions = math.prod(next(iter(upper.values())).shape[:-1])
    value, grads = jax.value_and_grad(importance_minimality)(
        upper, p, eps, frequency(beta, positions)
    )
    golden.check(f"{lead}/imp/{case}/loss", value, "A")
    golden.check_under(f"{lead}/imp/{case}/grad", grads, "C")


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_a_reference_count_expresses_the_world_size(golden: Golden, world_size: int) -> None:
    upper = golden.under("B/ci_upper")
    value = importance_minimality(upper, 0.7, 1e-12, Frequency(0.3, world_size * 6))
    golden.check(f"B/imp_world/ws{world_size}", value, "A")


def test_evaluation_over_three_batches(golden: Golden) -> None:
    batches = [golden.under(f"eval3/ci_upper/{batch}") for batch in range(3)]
    single = [importance_minimality(b, 0.7, 1e-12, Frequency(0.3, 4)) for b in batches]
    golden.check("eval3/single", jnp.stack(single), "A")
    pooled = {site: jnp.concatenate([b[site] for b in batches]) for site in batches[0]}
    golden.check("eval3/metric", importance_minimality(pooled, 0.7, 1e-12, Frequency(0.3, 12)), "A")


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "anneal/*/p"))
def test_annealed_p(golden: Golden, case: str) -> None:
    initial, start, final, end = (float(x) for x in golden.numpy(f"anneal/{case}/params"))
    p = initial if math.isnan(final) else Anneal(initial, final, start, end)
    steps = [round(frac * TOTAL) for frac in golden.numpy("anneal/frac").tolist()]
    values = jnp.stack([jnp.asarray(annealed(p, step, TOTAL), float) for step in steps])
    golden.check(f"anneal/{case}/p", values, "A")
    if golden.keys(f"anneal/{case}/loss"):
        upper = golden.under("B/ci_upper")
        losses = [importance_minimality(upper, p, 1e-12, Frequency(0.1, 6)) for p in values]
        golden.check(f"anneal/{case}/loss", jnp.stack(losses), "A")
