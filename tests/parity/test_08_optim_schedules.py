"""Golden parity of the norm clip, the schedules, AdamW and the faithfulness warm-up."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from parity.golden import Golden, golden_cases
from pd_eqx.components import Components, weight_deltas
from pd_eqx.losses import faithfulness
from pd_eqx.optimizers import AdamW, clip_by_norm, global_norm
from pd_eqx.schedule import constant, decaying
from pd_eqx.step import make_faithfulness_warmup

GOLDEN = "08_optim_schedules"
LEFT_OUT = {"fwarm/target/linear2.bias": "an input: faithfulness does not look at biases"}
BEYOND_THE_END = (
    "the entry at step == total, which no update reads: the peer overshoots, here the end holds"
)


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "clip/*/coef"))
def test_clip(golden: Golden, case: str) -> None:
    grads = golden.under("clip/grad")
    norm = global_norm(grads)
    max_norm = golden.scalar(f"clip/{case}/max_norm")
    golden.check(f"clip/{case}/total_norm", norm, "A")
    golden.check(f"clip/{case}/coef", clip_by_norm({"": jnp.ones(())}, norm, max_norm)[""], "A")
    golden.check_under(f"clip/{case}/out", clip_by_norm(grads, norm, max_norm), "A")


@pytest.mark.parametrize("case", golden_cases(GOLDEN, "sched/*/value"))
def test_schedule(golden: Golden, case: str) -> None:
    start, final_fraction, warmup, total = golden.numpy(f"sched/{case}/params").tolist()
    if case.startswith("const"):
        schedule = decaying(start, "hold", 1.0, warmup) if warmup else constant(start)
    elif case.startswith("lin"):
        schedule = decaying(start, "linear", final_fraction, warmup)
    else:
        schedule = decaying(start, "cosine", final_fraction, warmup)
    steps = golden["sched/" + case + "/steps"]
    found = jax.jit(jax.vmap(lambda step: schedule.at(step, int(total))))(steps)
    where = np.asarray(steps) < total
    golden.check(f"sched/{case}/value", found, "A", where=where, why=BEYOND_THE_END)


@pytest.mark.parametrize("case", ["main_wd0", "warmup_wd0.1"])
def test_adamw(golden: Golden, case: str) -> None:
    schedule, total, decay = {
        "main_wd0": (decaying(1e-3, "cosine"), 20, 0.0),
        "warmup_wd0.1": (constant(0.01), 20, 0.1),
    }[case]
    optimizer = AdamW(schedule, weight_decay=decay)
    params = golden.under("adamw/p0")
    opt_state = optimizer.init(params)
    rates: list[Array] = []
    update = jax.jit(partial(optimizer.update, total=total))
    for step in range(5):
        grads = golden.under(f"adamw/grad/{step}")
        params, opt_state, metrics = update(grads, opt_state, params, jnp.asarray(step))
        rates.append(metrics["lr"])
        adam = opt_state[0] if decay else opt_state
        golden.check_under(f"adamw/{case}/params/{step}", params, "A")
        golden.check_under(f"adamw/{case}/m/{step}", adam.mu, "A")
        golden.check_under(f"adamw/{case}/v/{step}", adam.nu, "A")
    golden.check(f"adamw/{case}/lr", jnp.stack(rates), "A")


def test_faithfulness_warmup(golden: Golden) -> None:
    lr, decay, steps = golden.numpy("fwarm/hyper").tolist()
    optimizer = AdamW(constant(lr), weight_decay=decay)
    weights = {site: golden[f"fwarm/target/{site}.weight"].T for site in ("linear1", "linear2")}
    components = Components(V=golden.under("fwarm/init/V"), U=golden.under("fwarm/init/U"))
    warmup = make_faithfulness_warmup(optimizer, int(steps))
    opt_state = optimizer.init(components)
    gradient = jax.jit(jax.grad(lambda c: faithfulness(weight_deltas(c, weights))))
    for step in range(int(steps)):
        before = "fwarm/init" if step == 0 else f"fwarm/params/{step - 1}"
        at = Components(V=golden.under(f"{before}/V"), U=golden.under(f"{before}/U"))
        grads = gradient(at)
        for name, found in (("V", grads.V), ("U", grads.U)):
            golden.check_under(f"fwarm/grad/{step}/{name}", found, "A")
        components, opt_state, _ = warmup(
            components, opt_state, weights, jnp.asarray(step), jnp.asarray(1)
        )
        for name, found in (("V", components.V), ("U", components.U)):
            golden.check_under(f"fwarm/params/{step}/{name}", found, "A")
