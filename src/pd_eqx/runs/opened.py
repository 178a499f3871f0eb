"""What can be asked of a decomposition that somebody else trained.

A run and an export are opened differently and answer the same questions. Each answer is a pure function of the
inputs: target and decomposition are arguments of what is compiled, so two opened at a time share one executable where
their shapes agree.
"""

import abc
import contextlib
import dataclasses
import difflib
from collections.abc import Generator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pd_eqx import components as components_
from pd_eqx.ci.base import CausalImportances
from pd_eqx.linear import capture, masked
from pd_eqx.masks import SiteMask
from pd_eqx.sites import UnknownSiteError
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target
from pd_eqx.unembedding import logits_of


@dataclasses.dataclass(frozen=True)
class Opened(abc.ABC):
    """A target, the decomposition of it, and what they say of inputs.

    - `target`: the frozen network.
    - `decomposition`: the product.

    Inputs are what the target reads: features `[*lead, n_features]` or tokens `[batch, length]`.

    **Errors:** `ValueError` from every answer for inputs that the target cannot read, or masks of other positions.
    """

    target: Target
    decomposition: Decomposition

    def output(self, inputs: ArrayLike) -> Float[Array, "..."]:
        """The target's own output."""
        with _read(inputs) as array:
            return _output(self.target, array)

    def causal_importances(self, inputs: ArrayLike) -> CausalImportances:
        """How much each component matters at each position, `[*lead, C]` by site."""
        with _read(inputs) as array:
            return _importances(self.target, self.decomposition, array)

    def component_activations(self, inputs: ArrayLike) -> dict[str, Float[Array, "..."]]:
        """How much of each component the site's clean input holds, `x @ V [*lead, C]` by site."""
        with _read(inputs) as array:
            return _activations(self.target, self.decomposition, array)

    def masked_output(
        self, inputs: ArrayLike, masks: Mapping[str, SiteMask | ArrayLike]
    ) -> Float[Array, "..."]:
        """The output with components masked: `((x @ V) · m) @ U + m_Δ · (x @ Δ)` at the sites that have a mask.

        **Arguments:**

        - `masks`: by site: the factor of each component, `[C]` or `[*lead, C]`, and then without the delta; or a
          `SiteMask`, which says it all.

        **Errors:** `UnknownSiteError` for a site that is not decomposed; `ValueError` for a mask of another width.
        """
        chosen: dict[str, SiteMask] = {}
        for site, mask in masks.items():
            count = self._count(site)
            of_site = mask if isinstance(mask, SiteMask) else SiteMask(jnp.asarray(mask))
            if of_site.component is not None and of_site.component.shape[-1] != count:
                raise ValueError(
                    f"the mask of site {site!r} is {list(of_site.component.shape)}, but the site has {count} "
                    f"components; its last axis must be {count}"
                )
            chosen[site] = of_site
        with _read(inputs) as array:
            return _masked_output(self.target, self.decomposition, array, chosen)

    def ablate(
        self, inputs: ArrayLike, components: Mapping[str, Sequence[int]]
    ) -> Float[Array, "..."]:
        """The output without some components: their `V[:, c] ⊗ U[c, :]` is subtracted from the site's weight.

        All else stays, what the components leave unexplained too; so ablating nothing changes no bit.

        **Arguments:**

        - `components`: numbers of components by site.

        **Errors:** `UnknownSiteError` for a site that is not decomposed; `ValueError` for a number out of range.
        """
        masks: dict[str, SiteMask] = {}
        for site, numbers in components.items():
            count = self._count(site)
            wrong = [number for number in numbers if not 0 <= number < count]
            if wrong:
                raise ValueError(
                    f"site {site!r} has components 0 to {count - 1}, and no component {wrong[0]}"
                )
            kept = np.ones(count, np.float32)
            kept[np.asarray(numbers, np.int64)] = 0.0
            masks[site] = SiteMask(jnp.asarray(kept), delta=jnp.ones(()))
        with _read(inputs) as array:
            return _masked_output(self.target, self.decomposition, array, masks)

    def _count(self, site: str) -> int:
        counts = self.decomposition.components.counts
        if site not in counts:
            nearest = difflib.get_close_matches(site, counts, n=1, cutoff=0.0)[0]
            raise UnknownSiteError(
                f"site {site!r} is not decomposed; the nearest that is is {nearest!r}"
            )
        return counts[site]


@contextlib.contextmanager
def _read(inputs: ArrayLike) -> Generator[Array]:
    """The inputs as an array; an error of a program that is traced with them is said of them."""
    try:
        found = jnp.asarray(inputs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the inputs are no array of numbers: {error}") from error
    try:
        yield found
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"the target fails on inputs of shape {list(found.shape)} and type {found.dtype}; features are "
            f"[*lead, n_features], tokens integers [batch, length], and masks [C] or [*lead, C]. Where it failed: {error}"
        ) from error


@jax.jit
def _output(target: Target, inputs: Array) -> Array:
    return logits_of(target(inputs))


@jax.jit
def _importances(target: Target, decomposition: Decomposition, inputs: Array) -> CausalImportances:
    _, site_inputs, _ = capture(target, inputs, decomposition.components.V)
    return decomposition.ci_fn(site_inputs, decomposition.components)


@jax.jit
def _activations(target: Target, decomposition: Decomposition, inputs: Array) -> dict[str, Array]:
    _, site_inputs, _ = capture(target, inputs, decomposition.components.V)
    return {
        site: components_.component_activations(site_inputs[site], V)
        for site, V in decomposition.components.V.items()
    }


@jax.jit
def _masked_output(
    target: Target, decomposition: Decomposition, inputs: Array, masks: dict[str, SiteMask]
) -> Array:
    return logits_of(target(inputs, masked(decomposition.components, masks)))
