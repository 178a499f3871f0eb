"""One batch as evaluation sees it: the clean forward and the importances, computed once for all metrics."""

import math
from collections.abc import Collection, Mapping

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components
from pd_eqx.linear import capture, masked, recording
from pd_eqx.masks import SiteMask
from pd_eqx.state import Decomposition
from pd_eqx.step import BatchSource, Target
from pd_eqx.unembedding import Outputs


class Observation(eqx.Module):
    """A batch, and all that is known of it before anything is ablated.

    - `target`, `components`: the frozen network and what it is taken apart into.
    - `inputs`, `clean`: the batch and the target's output on it.
    - `site_inputs`, `site_outputs`: what each decomposed site saw, and said before any bias, in the clean forward.
    - `importances`: of every component at every position.
    """

    target: Target
    components: Components
    inputs: Array
    clean: Outputs
    site_inputs: dict[str, Array]
    site_outputs: dict[str, Float[Array, "..."]]
    importances: CausalImportances

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return next(iter(self.importances.lower.values())).shape[:-1]

    @property
    def positions(self) -> int:
        """How many positions the batch has."""
        return math.prod(self.lead)

    def ablated(self, masks: Mapping[str, SiteMask]) -> Outputs:
        """The output with components masked."""
        return self.target(self.inputs, masked(self.components, masks))

    def ablated_activations(
        self, masks: Mapping[str, SiteMask], sites: Collection[str] | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """What sites see, and say before any bias, with components masked.

        **Arguments:**

        - `sites`: which; the decomposed ones if left out.
        """
        site_inputs: dict[str, Array] = {}
        site_outputs: dict[str, Array] = {}
        sites = self.components.V if sites is None else sites
        linear = masked(self.components, masks)
        self.target(self.inputs, recording(linear, site_inputs, site_outputs, sites))
        return site_inputs, site_outputs


def observe(decomposition: Decomposition, target: Target, inputs: Array) -> Observation:
    """The clean forward of `target` on a batch, and its importances."""
    clean, site_inputs, site_outputs = capture(target, inputs, decomposition.components.V)
    return Observation(
        target=target,
        components=decomposition.components,
        inputs=inputs,
        clean=clean,
        site_inputs=site_inputs,
        site_outputs=site_outputs,
        importances=decomposition.ci_fn(site_inputs, decomposition.components),
    )


def decomposed_sites(decomposition: Decomposition, target: Target) -> list[str]:
    """Names of the decomposed sites in the target's own order, which a pytree's dictionaries do not keep."""
    return [site.name for site in target.sites() if site.name in decomposition.components.V]


def draw_batch(
    batches: BatchSource, key: PRNGKeyArray, index: Int[Array, ""]
) -> tuple[Array, PRNGKeyArray]:
    """Batch `index` of an evaluation, and the key that its metrics draw from; both from `fold_in(key, index)` alone."""
    key_batch, key_metrics = jax.random.split(jax.random.fold_in(key, index))
    return batches(key_batch, index), key_metrics
