"""How often components are active, and how many ever are.

Importances are rarely exactly 0 or 1, and a component that fires faintly once in ten thousand positions is
not alive in any useful sense; every count here is therefore reported beside the thresholds that made it.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.evals.means import mean_of
from pd_eqx.evals.metric import Arrays, BatchMetric, Report
from pd_eqx.evals.observation import Observation


def density(
    importances: Float[Array, "*lead C"], threshold: float | Float[Array, ""]
) -> Float[Array, " C"]:
    """The share of positions at which each component's importance is above `threshold`, strictly."""
    active = (importances > threshold).astype(importances.dtype)
    return jnp.mean(active.reshape(-1, active.shape[-1]), axis=0)


def mean_importance(importances: Float[Array, "*lead C"]) -> Float[Array, " C"]:
    """The mean over positions."""
    return jnp.mean(importances.reshape(-1, importances.shape[-1]), axis=0)


def histogram(importances: Float[Array, "*lead C"], bins: int) -> Float[Array, " bins"]:
    """The share of (position, component) pairs in each of `bins` equal parts of [0, 1]; the last holds 1 itself.

    Counts by comparing with each edge in turn, in the memory of one comparison.
    """

    def at_least(edge: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.mean((importances >= edge).astype(importances.dtype))

    above = jax.lax.map(at_least, jnp.linspace(0.0, 1.0, bins + 1, dtype=importances.dtype)[:-1])
    return above - jnp.append(above[1:], 0.0)


def by_layer(sites: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """A group for each layer: `("layers.3", "layers.3.*")`, where names begin with a stack and a number in it."""
    found = (re.match(r"(\w+\.\d+)\.", site) for site in sites)
    return tuple((layer, f"{layer}.*") for layer in dict.fromkeys(m[1] for m in found if m))


@dataclasses.dataclass(frozen=True)
class Activity(BatchMetric):
    """L0, activation density and mean importance of each site, and how many of its components are alive.

    - `thresholds`: importances above which a component counts as active, for L0 and density.
    - `alive_importance`, `alive_share`: a component is alive where its importance is above the first on more than
      this share of positions.
    - `groups`: globs over sites by name, for L0 summed over the sites that match; a total is always there.
    - `bins`: of the histogram; 0 for none.
    """

    thresholds: tuple[float, ...] = (0.0, 0.1)
    alive_importance: float = 0.1
    alive_share: float = 1e-3
    groups: tuple[tuple[str, str], ...] = ()
    bins: int = 0

    @property
    def rule(self) -> str:
        """What counts as alive, in words."""
        return (
            f"importance above {self.alive_importance} on more than {self.alive_share} of positions"
        )

    def measure(self, seen: Observation, key: PRNGKeyArray) -> dict[str, dict[str, Any]]:
        """Densities `[C]` at each threshold, the mean importance `[C]` and the histogram, by site."""
        measured: dict[str, dict[str, Any]] = {}
        thresholds = {*self.thresholds, self.alive_importance}
        for site, ci in seen.importances.lower.items():
            of_site: dict[str, Any] = {
                "density": {
                    str(threshold): mean_of(density(ci, threshold), seen.positions)
                    for threshold in sorted(thresholds)
                },
                "mean": mean_of(mean_importance(ci), seen.positions),
            }
            if self.bins:
                of_site["histogram"] = mean_of(histogram(ci, self.bins), seen.positions)
            measured[site] = of_site
        return measured

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`l0`, `alive` and the rule that counted it; densities, means and histograms as arrays."""
        l0 = {
            site: {
                str(threshold): float(np.sum(values[site]["density"][str(threshold)]))
                for threshold in self.thresholds
            }
            for site in sites
        }
        for name, glob in (*self.groups, ("total", "*")):
            l0[name] = {
                str(threshold): sum(
                    l0[site][str(threshold)] for site in fnmatch.filter(sites, glob)
                )
                for threshold in self.thresholds
            }
        alive = {
            site: values[site]["density"][str(self.alive_importance)] > self.alive_share
            for site in sites
        }
        report = {
            "alive": {site: int(np.sum(mask)) for site, mask in alive.items()},
            "alive_rule": self.rule,
            "l0": l0,
        }
        arrays = {
            "alive": alive,
            "density": {site: values[site]["density"] for site in sites},
            "mean_importance": {site: values[site]["mean"] for site in sites},
        }
        if self.bins:
            arrays["histogram"] = {site: values[site]["histogram"] for site in sites}
        return report, arrays
