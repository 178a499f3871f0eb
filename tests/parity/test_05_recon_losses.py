"""Golden parity of the reconstruction losses, through the terms that training uses, with recorded draws.

Draws have a leading axis of mask samples. The peer's routing noise is ordered by its hooks for stochastic losses,
and by its configuration for CI-masked ones. Losses on hidden activations are evaluations, and compared elsewhere.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from parity.golden import Golden, golden_cases
from parity.models import (
    DISTANCES,
    RecordedRouting,
    RecordedSource,
    context,
    read_components,
    read_target,
)
from pd_eqx.components import Components
from pd_eqx.linear import capture
from pd_eqx.losses import KLDivergence, MeanSquaredError, kl_by_position
from pd_eqx.masks import (
    AllSites,
    ConstantSource,
    MaskSource,
    OneSiteAtATime,
    Routes,
    Routing,
    SiteSource,
    Unmasked,
    uniform_subset,
)
from pd_eqx.objective import Reconstruction

GOLDEN = "05_recon_losses"
CONFIG_ORDER = {"tms": ("linear1", "linear2", "hidden_layers.0"), "seq": ("fc1", "fc2")}
LOSSES = [
    (model, loss)
    for model in ("tms", "seq")
    for loss in golden_cases(GOLDEN, f"{model}/*/loss")
    if loss != "hidden_acts"
]


@pytest.mark.parametrize("lead", ["BV", "BSV"])
def test_distances(golden: Golden, lead: str) -> None:
    at = f"prim/{lead}"
    outputs, clean = golden[f"{at}/pred"], golden[f"{at}/target"]
    positions = outputs.size // outputs.shape[-1]
    value, grad = jax.value_and_grad(MeanSquaredError())(outputs, clean)
    golden.check(f"{at}/mse_sum", value * outputs.size, "A")
    golden.check(f"{at}/mse_grad", grad * outputs.size, "A")
    value, grad = jax.value_and_grad(KLDivergence())(outputs, clean)
    golden.check(f"{at}/kl_mean", value, "A")
    golden.check(f"{at}/kl_sum", value * positions, "A")
    golden.check(f"{at}/kl_grad", grad * positions, "A")
    golden.check(f"{at}/kl_per_position", kl_by_position(outputs, clean), "A")


@pytest.mark.parametrize("model", ["tms", "seq"])
def test_targets(golden: Golden, model: str) -> None:
    outputs, inputs, _ = capture(read_target(golden, model), golden[f"{model}/batch"])
    golden.check(f"{model}/target_out", outputs, "A")
    golden.check_under(f"{model}/pre_acts", inputs, "A")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The draws recorded for one loss of one model."""

    golden: Golden
    model: str
    loss: str
    sites: tuple[str, ...]

    @property
    def at(self) -> str:
        return f"{self.model}/{self.loss}"

    def source(self) -> MaskSource:
        if self.loss == "unmasked":
            return Unmasked()
        if self.loss.startswith("ci_masked"):
            return ConstantSource(0.0)
        return RecordedSource(self._sources())

    def routing(self) -> Routing:
        if "layerwise" in self.loss:
            return OneSiteAtATime()
        return RecordedRouting(self._routes()) if "subset" in self.loss else AllSites()

    def _sources(self) -> Iterator[dict[str, SiteSource]]:
        for sample in range(2):
            delta = self.golden.under(f"{self.at}/draws/delta_src") if self.has_delta else None
            yield {
                site: SiteSource(
                    self.golden[f"{self.at}/draws/src/{site}"][sample],
                    None if delta is None else delta[site][sample],
                )
                for site in self.sites
            }

    @property
    def has_delta(self) -> bool:
        return self.loss.endswith("_delta")

    def _routes(self) -> Iterator[Routes]:
        if self.loss == "ci_masked_subset":
            k, noise = self.golden[f"{self.at}/route_k"], self.golden[f"{self.at}/route_noise"]
            routes = uniform_subset(k, noise, CONFIG_ORDER[self.model])
            self.golden.check_under(f"{self.at}/route", routes, "A")
            yield routes
            return
        samples = [self._sampled(sample) for sample in range(2)]
        for site in self.sites:
            found = jnp.stack([jnp.asarray(routes[site]) for routes in samples])
            self.golden.check(f"{self.at}/draws/route/{site}", found, "A")
        yield from samples

    def _sampled(self, sample: int) -> Routes:
        at = f"{self.at}/draws"
        if "_uk_" in self.loss:
            k, noise = self.golden[f"{at}/route_k"], self.golden[f"{at}/route_noise"]
            return uniform_subset(k[sample], noise[sample], self.sites)
        return {site: self.golden[f"{at}/route_u/{site}"][sample] < 0.6 for site in self.sites}


@pytest.mark.parametrize(("model", "loss"), LOSSES)
def test_reconstruction(golden: Golden, model: str, loss: str) -> None:
    target = read_target(golden, model)
    sites = tuple(site.name for site in target.sites())
    inputs, ci = golden[f"{model}/batch"], golden.under(f"{model}/ci")
    recorded = Recorded(golden, model, loss, sites)
    samples = 2 if loss.startswith("stoch") else 1

    def value(components: Components, ci: dict[str, Array]) -> Array:
        term = Reconstruction(
            loss, DISTANCES[model], recorded.source(), recorded.routing(), samples=samples
        )
        seen = context(target, components, ci, inputs, target(inputs))
        return term.value(seen, jax.random.key(0))

    found, (components, of_ci) = jax.value_and_grad(value, argnums=(0, 1))(
        read_components(golden, model), ci
    )
    golden.check(f"{model}/{loss}/loss", found, "A")
    if golden.keys(f"{model}/{loss}/grad/*"):
        golden.check_under(f"{model}/{loss}/grad/V", components.V, "A")
        golden.check_under(f"{model}/{loss}/grad/U", components.U, "A")
    if golden.keys(f"{model}/{loss}/grad/ci/*"):
        golden.check_under(f"{model}/{loss}/grad/ci", of_ci, "A")
