"""How well the components sum to the target's weights, site by site."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from pd_eqx.components import weight_deltas
from pd_eqx.evals.metric import Arrays, ProductMetric, Report
from pd_eqx.losses import faithfulness
from pd_eqx.state import Decomposition
from pd_eqx.step import Target


@dataclasses.dataclass(frozen=True)
class Faithfulness(ProductMetric):
    """The mean square of `W − V @ U`, pooled and for each site, and each site's relative to its weight.

    The pooled one is what training minimises; a small site that is all wrong hides in it, and shows in the
    relative one, which is 1 for components that explain nothing.
    """

    def measure(self, decomposition: Decomposition, target: Target) -> dict[str, Any]:
        """The pooled mean square, and two numbers for each site."""
        weights = target.weights()
        deltas = weight_deltas(decomposition.components, weights)
        squares: dict[str, Array] = {
            site: jnp.mean(jnp.square(delta)) for site, delta in deltas.items()
        }
        relative = {
            site: square / jnp.mean(jnp.square(weights[site])) for site, square in squares.items()
        }
        return {"pooled": faithfulness(deltas), "site": squares, "relative": relative}

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`faithfulness`: `total`, and by site; `faithfulness_relative` by site."""
        report = {
            "faithfulness": {
                "total": float(values["pooled"]),
                **{site: float(values["site"][site]) for site in sites},
            },
            "faithfulness_relative": {site: float(values["relative"][site]) for site in sites},
        }
        return report, {}
