"""Causal importance by small MLPs, one for each site: per component, or shared by a site's components.

Hidden layers use the exact (erf) GELU. Weights multiply on the right. Initial weights are normal with
variance 2/fan_in (hidden) and 1/fan_in (output); biases start at zero.

Source: golden numbers `09_ci_fns`.
"""

import abc
import itertools
import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.ci.base import CIFunction
from pd_eqx.ci.squashing import LeakyHard, Squashing
from pd_eqx.components import Components


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
    """Layers of the given widths, `widths[0]` in and `widths[-1]` out, stacked over `stack`."""
    pairs = list(itertools.pairwise(widths))
    layers: list[Dense] = []
    for index, (n_in, n_out) in enumerate(pairs):
        gain = 1.0 if index == len(pairs) - 1 else 2.0
        weight = jax.random.normal(jax.random.fold_in(key, index), (*stack, n_in, n_out))
        layers.append(Dense(weight * math.sqrt(gain / n_in), jnp.zeros((*stack, n_out))))
    return tuple(layers)


def apply_mlp(layers: Sequence[Dense], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The MLP on `x [*lead, n_in]`."""
    for index, layer in enumerate(layers):
        if index > 0:
            x = jax.nn.gelu(x, approximate=False)
        x = x @ layer.weight + layer.bias
    return x


class SiteCI(eqx.Module):
    """The causal-importance function of one site."""

    @abc.abstractmethod
    def logits(self, x: Float[Array, "..."], V: Float[Array, "d_in C"]) -> Float[Array, "..."]:
        """Logits `[*lead, C]` from the site's input `[*lead, d_in]`."""


class ComponentMLP(SiteCI):
    """One MLP per component, on that component's activation `(x @ V)[c]`, a scalar.

    Gradients reach V through the activation.
    """

    layers: tuple[Dense, ...]

    def logits(self, x: Float[Array, "..."], V: Float[Array, "d_in C"]) -> Float[Array, "..."]:
        """See `SiteCI.logits`."""
        hidden = (x @ V)[..., None]
        return _stacked_mlp(self.layers, hidden)


class VectorMLP(SiteCI):
    """One MLP per component, on the site's whole input."""

    layers: tuple[Dense, ...]

    def logits(self, x: Float[Array, "..."], V: Float[Array, "d_in C"]) -> Float[Array, "..."]:
        """See `SiteCI.logits`."""
        first, *rest = self.layers
        hidden = jnp.einsum("...i,cio->...co", x, first.weight) + first.bias
        if not rest:
            return hidden[..., 0]
        return _stacked_mlp(rest, jax.nn.gelu(hidden, approximate=False))


class SharedMLP(SiteCI):
    """One MLP from the site's input to all of its components."""

    layers: tuple[Dense, ...]

    def logits(self, x: Float[Array, "..."], V: Float[Array, "d_in C"]) -> Float[Array, "..."]:
        """See `SiteCI.logits`."""
        return apply_mlp(self.layers, x)


class LayerwiseCI(CIFunction):
    """Each site decides by itself, from its own input.

    - `sites`: one function a site.
    """

    sites: dict[str, SiteCI]
    squashing: Squashing = eqx.field(static=True, default=LeakyHard())

    def logits(
        self, site_inputs: Mapping[str, Array], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """See `CIFunction.logits`."""
        return {
            site: fn.logits(site_inputs[site], components.V[site])
            for site, fn in self.sites.items()
        }


def _stacked_mlp(layers: Sequence[Dense], x: Array) -> Array:
    """`C` MLPs side by side on `x [*lead, C, n_in]`, each to a scalar: `[*lead, C]`."""
    for index, layer in enumerate(layers):
        if index > 0:
            x = jax.nn.gelu(x, approximate=False)
        x = jnp.einsum("...ci,cio->...co", x, layer.weight) + layer.bias
    return x[..., 0]


def init_component_mlps(
    key: PRNGKeyArray, components: Components, hidden: Sequence[int]
) -> LayerwiseCI:
    """A `ComponentMLP` of the given hidden widths for each site."""
    return LayerwiseCI(
        {
            site: ComponentMLP(init_mlp(k, (1, *hidden, 1), (V.shape[1],)))
            for site, V, k in _by_site(key, components)
        }
    )


def init_vector_mlps(
    key: PRNGKeyArray, components: Components, hidden: Sequence[int]
) -> LayerwiseCI:
    """A `VectorMLP` of the given hidden widths for each site."""
    return LayerwiseCI(
        {
            site: VectorMLP(init_mlp(k, (V.shape[0], *hidden, 1), (V.shape[1],)))
            for site, V, k in _by_site(key, components)
        }
    )


def init_shared_mlps(
    key: PRNGKeyArray, components: Components, hidden: Sequence[int]
) -> LayerwiseCI:
    """A `SharedMLP` of the given hidden widths for each site."""
    return LayerwiseCI(
        {
            site: SharedMLP(init_mlp(k, (V.shape[0], *hidden, V.shape[1])))
            for site, V, k in _by_site(key, components)
        }
    )


def _by_site(
    key: PRNGKeyArray, components: Components
) -> list[tuple[str, Float[Array, "_ _"], PRNGKeyArray]]:
    return [
        (site, components.V[site], jax.random.fold_in(key, index))
        for index, site in enumerate(sorted(components.V))
    ]
