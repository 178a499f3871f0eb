"""Logits that are never whole: hidden states beside the head that reads them.

Over a vocabulary of 50 000, one batch's logits in float32 outweigh all that a layer keeps. Whoever needs a number
a position, and not the logits themselves, can have it from a part of the positions at a time. The gradient is
taken in the same sweep: at each part the logits are at hand, and what the backward pass needs of them is as
large as the hidden states. Nothing is computed twice, and nothing of the vocabulary's size is kept.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A number for each position: of hidden states, of what lies beside them at each position, and of what does not.
ByPosition = Callable[[Array, Any, Any], Array]


class Head(eqx.Module):
    """The last matrix of a language model, as it is stored.

    - `weight`: `[width, vocabulary]`, or `[vocabulary, width]` where it is `transposed`, as a tied embedding is.
    """

    weight: Float[Array, "_ _"]
    transposed: bool = eqx.field(static=True, default=False)

    @property
    def vocabulary(self) -> int:
        """How many tokens it scores."""
        return self.weight.shape[0 if self.transposed else 1]

    def __call__(self, hidden: Float[Array, "*lead width"]) -> Float[Array, "*lead vocabulary"]:
        """Logits, at least in float32: rounded to bfloat16 they would differ by more than masks move them."""
        return _wide_product(hidden, self.weight.T if self.transposed else self.weight)


class Unembedding(eqx.Module):
    """What a target may return instead of logits.

    - `hidden`: what the head reads, `[*lead, width]`.
    """

    hidden: Float[Array, "*lead width"]
    head: Head

    def logits(self) -> Float[Array, "*lead vocabulary"]:
        """All of them at once, at least in float32."""
        return self.head(self.hidden)


Outputs = Float[Array, "..."] | Unembedding


def logits_of(outputs: Outputs) -> Float[Array, "..."]:
    """The outputs as one array, whichever way a target gave them."""
    return outputs.logits() if isinstance(outputs, Unembedding) else outputs


def mean_by_position(
    of: ByPosition,
    outputs: Unembedding,
    beside: Any,
    fixed: Any,
    at_once: int,
) -> Float[Array, ""]:
    """The mean over positions of `of(hidden, beside, (head, fixed))`, with at most `at_once` logits alive, about.

    Differentiable in the hidden states alone. Positions are taken apart along their last axis, so that a batch
    that is spread over devices stays where it is.

    **Arguments:**

    - `of`: a function of a module, from hidden states `[*lead, width]` to numbers `[*lead]`.
    - `beside`: a tree of arrays `[*lead, ...]`, taken apart like the hidden states.
    - `fixed`: a tree of what every part reads.
    - `at_once`: entries of `[*lead, vocabulary]` that may be alive together; at least one position of each
      sequence always is.

    **Errors:** `ValueError` where a gradient is asked for in the head, in `beside` or in `fixed`.
    """
    hidden = outputs.hidden
    lead = hidden.shape[:-1]
    positions, length = math.prod(lead), lead[-1] if lead else 1
    together = max(1, at_once * length // max(1, positions * outputs.head.vocabulary))
    if together >= length:
        return jnp.mean(of(hidden, beside, (outputs.head, fixed)))
    return _mean(of, -(-length // together), hidden, beside, (outputs.head, fixed))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mean(of: ByPosition, parts: int, hidden: Array, beside: Any, fixed: Any) -> Array:
    def body(total: Array, part: tuple[Array, Any, Array]) -> tuple[Array, None]:
        here, beside, real = part
        return total + _sum(of(here, beside, fixed), real), None

    total, _ = jax.lax.scan(body, _zero(of, hidden, beside, fixed), _apart(hidden, beside, parts))
    return total / math.prod(hidden.shape[:-1])


def _mean_forward(
    of: ByPosition, parts: int, hidden: Any, beside: Any, fixed: Any
) -> tuple[Array, Array]:
    if any(leaf.perturbed for leaf in jax.tree.leaves((beside, fixed), is_leaf=_is_primal)):
        raise ValueError(
            "a mean over parts of the positions is differentiable in the hidden states alone, but a gradient was asked "
            "for in the head or in the clean output; hold them fixed, or give the distance whole logits (.logits())"
        )
    hidden, beside, fixed = jax.tree.map(
        lambda leaf: leaf.value, (hidden, beside, fixed), is_leaf=_is_primal
    )

    def body(total: Array, part: tuple[Array, Any, Array]) -> tuple[Array, Array]:
        here, beside, real = part
        values, pull = jax.vjp(lambda here: of(here, beside, fixed), here)
        (gradient,) = pull(jnp.broadcast_to(real, values.shape).astype(values.dtype))
        return total + _sum(values, real), gradient

    start = _zero(of, hidden, beside, fixed)
    total, gradients = jax.lax.scan(body, start, _apart(hidden, beside, parts))
    return total / math.prod(hidden.shape[:-1]), _together(gradients, hidden.shape)


def _mean_backward(of: ByPosition, parts: int, gradient: Array, g: Any) -> tuple[Any, ...]:
    scale = g / math.prod(gradient.shape[:-1])
    return (scale * gradient.astype(scale.dtype)).astype(gradient.dtype), None, None


_mean.defvjp(_mean_forward, _mean_backward, symbolic_zeros=True)


@jax.custom_vjp
def _wide_product(x: Array, weight: Array) -> Array:
    """`x @ weight`, summed and kept at least in float32; its backward products are in the dtypes of `x` and `weight`."""
    dtype = jnp.promote_types(jnp.result_type(x, weight), jnp.float32)
    return jnp.matmul(x, weight, preferred_element_type=dtype)


def _wide_product_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _wide_product(x, weight), (x, weight)


def _wide_product_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, weight = kept
    g = g.astype(jnp.result_type(x, weight))
    return (g @ weight.T).astype(x.dtype), jnp.einsum("...i,...o->io", x, g).astype(weight.dtype)


_wide_product.defvjp(_wide_product_forward, _wide_product_backward)


def _is_primal(node: Any) -> bool:
    return hasattr(node, "perturbed")


def _zero(of: ByPosition, hidden: Array, beside: Any, fixed: Any) -> Array:
    return jnp.zeros((), jax.eval_shape(of, hidden, beside, fixed).dtype)


def _sum(values: Array, real: Array) -> Array:
    return jnp.sum(jnp.where(real, values, 0))


def _apart(hidden: Array, beside: Any, parts: int) -> tuple[Array, Any, Array]:
    """Hidden states, what is beside them, and which positions are real: each with a first axis of parts."""
    axis = hidden.ndim - 2
    length = hidden.shape[axis]
    each = -(-length // parts)
    parts = -(-length // each)

    def split(leaf: Array, axis: int) -> Array:
        padding = [(0, 0)] * leaf.ndim
        padding[axis] = (0, parts * each - length)
        padded = jnp.pad(leaf, padding)
        shape = (*leaf.shape[:axis], parts, each, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(padded.reshape(shape), axis, 0)

    beside = jax.tree.map(lambda leaf: split(leaf, axis), beside)
    return split(hidden, axis), beside, split(jnp.ones(length, bool), 0)


def _together(parts: Array, shape: tuple[int, ...]) -> Array:
    axis = len(shape) - 2
    joined = jnp.moveaxis(parts, 0, axis)
    joined = joined.reshape(*shape[:axis], -1, shape[-1])
    return jax.lax.slice_in_dim(joined, 0, shape[axis], axis=axis)
