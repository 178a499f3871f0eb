"""Golden parity of fresh projected-gradient sources: each point of each ascent, and the loss at its end.

Scopes: `unique` has one source for each position, `shared` one for all. The peer's losses climb separately for each
site where sites are masked one at a time; here they climb together, which gives the same sources.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from parity.golden import Golden, golden_keys
from parity.models import (
    DISTANCES,
    RecordedRouting,
    RecordedSource,
    component_mlps,
    context,
    packed,
    read_components,
    read_target,
    unpacked,
)
from pd_eqx.adversary import Sources, ascend
from pd_eqx.components import Components
from pd_eqx.linear import capture
from pd_eqx.masks import AllSites, OneSiteAtATime, Routes, SiteSource
from pd_eqx.objective import Context, Reconstruction

GOLDEN = "06_pgd"
LEFT_OUT = {
    "*/min_nonzero_abs_grad": "tells how safe the signs are in float32; informative",
    "multibatch/batch2": "the peer read two of the three microbatches",
}
CASES = [
    tuple(key.split("/")[:2])
    for key in golden_keys(GOLDEN, "*/loss")
    if not key.startswith("multibatch") and "layerwise" not in key
]

Loss = Callable[[Mapping[str, SiteSource]], Array]


def settings(case: str) -> tuple[float, int, bool]:
    """Step size, number of steps, and whether there is a delta channel."""
    parts = case.removesuffix("_nodelta").split("_")
    return float(parts[-2][1:]), int(parts[-1][1:]), not case.endswith("_nodelta")


def read_context(golden: Golden, model: str) -> Context:
    target = read_target(golden, model)
    inputs = golden[f"{model}/batch"]
    clean = target(inputs)
    golden.check(f"{model}/target_out", clean, "A")
    return context(
        target, read_components(golden, model), golden.under(f"{model}/ci"), inputs, clean
    )


def start(golden: Golden, at: str, sites: tuple[str, ...], delta: bool) -> Sources:
    return {site: unpacked(golden[f"{at}/sources/{site}"][0], delta) for site in sites}


def check_ascent(
    golden: Golden, at: str, loss: Loss, sources: Sources, steps: int, step_size: float
) -> Sources:
    """Checks sources, gradients and losses at each point; returns the last sources."""
    step = jax.jit(partial(ascend, loss=loss, steps=1, step_size=step_size))
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    points, grads, losses = [sources], [], []
    for _ in range(steps):
        value, grad = value_and_grad(points[-1])
        losses.append(value)
        grads.append(grad)
        points.append(step(points[-1]))
    losses.append(loss(points[-1]))
    for site in sources:
        found = jnp.stack([packed(point[site]) for point in points])
        golden.check(f"{at}/sources/{site}", found, "A")
        found = jnp.stack([packed(grad[site]) for grad in grads])
        golden.check(f"{at}/grads/{site}", found, "A")
    golden.check(f"{at}/loss_traj", jnp.stack(losses), "A")
    return points[-1]


def check_end(golden: Golden, at: str, seen: Context, term: Reconstruction) -> None:
    """Checks the term at the last sources: its value, and gradients that do not pass through the ascent."""
    model = at.partition("/")[0]
    target = read_target(golden, model)

    def value(components: Components, ci: dict[str, Array]) -> Array:
        moved = context(target, components, ci, seen.inputs, seen.clean)
        return term.value(moved, jax.random.key(0))

    found, (components, of_ci) = jax.value_and_grad(value, argnums=(0, 1))(
        read_components(golden, model), golden.under(f"{model}/ci")
    )
    golden.check(f"{at}/loss", found, "A")
    golden.check_under(f"{at}/final_grad/V", components.V, "A")
    golden.check_under(f"{at}/final_grad/U", components.U, "A")
    golden.check_under(f"{at}/final_grad/ci", of_ci, "A")


def same_path(golden: Golden, at: str) -> bool:
    """Whether the ascent can be followed in this precision, as far as is known."""
    if golden.precision == "x64":
        return True
    known = golden.keys(f"{at}/f32_same_path")
    return bool(known) and bool(golden.scalar(known[0]))


@pytest.mark.parametrize(("model", "case"), CASES)
def test_ascent(golden: Golden, model: str, case: str) -> None:
    at = f"{model}/{case}"
    if not same_path(golden, at):
        pytest.skip("not known to follow the same path in float32")
    step_size, steps, delta = settings(case)
    seen, distance = read_context(golden, model), DISTANCES[model]
    (routes,) = AllSites().passes(jax.random.key(0), seen.sites, seen.lead)
    if golden.keys(f"{at}/route/*"):
        routes: Routes = {site: golden[f"{at}/route/{site}"] for site in seen.sites}
    loss = partial(seen.masked_distance, distance, passes=[routes])
    sources = start(golden, at, seen.sites, delta)
    end = check_ascent(golden, at, loss, sources, steps, step_size)
    replayed = RecordedSource(iter([end])), RecordedRouting(iter([routes]))
    check_end(golden, at, seen, Reconstruction("pgd", distance, *replayed))


def test_one_site_at_a_time(golden: Golden) -> None:
    at = "tms/layerwise_shared_s0.2_n3"
    assert same_path(golden, at)
    step_size, steps, delta = settings(at)
    seen, distance = read_context(golden, "tms"), DISTANCES["tms"]
    passes = OneSiteAtATime().passes(jax.random.key(0), seen.sites, seen.lead)
    ends: Sources = {}
    for routes in passes:
        (site,) = routes
        loss = partial(seen.masked_distance, distance, passes=[routes])
        sources = start(golden, f"{at}/layer_{site}", seen.sites, delta)
        end = check_ascent(golden, f"{at}/layer_{site}", loss, sources, steps, step_size)
        ends[site] = end[site]
    loss = partial(seen.masked_distance, distance, passes=passes)
    starts = {s: start(golden, f"{at}/layer_{s}", seen.sites, delta)[s] for s in seen.sites}
    together = ascend(starts, loss, steps, step_size)
    for site in seen.sites:
        golden.check(
            f"{at}/layer_{site}/sources/{site}",
            golden[f"{at}/layer_{site}/sources/{site}"].at[-1].set(packed(together[site])),
            "A",
        )
    replayed = RecordedSource(iter([ends])), OneSiteAtATime()
    check_end(golden, at, seen, Reconstruction("pgd", distance, *replayed))


@pytest.mark.parametrize("precision", ["x64"], indirect=True)
def test_sources_shared_over_several_batches(golden: Golden) -> None:
    target, components = read_target(golden, "tms"), read_components(golden, "tms")
    ci_fn = component_mlps(golden.under("multibatch/ci_fn"))
    seen: list[Context] = []
    for batch in range(2):
        inputs = golden[f"multibatch/batch{batch}"]
        clean, site_inputs, _ = capture(target, inputs)
        ci = ci_fn(site_inputs, components).lower
        seen.append(context(target, components, ci, inputs, clean))
    (routes,) = AllSites().passes(jax.random.key(0), seen[0].sites, seen[0].lead)

    def by_batch(sources: Mapping[str, SiteSource]) -> Array:
        distances = [s.masked_distance(DISTANCES["tms"], sources, [routes]) for s in seen]
        return jnp.stack(distances)

    points = [start(golden, "multibatch", seen[0].sites, delta=True)]
    for _ in range(3):
        points.append(ascend(points[-1], lambda s: jnp.mean(by_batch(s)), 1, 0.15))
    for site in seen[0].sites:
        found = jnp.stack([packed(point[site]) for point in points])
        golden.check(f"multibatch/sources/{site}", found, "A")
    losses = jnp.stack([by_batch(point) for point in points])
    golden.check("multibatch/micro_losses", losses, "A")
    golden.check("multibatch/loss", jnp.mean(losses[-1]), "A")
