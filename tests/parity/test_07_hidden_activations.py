"""Golden parity of the error at what sites say: the form of the peer's dev branch, with recorded draws."""

from collections.abc import Mapping

import jax
from jaxtyping import Array

from parity.golden import Golden
from parity.models import RecordedSource, observation, read_components, read_target
from pd_eqx.components import Components
from pd_eqx.evals.ablations import Interpolated
from pd_eqx.evals.hidden_activations import HiddenActivations
from pd_eqx.masks import SiteSource

GOLDEN = "07_persistent_pgd_devbranch"


def test_hidden_outputs(golden: Golden) -> None:
    target, inputs = read_target(golden, "seq"), golden["seq/batch/0"]
    sources = golden.under("hidden_acts_out/draws/src")
    deltas = golden.under("hidden_acts_out/draws/delta_src")
    draws = [
        {site: SiteSource(sources[site][sample], deltas[site][sample]) for site in sources}
        for sample in range(2)
    ]

    def value(components: Components, ci: Mapping[str, Array]) -> Array:
        metric = HiddenActivations("outputs", Interpolated(RecordedSource(iter(draws))), 2)
        seen = observation(target, components, ci, inputs)
        return metric.measure(seen, jax.random.key(0))["total"].value

    found, (components, of_ci) = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(
        read_components(golden, "seq"), golden.under("seq/ci/0")
    )
    golden.check("hidden_acts_out/loss", found, "A")
    golden.check_under("hidden_acts_out/grad/V", components.V, "A")
    golden.check_under("hidden_acts_out/grad/U", components.U, "A")
    golden.check_under("hidden_acts_out/grad/ci", of_ci, "A")
