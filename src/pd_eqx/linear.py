"""The linear maps that a target is called with: frozen, capturing, masked.

A target routes every decomposable weight through a function it is given, so that one forward pass
serves as the clean one, the capturing one and every masked one. There are no hooks, and no second
forward that could fall out of step with the first.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array

from pd_eqx.components import Components
from pd_eqx.masks import SiteMask


@runtime_checkable
class LinearMap(Protocol):
    """What a target calls for each site: `(site name, x [*lead, d_in], W [d_in, d_out]) → [*lead, d_out]`.

    An integer `x [*lead]` stands for one-hot rows, as at an embedding: the result is then `W[x]`.
    """

    def __call__(self, site: str, x: Array, weight: Array, /) -> Array: ...


@runtime_checkable
class CallableWithLinear(Protocol):
    """Anything with a forward that takes its linear map as an argument: `(inputs, linear) → outputs`."""

    def __call__(self, inputs: Array, linear: LinearMap = ..., /) -> Array: ...


def frozen(site: str, x: Array, weight: Array) -> Array:
    """The target's own map, `x @ W`."""
    del site
    return _apply(x, weight)


def capture(
    target: CallableWithLinear, inputs: Array
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Runs the target clean and records what each site saw and said.

    **Returns:** the output, each site's input `[*lead, d_in]`, and each site's output before any bias
    `[*lead, d_out]`, by site name. What the caller does not use costs nothing under `jit`.

    **Errors:** `ValueError` if the target calls one site twice: its two inputs could not be told apart.
    """
    site_inputs: dict[str, Array] = {}
    site_outputs: dict[str, Array] = {}
    outputs = target(inputs, recording(frozen, site_inputs, site_outputs))
    return outputs, site_inputs, site_outputs


def recording(
    linear: LinearMap, site_inputs: dict[str, Array], site_outputs: dict[str, Array]
) -> LinearMap:
    """`linear`, writing each site's input and output into the two dictionaries as the target is traced."""

    def record(site: str, x: Array, weight: Array) -> Array:
        if site in site_inputs:
            raise ValueError(
                f"the target calls site {site!r} twice in one forward; give each call a name"
            )
        site_inputs[site] = x
        site_outputs[site] = linear(site, x, weight)
        return site_outputs[site]

    return record


def masked(components: Components, masks: Mapping[str, SiteMask]) -> LinearMap:
    """The map with components ablated: `((x @ V) · m) @ U + m_Δ · (x @ Δ)` with `Δ = W − V @ U`.

    Sites without a mask run frozen. Where a mask carries a route, positions that are not routed take the
    frozen output. The delta's part is computed as `m_Δ · (x @ W) − m_Δ · (x @ V) @ U`, so that `Δ` is never
    formed and gradients reach V and U through it.

    Source: golden numbers `02_component_forward`.
    """

    def linear(site: str, x: Array, weight: Array) -> Array:
        mask = masks.get(site)
        if mask is None:
            return _apply(x, weight)
        activations = _apply(x, components.V[site])
        scale = mask.component
        if mask.delta is not None:
            delta = mask.delta[..., None]
            scale = (1.0 if scale is None else scale) - delta
        scaled = activations if scale is None else activations * scale
        outputs = scaled @ components.U[site]
        if mask.delta is None and mask.route is None:
            return outputs
        clean = _apply(x, weight)
        if mask.delta is not None:
            outputs = outputs + mask.delta[..., None] * clean
        if mask.route is not None:
            outputs = jnp.where(mask.route[..., None], outputs, clean)
        return outputs

    return linear


def _apply(x: Array, matrix: Array) -> Array:
    return matrix[x] if jnp.issubdtype(x.dtype, jnp.integer) else x @ matrix
