"""Geometry: does some component point where the target's weight for a feature points, and is it as long?

A site's weight has one vector for each feature: a row where features come in, a column where they go out.
A component gives each feature a vector of its own, `V[f, c] · U[c]` or `V[:, c] · U[c, f]`. For each feature the
component of largest cosine is taken: its mean over features is the MMCS, and the mean ratio of lengths the ML2R.
Merged features show up as a ratio well below 1, which the cosine alone can miss.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pd_eqx.evals.metric import Arrays, ProductMetric, Report
from pd_eqx.state import Decomposition
from pd_eqx.step import Target

# Which side of a site its features are on.
Side = Literal["in", "out"]

# Added to every norm before dividing.
EPS = 1e-12


class FeatureMatch(eqx.Module):
    """The best component for each feature of one site.

    - `cosine`: its signed cosine with the target's vector.
    - `length_ratio`: its length over the target's.
    """

    cosine: Float[Array, " features"]
    length_ratio: Float[Array, " features"]


def feature_cosines(
    V: Float[Array, "features C"], U: Float[Array, "C d"], weight: Float[Array, "features d"]
) -> Float[Array, "C features"]:
    """Signed cosine between each component's vector for a feature and the target's.

    Costs one matrix product; the `[C, features, d]` vectors are never formed.

    Source: golden numbers `11_metrics`, `mmcs/cos`.
    """
    dots = V.T * (U @ weight.T)
    lengths = jnp.abs(V.T) * jnp.linalg.norm(U, axis=1)[:, None]
    return dots / ((lengths + EPS) * (jnp.linalg.norm(weight, axis=1) + EPS))


def match_features(
    V: Float[Array, "d_in C"],
    U: Float[Array, "C d_out"],
    weight: Float[Array, "d_in d_out"],
    side: Side,
) -> FeatureMatch:
    """For each feature, the component of largest cosine.

    **Arguments:**

    - `V`, `U`, `weight`: of one site.
    - `side`: `"in"` for one vector a row of `weight`, `"out"` for one a column.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `11_metrics`, `mmcs`.
    """
    shares, directions, vectors = (V, U, weight) if side == "in" else (U.T, V.T, weight.T)
    cosines = feature_cosines(shares, directions, vectors)
    best = jnp.argmax(cosines, axis=0)
    features = jnp.arange(vectors.shape[0])
    lengths = jnp.abs(shares[features, best]) * jnp.linalg.norm(directions, axis=1)[best]
    return FeatureMatch(cosines[best, features], lengths / jnp.linalg.norm(vectors, axis=1))


@dataclasses.dataclass(frozen=True)
class Geometry(ProductMetric):
    """MMCS and ML2R of every decomposed site, and of the target's first one under the bare names.

    - `sides`: where a site's features are, by site; by default on its wider side, and on a square one going in.
    """

    sides: Mapping[str, Side] = dataclasses.field(default_factory=dict[str, Side])

    def measure(self, decomposition: Decomposition, target: Target) -> dict[str, FeatureMatch]:
        """The best component for each feature, by site."""
        components, weights = decomposition.components, target.weights()
        return {
            site: match_features(
                V, components.U[site], weights[site], self._side(site, weights[site])
            )
            for site, V in components.V.items()
        }

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """`mmcs`, `ml2r` of the first site as published, and both with their deviations for each site."""
        by_site = {site: _moments(values[site]) for site in sites}
        first = by_site[sites[0]]
        report = {"mmcs": first["mmcs"], "ml2r": first["ml2r"], "geometry": by_site}
        return report, {"feature_match": jax.tree.map(np.asarray, values)}

    def _side(self, site: str, weight: Float[Array, "d_in d_out"]) -> Side:
        d_in, d_out = weight.shape
        return self.sides.get(site, "in" if d_in >= d_out else "out")


def _moments(match: FeatureMatch) -> dict[str, float | None]:
    cosine, ratio = np.asarray(match.cosine), np.asarray(match.length_ratio)
    return {
        "mmcs": float(cosine.mean()),
        "mmcs_std": _deviation(cosine),
        "ml2r": float(ratio.mean()),
        "ml2r_std": _deviation(ratio),
    }


def _deviation(values: Float[np.ndarray, " features"]) -> float | None:
    return float(values.std(ddof=1)) if values.size > 1 else None
