"""MLPs of one hidden layer from one number to one number, side by side: the published importance function's core.

A batch of `B` numbers for each of `C` MLPs passes through `B · C · hidden` units, many times what goes in or comes
out; kept for the backward pass they are most of a small run's memory, and reading them back most of its time.
Here the units live in blocks of a few components that fit a processor's cache, and are computed again on the way
back, where the normal distribution function of each serves its GELU and the GELU's derivative.

Components are taken apart, and not the batch, so that a batch that is spread over devices stays where it is.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Units of a block: two arrays of them in float32 stay near a processor; an accelerator wants longer work.
_UNITS_ON_CPU = 1 << 18
_UNITS = 1 << 26


@jax.custom_vjp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x · Φ(x)` with the exact normal distribution function, not its tanh approximation.

    Its derivative is computed with it, from the same `Φ`, and is all that is kept for the backward pass.
    """
    return x * normal_cdf(x)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    phi = normal_cdf(x)
    return x * phi, gelu_slope(x, phi)


def _gelu_backward(slope: Array, g: Array) -> tuple[Array]:
    return (g * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)


def normal_cdf(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`Φ(x)`, to within rounding of 1; far below 0 the error is no longer small beside `Φ` itself."""
    return 0.5 + 0.5 * jax.lax.erf(x * math.sqrt(0.5))


def gelu_slope(x: Float[Array, "*shape"], phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The derivative of `x · Φ(x)`, from `phi`, which is `Φ(x)`."""
    return phi + x * (math.sqrt(0.5 / math.pi) * jnp.exp(-0.5 * jnp.square(x)))


@jax.custom_vjp
def scalar_mlps(
    x: Float[Array, "*lead C"],
    weight_in: Float[Array, "C hidden"],
    bias_in: Float[Array, "C hidden"],
    weight_out: Float[Array, "C hidden"],
    bias_out: Float[Array, " C"],
) -> Float[Array, "*lead C"]:
    """`Σ_h gelu(x · weight_in + bias_in) · weight_out + bias_out`, each component by its own MLP."""
    rows = _rows(x)
    outputs = _by_block(_forward, rows.shape[1], rows, weight_in, bias_in, weight_out)
    return _lead(outputs + bias_out[:, None], x.shape)


def _scalar_mlps_forward(x: Array, *parameters: Array) -> tuple[Array, tuple[Array, ...]]:
    return scalar_mlps(x, *parameters), (x, *parameters)


def _scalar_mlps_backward(kept: tuple[Array, ...], g: Array) -> tuple[Array, ...]:
    x, weight_in, bias_in, weight_out, bias_out = kept
    rows = _rows(g)
    of_x, *of_weights = _by_block(
        _backward, rows.shape[1], _rows(x), rows, weight_in, bias_in, weight_out
    )
    of_bias_out = jnp.sum(rows, axis=1).astype(bias_out.dtype)
    return (_lead(of_x, x.shape), *of_weights, of_bias_out)


scalar_mlps.defvjp(_scalar_mlps_forward, _scalar_mlps_backward)


def _forward(x: Array, weight_in: Array, bias_in: Array, weight_out: Array) -> Array:
    """Of a block, `[c, B]`."""
    units = x[:, None] * weight_in[:, :, None] + bias_in[:, :, None]
    return jnp.einsum("chb,ch->cb", units * normal_cdf(units), weight_out)


def _backward(
    x: Array, g: Array, weight_in: Array, bias_in: Array, weight_out: Array
) -> tuple[Array, Array, Array, Array]:
    """The gradients of a block in `x` and in the three arrays of weights."""
    units = x[:, None] * weight_in[:, :, None] + bias_in[:, :, None]
    phi = normal_cdf(units)
    activations = units * phi
    slopes = g[:, None] * weight_out[:, :, None] * gelu_slope(units, phi)
    # Without the barrier what follows is fused into the sums, and evaluates erf once for each of them.
    activations, slopes = jax.lax.optimization_barrier((activations, slopes))
    return (
        jnp.einsum("chb,ch->cb", slopes, weight_in),
        jnp.einsum("chb,cb->ch", slopes, x),
        jnp.sum(slopes, axis=2),
        jnp.einsum("chb,cb->ch", activations, g),
    )


def _by_block(function: Callable[..., Any], batch: int, *arrays: Array) -> Any:
    """`function` of arrays whose first axis is components, a block of components at a time."""
    units = batch * arrays[-1].shape[1]
    on_cpu = functools.partial(_mapped, function, _UNITS_ON_CPU // max(1, units))
    elsewhere = functools.partial(_mapped, function, _UNITS // max(1, units))
    return jax.lax.platform_dependent(*arrays, cpu=on_cpu, default=elsewhere)


def _mapped(function: Callable[..., Any], at_most: int, *arrays: Array) -> Any:
    count = arrays[0].shape[0]
    size = max(n for n in range(1, count + 1) if count % n == 0 and n <= max(1, at_most))
    if size == count:
        return function(*arrays)
    blocks = [array.reshape(count // size, size, *array.shape[1:]) for array in arrays]
    outputs = jax.lax.map(lambda block: function(*block), blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), outputs)


def _rows(x: Array) -> Array:
    """`[*lead, C]` as `[C, B]`: what is summed over, and worked on in long strides, comes last."""
    return x.reshape(-1, x.shape[-1]).T


def _lead(rows: Array, shape: tuple[int, ...]) -> Array:
    return rows.T.reshape(shape)
