"""Golden parity of the error at what sites see: the form of the peer's main branch, with recorded draws.

The first site sees the batch itself, which no mask can move; its entries are in the denominator all the same.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from parity.golden import Golden
from parity.models import DISTANCES, RecordedSource, observation, read_components, read_target
from pd_eqx.components import Components
from pd_eqx.evals.ablations import Interpolated
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.masks import SiteSource

GOLDEN = "05_recon_losses"
KEY = jax.random.key(0)


def recorded(golden: Golden, at: str, samples: int) -> list[dict[str, SiteSource]]:
    sources, deltas = golden.under(f"{at}/draws/src"), golden.under(f"{at}/draws/delta_src")
    return [
        {site: SiteSource(sources[site][sample], deltas[site][sample]) for site in sources}
        for sample in range(samples)
    ]


@pytest.mark.parametrize("model", ["tms", "seq"])
def test_hidden_inputs(golden: Golden, model: str) -> None:
    target, inputs = read_target(golden, model), golden[f"{model}/batch"]
    at = f"{model}/hidden_acts"
    draws = recorded(golden, at, 2)

    def value(components: Components, ci: Mapping[str, Array]) -> Array:
        metric = HiddenActivations(
            "inputs", Interpolated(RecordedSource(iter(draws))), 2, DISTANCES[model]
        )
        return metric.measure(observation(target, components, ci, inputs), KEY)["total"].value

    found, (components, of_ci) = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(
        read_components(golden, model), golden.under(f"{model}/ci")
    )
    golden.check(f"{at}/loss", found, "A")
    golden.check_under(f"{at}/grad/V", components.V, "A")
    golden.check_under(f"{at}/grad/U", components.U, "A")
    golden.check_under(f"{at}/grad/ci", of_ci, "A")


def test_the_first_site_cannot_move_and_still_counts(golden: Golden) -> None:
    target, inputs = read_target(golden, "tms"), golden["tms/batch"]
    components, ci = read_components(golden, "tms"), golden.under("tms/ci")
    draws = recorded(golden, "tms/hidden_acts", 2)
    metric = HiddenActivations("inputs", Interpolated(RecordedSource(iter(draws))), 2)
    measured = metric.measure(observation(target, components, ci, inputs), KEY)
    by_site = measured["site"]
    assert by_site["linear1"].value == 0.0
    assert by_site["linear1"].weight == 2 * inputs.size
    weights = jnp.stack([error.weight for error in by_site.values()])
    errors = jnp.stack([error.value for error in by_site.values()])
    assert jnp.allclose(measured["total"].value, jnp.sum(weights * errors) / jnp.sum(weights))
