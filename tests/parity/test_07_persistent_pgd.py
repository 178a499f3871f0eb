"""Golden parity of persistent adversaries: every ascent of five steps, in every scope, with both optimizers.

Components are held fixed; batches and importances change from step to step. Each step makes its warm-up ascents and
then the one that reads the main backward pass, here that of a weighted sum. Sources are packed as the
peer has them, the delta's last. Losses on hidden activations are evaluations, and compared elsewhere.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from parity.golden import Golden
from parity.models import (
    DISTANCES,
    RecordedRouting,
    context,
    packed,
    read_components,
    read_target,
    unpacked,
)
from pd_eqx.adversary import (
    AdamAscent,
    AdversaryState,
    Ascent,
    Clamp,
    PersistentAdversary,
    Projection,
    Scope,
    Sigmoid,
    SignAscent,
    Sources,
)
from pd_eqx.components import Components
from pd_eqx.masks import AllSites, Routes, interpolate
from pd_eqx.objective import Context, Objective, PersistentReconstruction
from pd_eqx.schedule import constant, decaying

GOLDEN = "07_persistent_pgd_devbranch"
STEPS, TOTAL = 5, 10
COEFFICIENT = 0.25

pytestmark = pytest.mark.parametrize("precision", ["x64"], indirect=True)


@dataclasses.dataclass(frozen=True)
class Case:
    ascent: Ascent
    scope: Scope = Scope()
    warmups: int = 0
    projection: Projection = Clamp()
    delta: bool = True

    def adversary(self) -> PersistentAdversary:
        return PersistentAdversary(
            self.ascent, self.scope, self.warmups, self.projection, self.delta, jnp.float64
        )


REPEATED, BROADCAST, EACH = Scope(2, True), Scope(1, True), Scope(None, True)
WARMING = decaying(0.1, "cosine", final_fraction=0.1, warmup=0.2)
CASES: Mapping[str, Case] = {
    "tms/adam_single": Case(AdamAscent(constant(0.05))),
    "tms/adam_single_nodelta": Case(AdamAscent(constant(0.05)), delta=False),
    "tms/sign_repeat2": Case(SignAscent(constant(0.1)), REPEATED),
    "seq/adam_repeat2_warm2_cos": Case(AdamAscent(WARMING, 0.9, 0.99), REPEATED, 2),
    "seq/adam_broadcast": Case(AdamAscent(constant(0.1), 0.5, 0.99), BROADCAST),
    "seq/adam_perbatch": Case(AdamAscent(constant(0.2), 0.9, 0.99), EACH),
    "seq/adam_single_sigmoid": Case(
        AdamAscent(constant(0.3), 0.9, 0.99), warmups=1, projection=Sigmoid()
    ),
    "seq/adam_repeat2_subset": Case(AdamAscent(constant(0.1), 0.9, 0.99), REPEATED, 1),
}


def term(model: str, case: Case, routes: Routes) -> PersistentReconstruction:
    routing = RecordedRouting(iter([routes]))
    return PersistentReconstruction("pgd", DISTANCES[model], case.adversary(), routing, COEFFICIENT)


def read_context(golden: Golden, model: str, step: int) -> Context:
    target = read_target(golden, model)
    inputs = golden[f"{model}/batch/{step}"]
    clean = target(inputs)
    golden.check(f"{model}/target_out/{step}", clean, "A")
    ci = golden.under(f"{model}/ci/{step}")
    return context(
        target,
        read_components(golden, model),
        ci,
        inputs,
        clean,
        step=jnp.int32(step),
        total_steps=TOTAL,
    )


def start(golden: Golden, at: str, case: Case, sites: tuple[str, ...]) -> AdversaryState:
    sources = {site: unpacked(golden[f"{at}/init/{site}"], case.delta) for site in sites}
    drawn = case.adversary().init(
        jax.random.key(0), read_context(golden, at.partition("/")[0], 0).importances.lower
    )
    assert jax.tree.map(jnp.shape, drawn.sources) == jax.tree.map(jnp.shape, sources)
    return AdversaryState(sources, drawn.opt_state)


def check_update(
    golden: Golden, at: str, update: int, grads: Sources, state: AdversaryState
) -> None:
    for site, source in state.sources.items():
        golden.check(f"{at}/update{update}/grad/{site}", packed(grads[site]), "A")
        golden.check(f"{at}/update{update}/sources/{site}", packed(source), "A")
        for moment, name in (("mu", "m"), ("nu", "v")):
            key = f"{at}/update{update}/{name}/{site}"
            if hasattr(state.opt_state, moment):
                golden.check(key, packed(getattr(state.opt_state, moment)[site]), "A")
            else:
                assert not golden.keys(key)


@pytest.mark.parametrize("at", CASES)
def test_every_ascent(golden: Golden, at: str) -> None:
    model, case = at.partition("/")[0], CASES[at]
    adversary = case.adversary()

    @jax.jit
    def main(
        components: Components, raw: Sources, seen: Context, routes: Routes
    ) -> tuple[Array, Components, Sources]:
        """The backward pass of the weighted sum, and its gradients without the weight."""
        objective = Objective((term(model, case, routes),))

        def weighted(components: Components, sources: dict[str, Sources]) -> tuple[Array, Array]:
            moved = dataclasses.replace(seen, components=components, sources=sources)
            total, values = objective(moved, jax.random.key(0))
            return total, values["pgd"]

        (_, value), (of_components, of_sources) = jax.value_and_grad(
            weighted, argnums=(0, 1), has_aux=True
        )(components, {"pgd": raw})
        unweighted = jax.tree.map(lambda g: g / COEFFICIENT, of_components)
        return value, unweighted, objective.unweighted(of_sources)["pgd"]

    @jax.jit
    def warming(raw: Sources, seen: Context, routes: Routes) -> tuple[Array, Sources]:
        """One warm-up ascent's loss and gradient, without a weight."""
        return jax.value_and_grad(
            lambda raw: term(model, case, routes).evaluate(seen, raw, jax.random.key(0))
        )(raw)

    ascended = jax.jit(adversary.ascended, static_argnames="total")
    state = start(golden, at, case, read_context(golden, model, 0).sites)
    lrs, losses, evaluations, update = [], [], [], 0
    for step in range(STEPS):
        seen = read_context(golden, model, step)
        lrs.append(adversary.ascent.schedule.at(step, TOTAL))
        for ascent in range(case.warmups + 1):
            (routes,) = AllSites().passes(jax.random.key(0), seen.sites, seen.lead)
            if golden.keys(f"{at}/route/*"):
                routes = {s: golden[f"{at}/route/{update}/{s}"] for s in seen.sites}
            raw = adversary.raw(state)
            if ascent < case.warmups:
                value, grads = warming(raw, seen, routes)
            else:
                value, of_components, grads = main(seen.components, raw, seen, routes)
                losses.append(value)
                if step == STEPS - 1:
                    golden.check_under(f"{at}/last_step_grad/V", of_components.V, "A")
                    golden.check_under(f"{at}/last_step_grad/U", of_components.U, "A")
            state = ascended(state, grads, jnp.int32(step), total=TOTAL)
            check_update(golden, at, update, grads, state)
            evaluations.append(value)
            update += 1
    golden.check(f"{at}/lr", jnp.stack(lrs), "A")
    golden.check(f"{at}/loss", jnp.stack(losses), "A")
    golden.check(f"{at}/loss_all_evals", jnp.stack(evaluations), "A")
    if golden.keys(f"{at}/final_mask/*"):
        seen = read_context(golden, model, STEPS - 1)
        sources = adversary.sources(adversary.raw(state), seen.importances.lower)
        masks = interpolate(seen.importances.lower, sources, dict.fromkeys(seen.sites))
        for site, mask in masks.items():
            golden.check(f"{at}/final_mask/{site}", mask.component, "A")
            golden.check(f"{at}/final_dmask/{site}", mask.delta, "A")


def test_warm_ups_are_the_ascents_of_the_step(golden: Golden) -> None:
    at = "seq/adam_repeat2_warm2_cos"
    model, case = "seq", CASES["seq/adam_repeat2_warm2_cos"]
    adversarial = PersistentReconstruction("pgd", DISTANCES[model], case.adversary())
    objective = Objective((adversarial,))
    seen = read_context(golden, model, 1)
    # Step 1 begins after update 2: step 0 made two warm-ups and its own.
    before = {
        name: {s: unpacked(golden[f"{at}/update2/{name}/{s}"], True) for s in seen.sites}
        for name in ("sources", "m", "v")
    }
    moments = start(golden, at, case, seen.sites).opt_state._replace(
        count=jnp.int32(3), mu=before["m"], nu=before["v"]
    )
    state = {"pgd": AdversaryState(before["sources"], moments)}
    warmed = objective.warmed_up(seen, state, jax.random.key(5))["pgd"]
    for site in seen.sites:
        golden.check(f"{at}/update4/sources/{site}", packed(warmed.sources[site]), "A")
        golden.check(f"{at}/update4/m/{site}", packed(warmed.opt_state.mu[site]), "A")
        golden.check(f"{at}/update4/v/{site}", packed(warmed.opt_state.nu[site]), "A")
