"""How far what sites see or say moves under masks: an evaluation, never a loss that trains (S31).

An output can be right for the wrong reasons; this looks inside. Two published forms differ in where they
look: at each site's input (that of the first site cannot move, and still counts), or at each site's output.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from pd_eqx.evals.ablations import STOCHASTIC, Ablation
from pd_eqx.evals.means import Mean, combine, mean_of
from pd_eqx.evals.metric import Arrays, BatchMetric, Report
from pd_eqx.evals.observation import Observation
from pd_eqx.losses import Distance, MeanSquaredError


@dataclasses.dataclass(frozen=True)
class HiddenActivations(BatchMetric):
    """The mean squared error of each decomposed site's activations under masks.

    - `of`: `"outputs"` (before any bias) or `"inputs"`.
    - `distance`: of the outputs; what an adversary among the ablations climbs.
    """

    of: Literal["inputs", "outputs"] = "outputs"
    ablation: Ablation = STOCHASTIC
    samples: int = 1
    distance: Distance = MeanSquaredError()

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, Any]:
        """The error pooled over all entries of all sites, and by site.

        Source: golden numbers `05_recon_losses`, `hidden_acts` (inputs) and `07_persistent_pgd_devbranch`,
        `hidden_acts_out` (outputs).
        """
        clean = seen.site_inputs if self.of == "inputs" else seen.site_outputs
        by_site: dict[str, Mean] | None = None
        for sample in range(self.samples):
            key_sample = jax.random.fold_in(key, sample)
            for masks in self.ablation.passes(seen, key_sample, self.distance):
                site_inputs, site_outputs = seen.ablated_activations(masks)
                ablated = site_inputs if self.of == "inputs" else site_outputs
                errors = {site: _error(ablated[site], clean[site]) for site in seen.components.V}
                by_site = errors if by_site is None else combine(by_site, errors)
        assert by_site is not None
        pooled, *rest = by_site.values()
        for error in rest:
            pooled = combine(pooled, error)
        return {"total": pooled, "site": by_site}

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`hidden_inputs` or `hidden_outputs`: `total`, and by site."""
        by_site = {site: float(values["site"][site]) for site in sites}
        return {f"hidden_{self.of}": {"total": float(values["total"]), **by_site}}, {}


def _error(ablated: Array, clean: Array) -> Mean:
    """Of an embedding's inputs, which are integers and cannot move, the error is 0."""
    if jnp.issubdtype(clean.dtype, jnp.integer):
        return mean_of(jnp.zeros((), jnp.result_type(float)), clean.size)
    return mean_of(jnp.mean(jnp.square(ablated - clean)), clean.size)
