"""What every causal-importance function promises."""

import abc
from collections.abc import Mapping

import equinox as eqx
from jaxtyping import Array, Float

from pd_eqx.ci.squashing import Squashing
from pd_eqx.components import Components


class CausalImportances(eqx.Module):
    """Causal importances of every component at every position, by site, each `[*lead, C]`.

    - `lower`: in [0, 1]; feeds the masks. Its gradient leaks below 0.
    - `upper`: at least 0; feeds importance minimality. It leaks above 1.
    - `logits`: before squashing.
    """

    lower: dict[str, Float[Array, "..."]]
    upper: dict[str, Float[Array, "..."]]
    logits: dict[str, Float[Array, "..."]]


class CIFunction(eqx.Module):
    """A function from each site's clean input to one logit per component and position."""

    squashing: eqx.AbstractVar[Squashing]

    @abc.abstractmethod
    def logits(
        self, site_inputs: Mapping[str, Array], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """Unsquashed importances `[*lead, C]` by site, from site inputs `[*lead, d_in]`."""

    def __call__(
        self,
        site_inputs: Mapping[str, Array],
        components: Components,
        noise: Mapping[str, Array] | None = None,
    ) -> CausalImportances:
        """Squashed importances.

        **Arguments:**

        - `site_inputs`: the clean input of each site, `[*lead, d_in]`.
        - `components`: whose V the per-component functions read.
        - `noise`: uniform draws in [0, 1) of the logits' shapes, for binomial sources only: the lower
          squashing then sees `1.05 · logit − 0.05 · noise` (golden numbers `09_ci_fns`, `binomial`).
        """
        logits = self.logits(site_inputs, components)
        lower_in = logits
        if noise is not None:
            lower_in = {site: 1.05 * x - 0.05 * noise[site] for site, x in logits.items()}
        return CausalImportances(
            lower={site: self.squashing.lower(x) for site, x in lower_in.items()},
            upper={site: self.squashing.upper(x) for site, x in logits.items()},
            logits=logits,
        )
