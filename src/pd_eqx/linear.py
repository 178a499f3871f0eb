"""The linear maps that a target is called with: frozen, capturing, masked.

A target routes every decomposable weight through a function it is given, so that one forward pass
serves as the clean one, the capturing one and every masked one. There are no hooks, and no second
forward that could fall out of step with the first.

Any function will do. Those of this module can also be sliced (`SlicedMap`), so that a deep target may run its
alike layers under one scan, and can read and write a stream that is never formed (`StreamMap`). A function that
cannot is called layer by layer instead, and with vectors.
"""

import abc
import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pd_eqx.components import Components
from pd_eqx.masks import SiteMask
from pd_eqx.stream import SiteInput, Stream, as_vectors
from pd_eqx.unembedding import Outputs


@runtime_checkable
class LinearMap(Protocol):
    """What a target calls for each site: `(site name, x [*lead, d_in], W [d_in, d_out]) → [*lead, d_out]`.

    An integer `x [*lead]` stands for one-hot rows, as at an embedding: the result is then `W[x]`.
    """

    def __call__(self, site: str, x: Array, weight: Array, /) -> Array:
        """The site's output, before any bias."""
        ...


@runtime_checkable
class CallableWithLinear(Protocol):
    """Anything with a forward that takes its linear map as an argument: `(inputs, linear) → outputs`."""

    def __call__(self, inputs: Array, linear: LinearMap = ..., /) -> Outputs:
        """The outputs, with each site computed by `linear`."""
        ...


class SlicedMap(abc.ABC):
    """A linear map that can be handed to a scan over alike layers, one layer's slice at a time.

    In the scan's body a site goes by its kind (`attn.q`), which is the same in every layer. A layer is given as
    the site's name by kind.
    """

    @abc.abstractmethod
    def __call__(self, site: str, x: Array, weight: Array, /) -> Array:
        """See `LinearMap`."""

    @abc.abstractmethod
    def form(self, layer: Mapping[str, str]) -> Hashable:
        """What this map is at one layer, apart from its numbers: layers of equal form can share a scan."""

    @abc.abstractmethod
    def stack(self, layers: Sequence[Mapping[str, str]]) -> Any:
        """What this map needs at layers of equal form: a pytree whose leaves are `[len(layers), ...]`."""

    @abc.abstractmethod
    def at_layer(self, stacked: Any, layer: Mapping[str, str]) -> tuple[LinearMap, Any]:
        """The map of one layer, by kind, from that layer's slice of `stack`.

        `layer` is any of the layers, for what they have in common. The second value is a pytree of dictionaries
        that the map fills with arrays as the layer is traced.
        """

    @abc.abstractmethod
    def collect(self, filled: Any, layers: Sequence[Mapping[str, str]]) -> None:
        """Takes back what the dictionaries of `at_layer` were filled with, its leaves `[len(layers), ...]`."""


class StreamMap(abc.ABC):
    """A linear map that can read from a `Stream` and write to one, neither of which is formed for it."""

    @abc.abstractmethod
    def __call__(self, site: str, x: SiteInput, weight: Array, /) -> Array:
        """See `LinearMap`; `x` may be a stream."""

    @abc.abstractmethod
    def write(self, site: str, x: Array, weight: Array, /) -> Stream:
        """The same, as what is to be added to a stream."""


def read(linear: LinearMap, site: str, stream: Stream, weight: Array) -> Array:
    """A site's output where its input is a stream; a map that is no `StreamMap` gets it as vectors."""
    if isinstance(linear, StreamMap):
        return linear(site, stream, weight)
    return linear(site, stream.vectors(), weight)


def write(linear: LinearMap, site: str, x: Array, weight: Array) -> Stream:
    """A site's output where it is added to a stream; of a map that is no `StreamMap` it is formed already."""
    if isinstance(linear, StreamMap):
        return linear.write(site, x, weight)
    return Stream(formed=linear(site, x, weight))


@dataclasses.dataclass(frozen=True)
class Frozen(SlicedMap, StreamMap):
    """The target's own map, `x @ W`; `frozen` is its one instance."""

    def __call__(self, site: str, x: SiteInput, weight: Array, /) -> Array:
        """See `LinearMap`."""
        return _apply(x, weight)

    def write(self, site: str, x: Array, weight: Array, /) -> Stream:
        """See `StreamMap.write`."""
        return Stream(((x, weight),))

    def form(self, layer: Mapping[str, str]) -> Hashable:
        """See `SlicedMap.form`: all layers are alike."""
        return "frozen"

    def stack(self, layers: Sequence[Mapping[str, str]]) -> Any:
        """See `SlicedMap.stack`: nothing is needed."""
        return None

    def at_layer(self, stacked: Any, layer: Mapping[str, str]) -> tuple[LinearMap, Any]:
        """See `SlicedMap.at_layer`."""
        return self, None

    def collect(self, filled: Any, layers: Sequence[Mapping[str, str]]) -> None:
        """See `SlicedMap.collect`: nothing was filled."""


frozen = Frozen()


def capture(
    target: CallableWithLinear,
    inputs: Array,
    sites: Collection[str] | None = None,
    *,
    streams: bool = False,
) -> tuple[Outputs, dict[str, Any], dict[str, Array]]:
    """Runs the target clean and records what each site saw and said.

    **Arguments:**

    - `sites`: those to record; None for all. A scan over layers must keep what it records of every layer that it
      runs over, so on a deep target it pays to name them.
    - `streams`: give an input that the target gave as a `Stream` as that, and not as an array.

    **Returns:** the output, each site's input `[*lead, d_in]`, and each site's output before any bias
    `[*lead, d_out]`, by site name. What the caller does not use costs nothing under `jit`.

    **Errors:** `ValueError` if the target calls one site twice: its two inputs could not be told apart.
    """
    site_inputs: dict[str, Any] = {}
    site_outputs: dict[str, Array] = {}
    chosen = None if sites is None else tuple(sites)
    outputs = target(inputs, Recording(frozen, site_inputs, site_outputs, chosen, streams))
    return outputs, site_inputs, site_outputs


def recording(
    linear: LinearMap,
    site_inputs: dict[str, Array],
    site_outputs: dict[str, Array],
    sites: Collection[str] | None = None,
) -> LinearMap:
    """`linear`, writing each site's input and output into the two dictionaries as the target is traced.

    **Arguments:**

    - `sites`: those to record; None for all.
    """
    if isinstance(linear, SlicedMap):
        return Recording(linear, site_inputs, site_outputs, None if sites is None else tuple(sites))
    return _record_calls(linear, site_inputs, site_outputs, sites)


@dataclasses.dataclass(frozen=True)
class Recording(SlicedMap, StreamMap):
    """A map that can be sliced and also writes down what each site saw and said; see `recording` and `capture`."""

    linear: SlicedMap
    site_inputs: dict[str, Any]
    site_outputs: dict[str, Array]
    sites: Collection[str] | None
    streams: bool = False

    def __call__(self, site: str, x: SiteInput, weight: Array, /) -> Array:
        """See `LinearMap`."""
        if isinstance(x, Stream):
            outputs = read(self.linear, site, x, weight)
        else:
            outputs = self.linear(site, x, weight)
        self._record(site, x, outputs)
        return outputs

    def write(self, site: str, x: Array, weight: Array, /) -> Stream:
        """See `StreamMap.write`."""
        outputs = write(self.linear, site, x, weight)
        self._record(site, x, outputs.vectors())
        return outputs

    def form(self, layer: Mapping[str, str]) -> Hashable:
        """See `SlicedMap.form`: that of the map beneath, and which kinds are recorded."""
        return self.linear.form(layer), self._chosen(layer)

    def stack(self, layers: Sequence[Mapping[str, str]]) -> Any:
        """See `SlicedMap.stack`."""
        return self.linear.stack(layers)

    def at_layer(self, stacked: Any, layer: Mapping[str, str]) -> tuple[LinearMap, Any]:
        """See `SlicedMap.at_layer`: the dictionaries hold one layer's inputs and outputs, by kind."""
        linear, filled = self.linear.at_layer(stacked, layer)
        site_inputs: dict[str, Array] = {}
        site_outputs: dict[str, Array] = {}
        record = _record_calls(linear, site_inputs, site_outputs, self._chosen(layer))
        return record, (site_inputs, site_outputs, filled)

    def collect(self, filled: Any, layers: Sequence[Mapping[str, str]]) -> None:
        """See `SlicedMap.collect`: the kinds get their sites' names back."""
        site_inputs, site_outputs, beneath = filled
        for index, layer in enumerate(layers):
            for kind, x in site_inputs.items():
                _write(self.site_inputs, layer[kind], x[index])
                _write(self.site_outputs, layer[kind], site_outputs[kind][index])
        self.linear.collect(beneath, layers)

    def _record(self, site: str, x: SiteInput, outputs: Array) -> None:
        if self.sites is None or site in self.sites:
            _write(self.site_inputs, site, x if self.streams else as_vectors(x))
            _write(self.site_outputs, site, outputs)

    def _chosen(self, layer: Mapping[str, str]) -> frozenset[str]:
        return frozenset(k for k, site in layer.items() if self.sites is None or site in self.sites)


def masked(components: Components, masks: Mapping[str, SiteMask]) -> "Masked":
    """The map with components ablated: `((x @ V) · m) @ U + m_Δ · (x @ Δ)` with `Δ = W − V @ U`.

    Sites without a mask run frozen. Where a mask carries a route, positions that are not routed take the
    frozen output. The delta's part is computed as `m_Δ · (x @ W) − m_Δ · (x @ V) @ U`, so that `Δ` is never
    formed and gradients reach V and U through it. Components and masks are cast to the weight's dtype, which so
    is the dtype that the target computes in.

    Source: golden numbers `02_component_forward`.
    """
    return Masked(
        V={site: components.V[site] for site in masks},
        U={site: components.U[site] for site in masks},
        masks=dict(masks),
    )


class Masked(eqx.Module, SlicedMap, StreamMap):
    """The map with components ablated at the sites that have a mask; see `masked`."""

    V: dict[str, Float[Array, "..."]]
    U: dict[str, Float[Array, "..."]]
    masks: dict[str, SiteMask]

    def __call__(self, site: str, x: SiteInput, weight: Array, /) -> Array:
        """See `LinearMap`."""
        mask = self.masks.get(site)
        if mask is None:
            return _apply(x, weight)
        outputs = self._scaled(site, mask, x, weight) @ self.U[site].astype(weight.dtype)
        if mask.delta is None and mask.route is None:
            return outputs
        clean = _apply(x, weight)
        if mask.delta is not None:
            outputs = outputs + mask.delta[..., None].astype(weight.dtype) * clean
        if mask.route is not None:
            outputs = jnp.where(mask.route[..., None], outputs, clean)
        return outputs

    def write(self, site: str, x: Array, weight: Array, /) -> Stream:
        """See `StreamMap.write`: components and weight write apart, each by the part of the site that it has."""
        mask = self.masks.get(site)
        if mask is None:
            return Stream(((x, weight),))
        scaled = self._scaled(site, mask, x, weight)
        delta = None if mask.delta is None else mask.delta[..., None].astype(weight.dtype)
        if mask.route is not None:
            route = mask.route[..., None]
            scaled = jnp.where(route, scaled, 0)
            delta = jnp.where(route, 0 if delta is None else delta, 1)
        components = (scaled, self.U[site].astype(weight.dtype))
        if delta is None:
            return Stream((components,))
        return Stream((components, (delta.astype(x.dtype) * x, weight)))

    def _scaled(self, site: str, mask: SiteMask, x: SiteInput, weight: Array) -> Array:
        """`(x @ V) · (m − m_Δ)`: what U reads, the delta's own share of the components taken off."""
        activations = _apply(x, self.V[site].astype(weight.dtype))
        scale = mask.component
        if mask.delta is not None:
            scale = (1.0 if scale is None else scale) - mask.delta[..., None]
        return activations if scale is None else activations * scale.astype(weight.dtype)

    def form(self, layer: Mapping[str, str]) -> Hashable:
        """See `SlicedMap.form`: which kinds are masked, and the shapes of their components and masks."""
        stacked = self._by_kind(layer)
        leaves, structure = jax.tree.flatten(stacked)
        return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)

    def stack(self, layers: Sequence[Mapping[str, str]]) -> Any:
        """See `SlicedMap.stack`: this map by kind, a layer to a row."""
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(self._by_kind(layer) for layer in layers)
        )

    def at_layer(self, stacked: Any, layer: Mapping[str, str]) -> tuple[LinearMap, Any]:
        """See `SlicedMap.at_layer`."""
        return stacked, None

    def collect(self, filled: Any, layers: Sequence[Mapping[str, str]]) -> None:
        """See `SlicedMap.collect`: nothing was filled."""

    def _by_kind(self, layer: Mapping[str, str]) -> "Masked":
        kinds = {kind: site for kind, site in layer.items() if site in self.masks}
        return Masked(
            V={kind: self.V[site] for kind, site in kinds.items()},
            U={kind: self.U[site] for kind, site in kinds.items()},
            masks={kind: self.masks[site] for kind, site in kinds.items()},
        )


def _record_calls(
    linear: LinearMap,
    site_inputs: dict[str, Array],
    site_outputs: dict[str, Array],
    sites: Collection[str] | None,
) -> LinearMap:
    def record(site: str, x: Array, weight: Array, /) -> Array:
        outputs = linear(site, x, weight)
        if sites is None or site in sites:
            _write(site_inputs, site, x)
            _write(site_outputs, site, outputs)
        return outputs

    return record


def _write(record: dict[str, Any], site: str, x: SiteInput) -> None:
    if site in record:
        raise ValueError(
            f"the target calls site {site!r} twice in one forward; give each call a name"
        )
    record[site] = x


def _apply(x: SiteInput, matrix: Array) -> Array:
    if isinstance(x, Stream):
        return x @ matrix
    return matrix[x] if jnp.issubdtype(x.dtype, jnp.integer) else x @ matrix
