"""Alike layers, stored as one stack of weights and run under one scan.

Unrolled, a deep target compiles in time proportional to its depth. Scanned, its layer is compiled once. The
obstacle is the linear map, which knows each site by a name of its own: here consecutive layers at which the map
has one form share a scan, whose body gets the layer's slice of masks and components. A layer that is like neither
neighbour, and every layer under a map that cannot be sliced, is run by itself.

A scan that is differentiated keeps for its backward pass whatever a layer computed, the slice of its weights
included: that would be a second copy of the whole stack. Slices are therefore always taken again.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pd_eqx.linear import LinearMap, SlicedMap

# One layer: its weights, its input and its linear map by kind give its output and whatever else is to be kept.
Layer = Callable[[Any, Float[Array, "..."], LinearMap], tuple[Float[Array, "..."], Any]]


def run_layers(
    layer: Layer,
    x: Float[Array, "..."],
    stack: Any,
    linear: LinearMap,
    names: Sequence[Mapping[str, str]],
    *,
    scan: bool = True,
    rematerialise: bool = False,
) -> tuple[Float[Array, "..."], Any]:
    """Runs all layers, each on the output of the one before.

    **Arguments:**

    - `layer`: the forward of one layer; it names its sites by kind (`attn.q`).
    - `x`: the first layer's input; every layer's output has its shape and dtype.
    - `stack`: the layers' weights, every leaf `[len(names), ...]`.
    - `linear`: by site name. One that cannot be sliced must be pure where `rematerialise` is asked for.
    - `names`: for each layer, the site's name by kind.
    - `scan`: False runs every layer by itself.
    - `rematerialise`: keep only each layer's input for the backward pass, and compute the rest again.

    **Returns:** the last layer's output, and what the layers kept, every leaf `[len(names), ...]`.
    """
    if not isinstance(linear, SlicedMap):
        return _run_by_name(layer, x, stack, linear, names, rematerialise)
    kept: list[Any] = []
    for run in _runs(linear, names, scan):
        x, here = _run_alike(layer, x, stack, linear, names, run, rematerialise)
        kept.append(here)
    return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *kept)


def _runs(linear: SlicedMap, names: Sequence[Mapping[str, str]], scan: bool) -> list[range]:
    """The longest runs of layers that can share a scan."""
    forms = [linear.form(layer) if scan else index for index, layer in enumerate(names)]
    runs = itertools.groupby(range(len(names)), key=lambda index: forms[index])
    return [range(indices[0], indices[-1] + 1) for indices in (list(run) for _, run in runs)]


def _run_alike(
    layer: Layer,
    x: Array,
    stack: Any,
    linear: SlicedMap,
    names: Sequence[Mapping[str, str]],
    run: range,
    rematerialise: bool,
) -> tuple[Array, Any]:
    here = [names[index] for index in run]
    pieces = linear.stack(here)

    def body(x: Array, index_and_piece: tuple[Array, Any]) -> tuple[Array, Any]:
        index, piece = index_and_piece
        # Indexed in place, not passed through the scan: slicing a run out of the stack would copy it.
        weights = jax.tree.map(lambda leaf: _row(leaf, index), stack)
        of_layer, filled = linear.at_layer(piece, here[0])
        x, kept = layer(weights, x, of_layer)
        return x, (kept, filled)

    alone = len(run) == 1
    policy = None if rematerialise else _all_but_slices
    body = jax.checkpoint(body, policy=policy, prevent_cse=alone)
    if alone:
        x, outputs = body(x, (jnp.int32(run[0]), jax.tree.map(lambda leaf: leaf[0], pieces)))
        outputs = jax.tree.map(lambda leaf: leaf[None], outputs)
    else:
        x, outputs = jax.lax.scan(body, x, (jnp.arange(run.start, run.stop), pieces))
    kept, filled = outputs
    linear.collect(filled, here)
    return x, kept


def _run_by_name(
    layer: Layer,
    x: Array,
    stack: Any,
    linear: LinearMap,
    names: Sequence[Mapping[str, str]],
    rematerialise: bool,
) -> tuple[Array, Any]:
    kept: list[Any] = []
    for index, layer_names in enumerate(names):

        def of_layer(
            kind: str, x: Array, weight: Array, /, layer_names: Any = layer_names
        ) -> Array:
            return linear(layer_names[kind], x, weight)

        def run(x: Array, index: int = index, of_layer: LinearMap = of_layer) -> tuple[Array, Any]:
            return layer(jax.tree.map(lambda leaf: _row(leaf, index), stack), x, of_layer)

        x, here = (jax.checkpoint(run) if rematerialise else run)(x)
        kept.append(here)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)


def _row(leaf: Array, index: Array | int) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)


def _all_but_slices(primitive: Any, *_: Any, **__: Any) -> bool:
    """A checkpoint policy: keep everything, but take slices of weights (and casts of them) again."""
    return primitive.name not in ("dynamic_slice", "squeeze", "reshape", "convert_element_type")
