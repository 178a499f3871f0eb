"""Golden parity of an adversary shared by all batches of an evaluation, whose importances it recomputes on each."""

import jax
import jax.numpy as jnp
import pytest

from parity.golden import Golden
from parity.models import DISTANCES, component_mlps, packed, read_components, read_target, unpacked
from pd_eqx.evals.means import combine
from pd_eqx.evals.observation import observe
from pd_eqx.evals.shared_adversary import SharedAdversary
from pd_eqx.state import Decomposition

GOLDEN = "06_pgd"


@pytest.mark.parametrize("precision", ["x64"], indirect=True)
def test_sources_climb_all_batches_together(golden: Golden) -> None:
    target = read_target(golden, "tms")
    ci_fn = component_mlps(golden.under("multibatch/ci_fn"))
    decomposition = Decomposition(read_components(golden, "tms"), ci_fn)
    seen = [observe(decomposition, target, golden[f"multibatch/batch{i}"]) for i in range(2)]
    adversary = SharedAdversary("pgd_3", 3, 0.15, distance=DISTANCES["tms"])
    measure, climb = jax.jit(adversary.measure), jax.jit(adversary.climb)

    recorded = golden.under("multibatch/sources")
    points = [{site: unpacked(of[0], delta=True) for site, of in recorded.items()}]
    for _ in range(3):
        parts = [climb(points[-1], batch) for batch in seen]
        points.append(adversary.move(points[-1], jax.tree.map(jnp.add, *parts)))
    for site in recorded:
        found = jnp.stack([packed(point[site]) for point in points])
        golden.check(f"multibatch/sources/{site}", found, "A")
    losses = [[measure(point, batch) for batch in seen] for point in points]
    values = jnp.stack([jnp.stack([mean.value for mean in means]) for means in losses])
    golden.check("multibatch/micro_losses", values, "A")
    golden.check("multibatch/loss", combine(*losses[-1]).value, "A")
