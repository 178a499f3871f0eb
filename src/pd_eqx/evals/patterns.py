"""Patterns of causal importance that a toy is known to have, and how far a decomposition is from them.

Fed one feature at a time, a site that handles features separately should use one component for each: an
identity matrix, up to the order of components. A site that mixes all features should use the same `k`
components for all of them: `k` dense columns. The errors count entries on the wrong side of a tolerance,
strictly, so that an importance of exactly 0.1 passes at tolerance 0.1.
"""

import abc
import dataclasses
import difflib
import fnmatch
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pd_eqx.evals.metric import Arrays, ProductMetric, Report
from pd_eqx.evals.observation import decomposed_sites
from pd_eqx.linear import capture
from pd_eqx.state import Decomposition
from pd_eqx.step import Target

# Below this many rows and columns the matching is exact; above, greedy.
EXACT_BELOW = 500


def match_columns(
    importances: Float[np.ndarray, "rows C"], exact: bool | None = None
) -> Int[np.ndarray, " C"]:
    """The order of columns that puts as much importance as possible on the diagonal.

    **Arguments:**

    - `importances`: one row a feature, one column a component. Where there are more rows than columns, only
      the first `C` rows are matched.
    - `exact`: Hungarian matching (needs scipy) or a greedy one; by default exact below 500.

    **Returns:** a permutation of the columns; those that are matched to no row follow in their own order.

    Source: golden numbers `11_metrics`, `ident`.
    """
    rows, columns = importances.shape
    matched = min(rows, columns)
    if exact is None:
        exact = matched < EXACT_BELOW
    block = importances[:matched]
    chosen = _hungarian(block) if exact else _greedy(block)
    rest = np.setdiff1d(np.arange(columns), chosen)
    return np.concatenate([chosen, rest]).astype(np.int64)


def _hungarian(block: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " rows"]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as missing:
        raise ImportError(
            "matching components to features exactly needs scipy: pip install 'pd_eqx[cli]'"
        ) from missing
    _, columns = linear_sum_assignment(block, maximize=True)
    return columns


def _greedy(block: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " rows"]:
    free: Bool[np.ndarray, " C"] = np.ones(block.shape[1], dtype=bool)
    chosen = np.zeros(block.shape[0], dtype=np.int64)
    for row, values in enumerate(block):
        chosen[row] = np.argmax(np.where(free, values, -np.inf))
        free[chosen[row]] = False
    return chosen


def identity_error(importances: Float[np.ndarray, "n C"], tolerance: float) -> int:
    """Entries that keep a matrix from being an identity, in its own column order.

    Counts diagonal entries below `1 − tolerance` and all others above `tolerance`, those of surplus columns included.

    **Errors:** `ValueError` where there are fewer components than features.

    Source: Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `11_metrics`, `ident`.
    """
    rows, columns = importances.shape
    if columns < rows:
        raise ValueError(
            f"an identity pattern needs a component for each of {rows} features, found {columns} "
            "components; give the site more, or expect Dense(k) of it"
        )
    diagonal = np.eye(rows, columns, dtype=bool)
    weak = np.sum(importances[diagonal] < 1.0 - tolerance)
    stray = np.sum(importances[~diagonal] > tolerance)
    return int(weak + stray)


def order_by_mass(importances: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " C"]:
    """Columns by their sums, the largest first; equal ones keep their order."""
    return np.argsort(-importances.sum(axis=0), kind="stable")


def dense_error(
    importances: Float[np.ndarray, "rows C"], k: int, tolerance: float, min_entries: int = 1
) -> int:
    """Entries that keep a matrix from having exactly `k` active columns.

    Of the `k` columns with the largest sums each lacks `min_entries` entries of at least `1 − tolerance`, less those
    it has; of the others every entry above `tolerance` counts.

    Source: golden numbers `11_metrics`, `dense`.
    """
    ordered = importances[:, order_by_mass(importances)]
    strong = np.sum(ordered[:, :k] >= 1.0 - tolerance, axis=0)
    missing = np.sum(np.maximum(min_entries - strong, 0))
    stray = np.sum(ordered[:, k:] > tolerance)
    return int(missing + stray)


class Pattern(abc.ABC):
    """What a site's importances should look like, fed one feature at a time."""

    @abc.abstractmethod
    def order(self, importances: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " C"]:
        """The order of columns in which the pattern shows."""

    @abc.abstractmethod
    def error(self, importances: Float[np.ndarray, "rows C"], tolerance: float) -> int:
        """How many entries break the pattern."""


@dataclasses.dataclass(frozen=True)
class Identity(Pattern):
    """One component for each feature."""

    def order(self, importances: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " C"]:
        """See `Pattern.order`."""
        return match_columns(importances)

    def error(self, importances: Float[np.ndarray, "rows C"], tolerance: float) -> int:
        """See `Pattern.error`."""
        if importances.shape[1] >= importances.shape[0]:
            importances = importances[:, self.order(importances)]
        return identity_error(importances, tolerance)


@dataclasses.dataclass(frozen=True)
class Dense(Pattern):
    """The same `k` components for all features; each must be whole for at least `min_entries` of them."""

    k: int
    min_entries: int = 1

    def order(self, importances: Float[np.ndarray, "rows C"]) -> Int[np.ndarray, " C"]:
        """See `Pattern.order`."""
        return order_by_mass(importances)

    def error(self, importances: Float[np.ndarray, "rows C"], tolerance: float) -> int:
        """See `Pattern.error`."""
        return dense_error(importances, self.k, tolerance, self.min_entries)


@dataclasses.dataclass(frozen=True)
class SingleFeatures(ProductMetric):
    """The importances of a target that is fed one feature at a time, against what is expected of each site.

    - `n_features`, `value`: row `f` of the probe is `value` at feature `f` and 0 elsewhere.
    - `expected`: a pattern by site, or by a glob over sites; the last that matches counts. Sites that none
      matches are drawn but not judged.
    - `tolerances`: at which errors are counted.
    """

    n_features: int
    expected: Mapping[str, Pattern] = dataclasses.field(default_factory=dict[str, Pattern])
    value: float = 0.75
    tolerances: tuple[float, ...] = (0.1, 0.2)

    def measure(
        self, decomposition: Decomposition, target: Target
    ) -> dict[str, Float[Array, "n_features _"]]:
        """Lower-squashed importances `[n_features, C]` by site.

        **Errors:** `ValueError` for an expectation that matches no decomposed site.
        """
        self._patterns(decomposed_sites(decomposition, target))
        dtype = next(iter(decomposition.components.V.values())).dtype
        probe = self.value * jnp.eye(self.n_features, dtype=dtype)
        _, site_inputs, _ = capture(target, probe, decomposition.components.V)
        return decomposition.ci_fn(site_inputs, decomposition.components).lower

    def report(self, values: Any, sites: list[str]) -> tuple[Report, Arrays]:
        """Errors by site and tolerance; the matrices, and the order of columns in which each pattern shows."""
        patterns = self._patterns(sites)
        errors: dict[str, dict[str, int]] = {}
        orders: dict[str, Any] = {}
        for site in sites:
            matrix = np.asarray(values[site])
            orders[site] = patterns.get(site, Identity()).order(matrix)
            if site in patterns:
                errors[site] = {
                    str(tolerance): patterns[site].error(matrix, tolerance)
                    for tolerance in self.tolerances
                }
        matrices = {site: np.asarray(values[site]) for site in sites}
        return {"identity_ci_error": errors}, {"single_features": matrices, "order": orders}

    def _patterns(self, sites: list[str]) -> dict[str, Pattern]:
        chosen: dict[str, Pattern] = {}
        for glob, pattern in self.expected.items():
            matching = fnmatch.filter(sites, glob)
            if not matching:
                nearest = difflib.get_close_matches(glob, sites, n=1, cutoff=0.0)
                raise ValueError(
                    f"expected pattern {glob!r} matches no decomposed site; "
                    f"the nearest is {nearest[0]!r}"
                )
            chosen.update(dict.fromkeys(matching, pattern))
        return chosen
