"""Any tree of any module, from any mesh to any other: the same bits, placed as asked, every byte donated."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.donation import measure_reuse
from properties.trees import State, placed, placements, states

pytestmark = pytest.mark.devices(8)
EXAMPLES = max(5, settings.default.max_examples // 5) if settings.default else 5
Bits = list[tuple[str, tuple[int, ...], bytes]]


@pytest.fixture(scope="module")
def drawn() -> Iterator[Counter[str]]:
    """What was drawn, printed at the end: a strategy that draws little would show."""
    counts: Counter[str] = Counter()
    yield counts
    print("\ndrawn: " + ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bits(tree: Any) -> Bits:
    told: Bits = []
    for leaf in jax.tree.leaves(tree):
        host = np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf, copy=True)
        told.append((str(leaf.dtype), leaf.shape, host.tobytes()))
    return told


def rewritten(leaf: jax.Array) -> jax.Array:
    """A leaf of the same kind whose every entry was computed anew."""
    if is_key(leaf):
        data = jax.random.key_data(leaf) ^ jnp.uint32(1)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return ~leaf if leaf.dtype == jnp.bool_ else (leaf + leaf).astype(leaf.dtype)


@st.composite
def examples(draw: st.DrawFn) -> tuple[State, list[Any], list[Any]]:
    state = draw(states())
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    return state, draw(placements(shapes)), draw(placements(shapes))


def told(example: tuple[State, list[Any], list[Any]]) -> Iterator[str]:
    """What an example is like."""
    state, here, there = example
    leaves = jax.tree.leaves(state)
    yield f"leaves: {min(len(leaves), 5)}{'+' if len(leaves) > 4 else ''}"
    yield from {f"dtype: {leaf.dtype}" for leaf in leaves}
    kinds = {type(node).__name__ for node in _nodes(state)}
    yield from (f"container: {kind}" for kind in kinds)
    for side, shardings in (("from", here), ("to", there)):
        yield f"{side} devices: {len(shardings[0].device_set) if shardings else 0}"
        if any(not sharding.is_fully_replicated for sharding in shardings):
            yield f"{side}: some leaf is sharded"
    if [sharding.device_set for sharding in here] != [sharding.device_set for sharding in there]:
        yield "other devices than before"


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    children = jax.tree.leaves(tree, is_leaf=lambda node: node is not tree)
    if children and children[0] is not tree:
        for child in children:
            yield from _nodes(child)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(example=examples())
def test_bits_places_and_bytes(
    drawn: Counter[str], example: tuple[State, list[Any], list[Any]]
) -> None:
    template, here, there = example
    leaves, treedef = jax.tree.flatten(template)
    for what in told(example):
        event(what)
        drawn[what] += 1
    drawn["examples"] += 1
    state = treedef.unflatten(
        [placed(leaf, sharding) for leaf, sharding in zip(leaves, here, strict=True)]
    )
    expected = bits(leaves)
    assert bits(state) == expected
    abstract = treedef.unflatten(
        [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for leaf, sharding in zip(leaves, there, strict=True)
        ]
    )
    with tempfile.TemporaryDirectory() as folder, CheckpointStore(folder) as store:
        store.save(3, state)
        back = store.restore(abstract)
        host = store.restore_item("product", abstract.product, to="host")
    assert jax.tree.structure(back) == treedef
    assert [leaf.sharding for leaf in jax.tree.leaves(back)] == there
    assert bits(back) == expected
    data = [leaf.tobytes() for leaf in jax.tree.leaves(host)]
    assert data == [content for _, _, content in expected[: len(data)]]
    step: Any = jax.jit(
        lambda leaves: [rewritten(leaf) for leaf in leaves],
        donate_argnums=0,
        out_shardings=there,
    )
    # What XLA cannot reuse even of its own arrays is no matter of the restore.
    moved = [placed(leaf, sharding) for leaf, sharding in zip(leaves, there, strict=True)]
    _, possible = measure_reuse(step, moved)
    _, report = measure_reuse(step, jax.tree.leaves(back))
    assert report.reused_bytes == possible.reused_bytes
    assert report.missed == possible.missed
    drawn["bytes donated"] += report.reused_bytes
    drawn["bytes that no step could reuse"] += report.total_bytes - report.reused_bytes


def test_the_strategy_is_not_trivial() -> None:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=100,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(example=examples())
    def collect(example: tuple[State, list[Any], list[Any]]) -> None:
        counts.update(told(example))

    collect()
    print(dict(counts))
    assert counts["leaves: 5+"] > 15
    assert sum(what.startswith("dtype: ") for what in counts) > 15
    assert sum(what.startswith("dtype: key<") for what in counts) == 2
    for kind in ("dict", "list", "tuple", "Pair", "Labelled", "Moments"):
        assert counts[f"container: {kind}"] > 10, kind
    assert counts["other devices than before"] > 30
    for side in ("from", "to"):
        assert counts[f"{side}: some leaf is sharded"] > 20
        assert len([what for what in counts if what.startswith(f"{side} devices")]) >= 4
