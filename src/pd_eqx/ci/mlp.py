"""Causal importance by small MLPs: one for each component, one for each site, or one over all sites.

Hidden layers use the exact (erf) GELU. Weights multiply on the right. Initial weights are normal with
variance 2/fan_in (hidden) and 1/fan_in (output); biases start at zero.

Source: golden numbers `09_ci_fns`, `09b_global_ci_fns_devbranch`.
"""

import abc
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.ci.base import CIFunction, concatenated, split_by_site, vectors
from pd_eqx.ci.scalar_mlp import gelu, scalar_mlps
from pd_eqx.ci.squashing import PUBLISHED, Squashing
from pd_eqx.components import Components, component_activations
from pd_eqx.stream import SiteInput


class Dense(eqx.Module):
    """`x @ weight + bias`, or a stack of `C` such maps applied side by side.

    - `weight`: `[n_in, n_out]`, or `[C, n_in, n_out]`.
    - `bias`: `[n_out]`, or `[C, n_out]`.
    """

    weight: Float[Array, "*stack n_in n_out"]
    bias: Float[Array, "*stack n_out"]


def init_mlp(
    key: PRNGKeyArray, widths: Sequence[int], stack: tuple[int, ...] = ()
) -> tuple[Dense, ...]:
    """Layers of the given widths, `widths[0]` in and `widths[-1]` out, stacked over `stack`.

    **Errors:** `ValueError` for widths that make no layer.
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"an MLP needs widths of 1 or more, first in and last out: found {widths}")
    pairs = list(itertools.pairwise(widths))
    layers: list[Dense] = []
    for index, (n_in, n_out) in enumerate(pairs):
        gain = 1.0 if index == len(pairs) - 1 else 2.0
        weight = jax.random.normal(jax.random.fold_in(key, index), (*stack, n_in, n_out))
        layers.append(Dense(weight * math.sqrt(gain / n_in), jnp.zeros((*stack, n_out))))
    return tuple(layers)


def apply_mlp(
    layers: Sequence[Dense], x: Float[Array, "*lead n_in"]
) -> Float[Array, "*lead n_out"]:
    """The MLP of unstacked layers."""
    for index, layer in enumerate(layers):
        if index > 0:
            x = gelu(x)
        x = x @ layer.weight + layer.bias
    return x


class SiteCI(eqx.Module):
    """The causal-importance function of one site."""

    @abc.abstractmethod
    def logits(
        self, site: str, site_inputs: Mapping[str, SiteInput], V: Float[Array, "d_in C"]
    ) -> Float[Array, "*lead C"]:
        """Logits of a site's components, from the site's input `[*lead, d_in]`."""


class ComponentMLP(SiteCI):
    """One MLP per component, on that component's activation `(x @ V)[c]`, a scalar.

    Gradients reach V through the activation. The only one that can read an embedding's integers.
    """

    layers: tuple[Dense, ...]

    def logits(
        self, site: str, site_inputs: Mapping[str, SiteInput], V: Float[Array, "d_in C"]
    ) -> Float[Array, "*lead C"]:
        """See `SiteCI.logits`."""
        activations = component_activations(site_inputs[site], V)
        if len(self.layers) != 2:
            return _side_by_side(self.layers, activations[..., None])
        hidden, last = self.layers
        weight_in, weight_out = hidden.weight[:, 0, :], last.weight[:, :, 0]
        return scalar_mlps(activations, weight_in, hidden.bias, weight_out, last.bias[:, 0])


class VectorMLP(SiteCI):
    """One MLP per component, on the site's whole input."""

    layers: tuple[Dense, ...]

    def logits(
        self, site: str, site_inputs: Mapping[str, SiteInput], V: Float[Array, "d_in C"]
    ) -> Float[Array, "*lead C"]:
        """See `SiteCI.logits`."""
        first, *rest = self.layers
        x = vectors(site_inputs, site)
        hidden = jnp.einsum("...i,cio->...co", x, first.weight) + first.bias
        return _side_by_side(rest, gelu(hidden)) if rest else hidden[..., 0]


class SharedMLP(SiteCI):
    """One MLP from the site's input to all of its components."""

    layers: tuple[Dense, ...]

    def logits(
        self, site: str, site_inputs: Mapping[str, SiteInput], V: Float[Array, "d_in C"]
    ) -> Float[Array, "*lead C"]:
        """See `SiteCI.logits`."""
        return apply_mlp(self.layers, vectors(site_inputs, site))


class LayerwiseCI(CIFunction):
    """Each site decides by itself, from its own input.

    - `sites`: one function a site.
    """

    sites: dict[str, SiteCI]
    squashing: Squashing = eqx.field(static=True, default=PUBLISHED)

    def logits(
        self, site_inputs: Mapping[str, SiteInput], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """See `CIFunction.logits`."""
        return {
            site: fn.logits(site, site_inputs, components.V[site])
            for site, fn in self.sites.items()
            if site in components.V
        }


class GlobalMLP(CIFunction):
    """One MLP from the inputs of all sites, side by side in the order of their names, to all components."""

    layers: tuple[Dense, ...]
    squashing: Squashing = eqx.field(static=True, default=PUBLISHED)

    def logits(
        self, site_inputs: Mapping[str, SiteInput], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """See `CIFunction.logits`."""
        sites = sorted(components.V)
        logits = apply_mlp(self.layers, concatenated(site_inputs, sites))
        return split_by_site(logits, sites, components)


def init_component_mlps(
    key: PRNGKeyArray,
    components: Components,
    hidden: Sequence[int],
    squashing: Squashing = PUBLISHED,
) -> LayerwiseCI:
    """A `ComponentMLP` of the given hidden widths for each site."""

    def init(key: PRNGKeyArray, V: Float[Array, "d_in C"]) -> SiteCI:
        return ComponentMLP(init_mlp(key, (1, *hidden, 1), (V.shape[1],)))

    return _layerwise(key, components, init, squashing)


def init_vector_mlps(
    key: PRNGKeyArray,
    components: Components,
    hidden: Sequence[int],
    squashing: Squashing = PUBLISHED,
) -> LayerwiseCI:
    """A `VectorMLP` of the given hidden widths for each site."""

    def init(key: PRNGKeyArray, V: Float[Array, "d_in C"]) -> SiteCI:
        return VectorMLP(init_mlp(key, (V.shape[0], *hidden, 1), (V.shape[1],)))

    return _layerwise(key, components, init, squashing)


def init_shared_mlps(
    key: PRNGKeyArray,
    components: Components,
    hidden: Sequence[int],
    squashing: Squashing = PUBLISHED,
) -> LayerwiseCI:
    """A `SharedMLP` of the given hidden widths for each site."""

    def init(key: PRNGKeyArray, V: Float[Array, "d_in C"]) -> SiteCI:
        return SharedMLP(init_mlp(key, (V.shape[0], *hidden, V.shape[1])))

    return _layerwise(key, components, init, squashing)


def init_global_mlp(
    key: PRNGKeyArray,
    components: Components,
    hidden: Sequence[int],
    squashing: Squashing = PUBLISHED,
) -> GlobalMLP:
    """A `GlobalMLP` of the given hidden widths."""
    d_in = sum(V.shape[0] for V in components.V.values())
    widths = (d_in, *hidden, sum(components.counts.values()))
    return GlobalMLP(layers=init_mlp(key, widths), squashing=squashing)


def _side_by_side(
    layers: Sequence[Dense], x: Float[Array, "*lead C n_in"]
) -> Float[Array, "*lead C"]:
    """`C` MLPs, each on its own row and each to a scalar."""
    for index, layer in enumerate(layers):
        if index > 0:
            x = gelu(x)
        x = jnp.einsum("...ci,cio->...co", x, layer.weight) + layer.bias
    return x[..., 0]


def _layerwise(
    key: PRNGKeyArray,
    components: Components,
    init: Callable[[PRNGKeyArray, Float[Array, "_ _"]], SiteCI],
    squashing: Squashing,
) -> LayerwiseCI:
    sites = {
        site: init(jax.random.fold_in(key, index), components.V[site])
        for index, site in enumerate(sorted(components.V))
    }
    return LayerwiseCI(sites=sites, squashing=squashing)
