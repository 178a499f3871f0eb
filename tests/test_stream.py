"""Streams: read without being formed, where that is the cheaper order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.components import Components
from pd_eqx.linear import LinearMap, Recording, capture, frozen, masked, read, write
from pd_eqx.masks import SiteMask
from pd_eqx.stream import Stream, as_vectors
from pd_eqx.unembedding import logits_of


def drawn(*shape: int) -> Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


@pytest.mark.parametrize("rank", [2, 50])
@pytest.mark.parametrize("lead", [(), (7,), (3, 4)])
def test_reading_a_stream_is_reading_its_vectors(rank: int, lead: tuple[int, ...]) -> None:
    stream = Stream(((drawn(*lead, rank), drawn(rank, 20)),)) + drawn(20)
    stream = stream + Stream(((drawn(*lead, 3), drawn(3, 20)),)) + drawn(*lead, 20)
    assert stream.shape == (*lead, 20)
    assert stream.dtype == jnp.float32
    assert stream.vectors().shape == (*lead, 20)
    expected = np.asarray(stream.vectors()) @ np.asarray(drawn(20, 6))
    np.testing.assert_allclose(stream @ drawn(20, 6), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("width", "formed"), [(1000, False), (10, True)])
def test_the_cheaper_order_is_taken(width: int, formed: bool) -> None:
    def product(activations: Array, directions: Array, matrix: Array) -> Array:
        return Stream(((activations, directions),)) @ matrix

    arguments = (drawn(300, 40), drawn(40, width), drawn(width, 30))
    assert (f"300x{width}x" in jax.jit(product).lower(*arguments).as_text()) is formed


def test_vectors_alone_are_a_stream_and_nothing_is_none() -> None:
    x = drawn(4, 5)
    assert as_vectors(Stream(formed=x)) is as_vectors(x) is x
    assert jnp.array_equal(Stream(formed=x) @ drawn(5, 2), x @ drawn(5, 2))
    with pytest.raises(ValueError, match="a write, or a vector"):
        Stream()


def test_a_recorded_stream_is_an_array_unless_streams_are_asked_for() -> None:
    W, stream = {"in": drawn(8, 3), "out": drawn(3, 8)}, Stream(((drawn(5, 2), drawn(2, 8)),))

    def forward(inputs: Array, linear: LinearMap = frozen) -> Array:
        hidden = read(linear, "in", stream, W["in"])
        return (stream + write(linear, "out", hidden, W["out"])).vectors()

    outputs, formed, said = capture(forward, jnp.zeros(()))
    assert isinstance(formed["in"], jax.Array)
    assert jnp.array_equal(formed["in"], stream.vectors())
    np.testing.assert_allclose(logits_of(outputs) - stream.vectors(), said["out"], atol=1e-5)
    _, apart, _ = capture(forward, jnp.zeros(()), streams=True)
    assert isinstance(apart["in"], Stream)
    assert isinstance(apart["out"], jax.Array)
    seen: dict[str, Array] = {}
    masks = {"out": SiteMask(None, jnp.full(5, 0.5))}
    maps = masked(Components({"out": drawn(3, 4)}, {"out": drawn(4, 8)}), masks)
    forward(jnp.zeros(()), Recording(maps, {}, seen, None))
    np.testing.assert_allclose(
        seen["out"], maps("out", formed["in"] @ W["in"], W["out"]), rtol=1e-4, atol=1e-5
    )
