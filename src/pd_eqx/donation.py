"""What a train step reuses of the state it was given, and how to make all of it reusable.

A donated buffer that XLA cannot reuse is copied without a word: memory doubles and nothing is logged.
The only evidence is the address of each shard before and after the call, so that is what
`measure_reuse` compares. It compares sets of addresses, because XLA may hand the buffer of one leaf to
another of the same shape, and it holds no reference to a shard across the call, which would itself
prevent donation.

A buffer can be reused when XLA allocated it. One that `device_put` borrowed from host memory cannot,
and whether `device_put` borrows depends on the alignment that the allocator happened to give. The
outputs of a compiled computation are always XLA's own, so `ensure_donatable` passes each leaf through
a compiled copy, one leaf at a time and freeing the old one before the next, so that its peak is the
tree and one leaf rather than two trees.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree


@dataclasses.dataclass(frozen=True)
class Missed:
    """A leaf whose memory the step did not reuse in full: its path, how many bytes, and why."""

    path: str
    bytes: int
    reason: str


@dataclasses.dataclass(frozen=True)
class ReuseReport:
    """How many bytes of a donated tree live on, at the same addresses, in what the step returned.

    - `total_bytes`: bytes of the tree on all addressable devices, each buffer counted once.
    - `reused_bytes`: those of them that the outputs occupy.
    - `missed`: the leaves that fall short, in the order of the tree.
    """

    total_bytes: int
    reused_bytes: int
    missed: tuple[Missed, ...]

    @property
    def fraction(self) -> float:
        """Reused over total; 1 for a tree without arrays."""
        return self.reused_bytes / self.total_bytes if self.total_bytes else 1.0


@dataclasses.dataclass(frozen=True)
class _Leaf:
    path: str
    signature: tuple[Any, ...]
    buffers: dict[tuple[int, int], int]


def leaf_path(keys: tuple[Any, ...]) -> str:
    """A leaf's path as errors and reports print it, such as `training.mu.V['linear1']`."""
    return jax.tree_util.keystr(keys).removeprefix(".")


def buffers(array: jax.Array) -> dict[tuple[int, int], int]:
    """Bytes of each addressable buffer of an array, by device and address.

    Addresses are plain numbers: nothing returned here keeps the array alive.
    """
    if _is_key(array):
        array = jax.random.key_data(array)
    return {
        (shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for shard in array.addressable_shards
        if shard.data.nbytes
    }


def buffer_bytes(tree: PyTree[Any]) -> int:
    """Bytes of memory that a tree's arrays occupy on all addressable devices.

    A replicated array counts once per device, and a buffer that two leaves share counts once.
    """
    every: dict[tuple[int, int], int] = {}
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            every.update(buffers(leaf))
    return sum(every.values())


def measure_reuse(
    step: Callable[..., Any], state: PyTree[Any], *args: Any, **kwargs: Any
) -> tuple[Any, ReuseReport]:
    """Call `step(state, *args, **kwargs)` and tell which of `state`'s bytes its outputs reuse.

    **Arguments:**
    - `step`: a compiled function that donates its first argument.
    - `state`: the tree to donate; like after any donating call, it must not be used again.
    - `args`, `kwargs`: passed on.

    **Returns:** what the step returned, ready, and the `ReuseReport`.
    """
    leaves = [
        _Leaf(leaf_path(keys), _signature(leaf), buffers(leaf))
        for keys, leaf in jax.tree_util.tree_leaves_with_path(state)
        if isinstance(leaf, jax.Array)
    ]
    result = jax.block_until_ready(step(state, *args, **kwargs))
    alive = [
        not leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)
    ]
    outputs = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    occupied = {buffer for output in outputs for buffer in buffers(output)}
    takers = Counter(_signature(output) for output in outputs)

    counted: set[tuple[int, int]] = set()
    total = reused = 0
    missed: list[Missed] = []
    for leaf, is_alive in zip(leaves, alive, strict=True):
        fresh = {buffer: size for buffer, size in leaf.buffers.items() if buffer not in counted}
        counted.update(fresh)
        lost = sum(size for buffer, size in fresh.items() if buffer not in occupied)
        total += sum(fresh.values())
        reused += sum(fresh.values()) - lost
        if lost:
            missed.append(Missed(leaf.path, lost, _reason(leaf.signature, takers, is_alive)))
    return result, ReuseReport(total, reused, tuple(missed))


def ensure_donatable(
    tree: PyTree[Any], abstract: PyTree[jax.ShapeDtypeStruct] | None = None
) -> PyTree[Any]:
    """The same arrays in buffers that a donating step can reuse.

    Each leaf is copied by a compiled computation, and the old leaf is deleted before the next is
    copied: the peak is the tree and its largest leaf (twice that leaf, where it moves to other
    devices). Use it after a restore by other means than
    `CheckpointStore`, and on a fresh state whose leaves were not all made under `jax.jit`.

    **Arguments:**
    - `tree`: any pytree; leaves that are not arrays are returned as they are. Its arrays are
      consumed: they are deleted, as donation would.
    - `abstract`: where to place each leaf, as from `abstract_like`. Left out, every leaf stays
      where it is, with its sharding, layout and weak type.

    **Returns:** the tree with new arrays.

    **Errors:** `ValueError` when `abstract` has another structure, shape or dtype.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    if abstract is None:
        asked: list[Any] = [_template(leaf) for _, leaf in leaves]
    else:
        asked = treedef.flatten_up_to(abstract)
    uses = Counter(id(leaf) for _, leaf in leaves)
    del tree
    settled: list[Any] = []
    with jax.set_mesh(None):
        for position, (keys, leaf) in enumerate(leaves):
            leaves[position] = ((), None)
            if not eqx.is_array(leaf):
                settled.append(leaf)
                continue
            like = asked[position]
            if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
                raise ValueError(
                    f"{leaf_path(keys)} is {leaf.dtype}{list(leaf.shape)}, but the abstract tree "
                    f"asks for {like.dtype}{list(like.shape)}; nothing is cast"
                )
            settled.append(jax.block_until_ready(own_copy(leaf, like)))
            uses[id(leaf)] -= 1
            if not uses[id(leaf)]:
                leaf.delete()
    return treedef.unflatten(settled)


def abstract_like(tree: PyTree[Any]) -> PyTree[Any]:
    """What to ask a restore for, to get arrays that a step cannot tell from `tree`'s own.

    Each array becomes a `ShapeDtypeStruct` of its shape, dtype, weak type and placement. A leaf that
    is committed to its devices keeps its sharding; one that JAX may still move keeps none, and is
    restored uncommitted, because a step compiled for the one compiles again for the other.
    Leaves that are not arrays are left as they are.
    """
    return jax.tree.map(_template, tree)


def own_copy(array: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A copy of `array` in buffers that XLA allocates, placed and typed as `like` asks.

    **Arguments:**
    - `array`: a jax or numpy array of `like`'s shape; for a PRNG key, its raw key data will do.
    - `like`: sharding or layout to place the copy in; without either, the copy is uncommitted.

    **Returns:** the copy, not waited for.
    """
    is_raw = _is_key(like) and not _is_key(array)
    compiled = jax.jit(
        _copy, static_argnames=("implementation", "weak"), out_shardings=_placement(like)
    )
    return compiled(
        _beside(array, like.sharding),
        implementation=key_implementation(like.dtype) if is_raw else None,
        weak=like.weak_type,
    )


def from_host(array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A host array as `like` asks for it, in buffers that XLA allocated.

    `device_put` alone may borrow `array`'s memory. Whether it did shows in the addresses; only then,
    and for what needs a computation anyhow (PRNG keys from their raw data, weak types), is it copied
    once more.

    **Returns:** the array on its devices, ready; `array` may be freed.
    """
    needs_computation = _is_key(like) or like.weak_type
    placed = jax.block_until_ready(jax.device_put(array, _placement(like)))
    start = array.ctypes.data
    borrowed = any(start <= pointer < start + array.nbytes for _, pointer in buffers(placed))
    if not needs_computation and not borrowed:
        return placed
    copied = jax.block_until_ready(own_copy(placed, like))
    placed.delete()
    return copied


def key_implementation(dtype: Any) -> str:
    """The name under which `jax.random.key` knows the implementation of a key dtype.

    **Errors:** `ValueError` for an implementation that JAX does not ship.
    """
    shipped = ("threefry2x32", "rbg", "unsafe_rbg")
    for name in shipped:
        if jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype == dtype:
            return name
    raise ValueError(f"{dtype} is none of the key implementations {', '.join(shipped)}")


def _copy(array: jax.Array, *, implementation: str | None, weak: bool) -> jax.Array:
    copied = jnp.copy(array)
    if implementation is not None:
        return jax.random.wrap_key_data(copied, impl=implementation)
    if weak:
        return _weakly_typed(copied)
    return copied if _is_key(copied) else lax.convert_element_type(copied, copied.dtype)


def _beside(array: Any, sharding: Any) -> Any:
    """`array` on the devices of `sharding`, in their order: one computation has only one such list."""
    if sharding is None or not isinstance(array, jax.Array) or not array.committed:
        return array
    here, there = (
        tuple(placement.devices_indices_map(array.shape))
        for placement in (array.sharding, sharding)
    )
    return array if here == there else jax.device_put(array, sharding)


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _placement(like: jax.ShapeDtypeStruct) -> Any:
    if like.sharding is None or like.format.layout is None:
        return like.sharding
    return like.format


def _weakly_typed(array: jax.Array) -> jax.Array:
    zero = jnp.asarray(np.zeros((), array.dtype).item())

    def fill(scalar: jax.Array) -> jax.Array:
        return lax.full_like(zero, scalar)

    for _ in range(array.ndim):
        fill = jax.vmap(fill)
    return fill(array)


def _template(leaf: Any) -> Any:
    if not eqx.is_array(leaf):
        return leaf
    is_key = _is_key(leaf)
    placement = (leaf.sharding if is_key else leaf.format) if leaf.committed else None
    return jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=placement, weak_type=not is_key and leaf.weak_type
    )


def _signature(array: jax.Array) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.sharding.shard_shape(array.shape)


def _reason(signature: tuple[Any, ...], takers: Counter[tuple[Any, ...]], is_alive: bool) -> str:
    if not takers[signature]:
        return "no output has its shape, dtype and shard shape"
    if is_alive:
        return "not donated: the step does not donate it, or something else still holds its memory"
    return "copied: its memory is borrowed from the host (see ensure_donatable) or held elsewhere"
