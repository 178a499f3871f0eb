"""What every causal-importance function promises.

It reads the clean input of every site and says, for each position and component, how much the component matters
there. It never sees a masked activation: the clean forward has no gradient, and neither has what is read from it.
"""

import abc
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from pd_eqx.ci.squashing import Squashing
from pd_eqx.components import Components
from pd_eqx.precision import as_dtype, is_floating
from pd_eqx.stream import SiteInput, as_vectors


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
    """A function from each site's clean input to one logit per component and position.

    Its leaves are its parameters, all of them trained; anything computed (rotary tables) is no leaf.
    """

    squashing: eqx.AbstractVar[Squashing]

    @abc.abstractmethod
    def logits(
        self, site_inputs: Mapping[str, SiteInput], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """Unsquashed importances `[*lead, C]` by site, from site inputs `[*lead, d_in]`."""

    def __call__(
        self,
        site_inputs: Mapping[str, SiteInput],
        components: Components,
        noise: Mapping[str, Array] | None = None,
    ) -> CausalImportances:
        """Squashed importances.

        Logits are computed in the dtype of the site inputs, whatever that of the parameters, and squashed in
        float32 or wider.

        **Arguments:**

        - `site_inputs`: the clean input of each site, `[*lead, d_in]` or a stream that stands for it, or integers
          `[*lead]` where the site is an embedding. Sites that are not decomposed are ignored.
        - `components`: whose V the per-component functions read, and whose sites the result has.
        - `noise`: uniform draws in [0, 1) of the logits' shapes, for binomial sources only: the lower
          squashing then sees `1.05 · logit − 0.05 · noise` (golden numbers `09_ci_fns`, `binomial`).

        **Errors:** `ValueError` naming the decomposed sites that have no input, or no logits.
        """
        missing = sorted(set(components.V) - set(site_inputs))
        if missing:
            raise ValueError(
                f"no clean input for sites {missing}, only for {sorted(site_inputs)}; capture them from the "
                "target that these components decompose"
            )
        site_inputs = {site: site_inputs[site] for site in sorted(components.V)}
        dtypes = [x.dtype for x in site_inputs.values() if is_floating(x)]
        dtype = jnp.result_type(*dtypes) if dtypes else None
        logits = as_dtype(self, dtype).logits(site_inputs, as_dtype(components, dtype))
        if set(logits) != set(components.V):
            raise ValueError(
                f"{type(self).__name__} gives importances of {sorted(logits)}, but the decomposed sites are "
                f"{sorted(components.V)}; make it for these components"
            )
        logits = {site: _at_least_float32(logits[site]) for site in site_inputs}
        lower_in = logits
        if noise is not None:
            lower_in = {site: 1.05 * x - 0.05 * noise[site] for site, x in logits.items()}
        return CausalImportances(
            lower={site: self.squashing.lower(x) for site, x in lower_in.items()},
            upper={site: self.squashing.upper(x) for site, x in logits.items()},
            logits=logits,
        )


def vectors(site_inputs: Mapping[str, SiteInput], site: str) -> Float[Array, "*lead d_in"]:
    """A site's input, which must be vectors.

    **Errors:** `ValueError` naming an embedding: its integers are no vector.
    """
    x = as_vectors(site_inputs[site])
    if not is_floating(x):
        raise ValueError(
            f"site {site!r} is called with integers {x.dtype}{list(x.shape)}, as an embedding is; of the importance "
            "functions only one MLP per component can read those"
        )
    return x


def concatenated(
    site_inputs: Mapping[str, SiteInput], sites: Sequence[str]
) -> Float[Array, "*lead d"]:
    """The inputs of several sites side by side, in the order given.

    **Errors:** as `check_same_positions`.
    """
    check_same_positions(site_inputs, sites)
    return jnp.concatenate([vectors(site_inputs, site) for site in sites], axis=-1)


def check_same_positions(site_inputs: Mapping[str, SiteInput], sites: Sequence[str]) -> None:
    """Refuses sites that one function cannot see together.

    **Errors:** `ValueError` naming sites whose positions `*lead` differ.
    """
    leads = {site: vectors(site_inputs, site).shape[:-1] for site in sites}
    if len(set(leads.values())) > 1:
        raise ValueError(
            f"one importance function over several sites needs the same positions at each, found {leads}; "
            "decompose sites that agree, or use a function for each site"
        )


def split_by_site(
    logits: Float[Array, "*lead total"], sites: Sequence[str], components: Components
) -> dict[str, Float[Array, "..."]]:
    """Logits side by side, in the order of `sites`, as one array a site."""
    ends: list[int] = []
    for site in sites:
        ends.append((ends[-1] if ends else 0) + components.counts[site])
    parts = jnp.split(logits, ends[:-1], axis=-1)
    return dict(zip(sites, parts, strict=True))


def _at_least_float32(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
