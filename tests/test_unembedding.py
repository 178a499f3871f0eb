"""A KL divergence over parts of the positions is the plain one, in less memory."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.evals.reconstruction import next_token_cross_entropy
from pd_eqx.losses import KLDivergence, MeanSquaredError
from pd_eqx.unembedding import Head, Unembedding

BATCH, LENGTH, WIDTH, VOCABULARY = 2, 7, 5, 300
# Three positions of each sequence together, so that the third part is padded.
KL = KLDivergence(at_once=3 * BATCH * VOCABULARY)


def numbers(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def pair(dtype: Any, *, transposed: bool = False) -> tuple[Unembedding, Unembedding]:
    """Masked and clean outputs: softmaxes far from uniform, and not far from each other."""
    shape = (VOCABULARY, WIDTH) if transposed else (WIDTH, VOCABULARY)
    head = Head(numbers(0, *shape).astype(dtype), transposed)
    clean = numbers(1, BATCH, LENGTH, WIDTH)
    moved = clean + 0.3 * numbers(2, BATCH, LENGTH, WIDTH)
    return Unembedding(moved.astype(dtype), head), Unembedding(clean.astype(dtype), head)


def value_and_gradient(outputs: Unembedding, clean: Unembedding, *, apart: bool) -> Any:
    def scaled(hidden: Array) -> Array:
        masked = Unembedding(hidden, outputs.head)
        if apart:
            return 0.3 * KL(masked, clean)
        return 0.3 * KLDivergence()(masked.logits(), clean.logits())

    return jax.jit(jax.value_and_grad(scaled))(outputs.hidden)


@pytest.mark.parametrize("transposed", [False, True])
def test_parts_are_invisible_in_float32(transposed: bool) -> None:
    outputs, clean = pair(jnp.float32, transposed=transposed)
    value, gradient = value_and_gradient(outputs, clean, apart=True)
    plain, plain_gradient = value_and_gradient(outputs, clean, apart=False)
    assert float(plain) > 0.01
    assert float(value) == pytest.approx(float(plain), rel=1e-6)
    np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-5, atol=1e-6 * float(plain))


def test_parts_are_invisible_in_bfloat16() -> None:
    outputs, clean = pair(jnp.bfloat16)
    value, gradient = value_and_gradient(outputs, clean, apart=True)
    plain, plain_gradient = value_and_gradient(outputs, clean, apart=False)
    assert value.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    assert float(value) == pytest.approx(float(plain), rel=1e-6)
    # The gradients differ by where bfloat16 rounds: neither may be further from the truth than the other.
    wide = [jax.tree.map(lambda leaf: leaf.astype(jnp.float32), side) for side in (outputs, clean)]
    _, truth = value_and_gradient(wide[0], wide[1], apart=False)

    def error(gradient: Array) -> float:
        return float(jnp.linalg.norm(gradient.astype(jnp.float32) - truth))

    assert error(gradient) < 1.1 * error(plain_gradient) + 1e-6


def test_a_distance_without_parts_of_its_own_takes_whole_logits() -> None:
    outputs, clean = pair(jnp.float32)
    whole = MeanSquaredError()(outputs.logits(), clean.logits())
    assert MeanSquaredError()(outputs, clean) == whole
    assert KLDivergence()(outputs, clean.logits()) == KLDivergence()(outputs.logits(), clean)


def test_a_gradient_in_the_clean_output_is_refused_and_not_zero() -> None:
    outputs, clean = pair(jnp.float32)

    def of_clean(hidden: Array) -> Array:
        return KL(outputs, Unembedding(hidden, clean.head))

    with pytest.raises(ValueError, match="hold them fixed"):
        jax.grad(of_clean)(clean.hidden)


def test_two_arrays_of_logits_are_never_alive() -> None:
    length, width, vocabulary = 512, 32, 4096
    logits = length * vocabulary * 4
    shapes = jax.eval_shape(
        lambda: Unembedding(jnp.zeros((1, length, width)), Head(jnp.zeros((width, vocabulary))))
    )

    def temporary(distance: KLDivergence) -> int:
        def gradient(outputs: Unembedding, clean: Unembedding) -> Array:
            return jax.grad(lambda h: distance(Unembedding(h, outputs.head), clean))(outputs.hidden)

        compiled = jax.jit(gradient).lower(shapes, shapes).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert temporary(KLDivergence(at_once=vocabulary * length)) > 2 * logits, "it would show"
    assert temporary(KLDivergence(at_once=vocabulary * 16)) < logits / 4


def test_next_tokens_are_predicted_by_parts_too() -> None:
    outputs, _ = pair(jnp.float32)
    tokens = jnp.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 17 % VOCABULARY
    by_parts = jax.jit(partial(next_token_cross_entropy, at_once=4 * BATCH * VOCABULARY))
    whole = jax.jit(next_token_cross_entropy)(outputs.logits(), tokens)
    found = by_parts(outputs, tokens)
    assert float(found.value) == pytest.approx(float(whole.value), rel=1e-6)
    assert found.weight == whole.weight == BATCH * (LENGTH - 1)
