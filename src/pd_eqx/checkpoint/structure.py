"""A tree told as a flat table of named nodes, and the differences between two such tables.

Two trees can have equal leaves and still not be the same state: a list where there was a tuple, None
where there was an array, a raw uint32 pair where there was a PRNG key. JAX's own tree definitions see
some of these, but compare classes that a refactoring may rename, and cannot be written to disk. So a
checkpoint records one `Node` per container and per leaf, and a restore compares the stored table with
the asked one before it reads any data: every difference is listed, none is cast, padded or dropped.

The class of a module or a named tuple is not compared, only its kind and its fields: a checkpoint
outlives the name of the class that wrote it.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pd_eqx.checkpoint.errors import UnsavableStateError
from pd_eqx.donation import buffers, key_implementation, leaf_path

ARRAY = "array"
NONE = "None"
_OTHER = "not an array"

# What orbax stores and gives back bit for bit; a test stores each, and fails when the list falls behind.
STORED_DTYPES = (
    "bool",
    "int2", "int4", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
    "float4_e2m1fn", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Node:
    """One container or leaf of an item.

    - `path`: as errors print it, such as `training.mu.V['linear1']`; the item's name comes first.
    - `kind`: `array`, `None`, or the container's: `dict`, `list`, `tuple`, `namedtuple`, `module`, or
      the name of the class of any other.
    - `name`: the array's name within the item's files.
    - `dtype`, `shape`: of an array; the dtype of a PRNG key names its implementation.
    - `bytes`: what its data takes.
    - `fingerprint`: of its data (see `pd_eqx.checkpoint.fingerprint`).
    """

    path: str
    kind: str
    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    bytes: int = 0
    fingerprint: str = ""

    @property
    def is_array(self) -> bool:
        """Whether the node is a leaf with data."""
        return self.kind == ARRAY

    def told(self) -> str:
        """The node in a few characters, such as `float32[5,20]` or `list`."""
        if self.is_array:
            return f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return self.kind


def is_key(array: Any) -> bool:
    """Whether an array, or a description of one, holds typed PRNG keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def raw(like: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of what is stored for a leaf: a PRNG key's raw data, or the leaf's own."""
    if is_key(like):
        plain = jax.ShapeDtypeStruct(like.shape, like.dtype)
        return jax.eval_shape(jax.random.key_data, plain)
    return jax.ShapeDtypeStruct(like.shape, like.dtype)


def fields(state: Any) -> dict[str, Any]:
    """The items of a state: its dynamic fields by name."""
    return {str(keys[0].name): child for keys, child in _children(state)}


def nodes(item: Any, name: str) -> tuple[Node, ...]:
    """The table of one item, parents before children."""
    return tuple(node for node, _ in _walk(item, (jax.tree_util.GetAttrKey(name),)))


def leaves(item: Any, name: str) -> list[tuple[Node, Any]]:
    """The arrays of one item beside their nodes, in the order of `jax.tree.leaves`."""
    walked = _walk(item, (jax.tree_util.GetAttrKey(name),))
    return [(node, leaf) for node, leaf in walked if node.kind in (ARRAY, _OTHER)]


def differences(stored: Sequence[Node], asked: Sequence[Node]) -> tuple[str, ...]:
    """Every path at which two tables disagree, one line each; empty when they agree."""
    there = {node.path: node for node in stored}
    wanted = {node.path: node for node in asked}
    lines: list[tuple[str, str]] = []
    told: list[str] = []
    for path in dict.fromkeys([*there, *wanted]):
        left, right = there.get(path), wanted.get(path)
        if left and right and left.told() == right.told():
            continue
        if (left is None or right is None) and any(_is_below(path, above) for above in told):
            continue
        if left and right:
            lines.append((path, f"stored {left.told()}, asked {right.told()}"))
            told.append(path)
        elif left and _is_end(left, stored):
            lines.append((path, f"stored {left.told()}, not asked for"))
        elif right and _is_end(right, asked):
            lines.append((path, f"not stored, asked {right.told()}"))
    width = max((len(path) for path, _ in lines), default=0)
    return tuple(f"{path:<{width}}  {line}" for path, line in lines)


def refuse_unsavable(state: Any) -> None:
    """Raise unless every leaf of every item can be stored and given back bit for bit.

    **Errors:** `UnsavableStateError`, with one line per leaf.
    """
    if not isinstance(state, eqx.Module):
        raise UnsavableStateError(
            f"a state is an Equinox module whose fields are the items; found "
            f"{type(state).__qualname__}. Wrap it in a module with one field per item."
        )
    wrong: list[tuple[str, str]] = []
    owners: dict[tuple[int, int], str] = {}
    for name, item in fields(state).items():
        walked = leaves(item, name)
        names = Counter(node.name for node, _ in walked)
        for node, leaf in walked:
            reason = _unsavable(leaf) or _unnameable(node, names[node.name])
            if reason is None:
                for buffer in buffers(leaf):
                    owner = owners.setdefault(buffer, node.path)
                    if owner != node.path:
                        reason = (
                            f"shares its memory with {owner}, and would come back as another "
                            "array; store one of them, or make a copy with `jnp.copy`"
                        )
                        break
            if reason is not None:
                wrong.append((node.path, reason))
        wrong += [
            (f"{name}", f"has a dict key that is neither string nor integer: {key!r}")
            for key in _odd_keys(item)
        ]
    if wrong:
        lines = "\n".join(f"  {path}  {reason}" for path, reason in wrong)
        raise UnsavableStateError(
            f"nothing was written: {len(wrong)} leaves cannot be stored faithfully:\n{lines}"
        )


def _unsavable(leaf: Any) -> str | None:
    if isinstance(leaf, Tracer):
        return "is being traced; save outside of `jax.jit`"
    if isinstance(leaf, np.ndarray | np.generic):
        return "is a numpy array; put it on a device with `jnp.asarray`"
    if not isinstance(leaf, jax.Array):
        return f"is no array but a {type(leaf).__qualname__}; make it a static field or an array"
    if leaf.is_deleted():
        return "was deleted, probably donated to a step; save what the step returned"
    if leaf.size == 0:
        return f"has no elements ({leaf.dtype}{list(leaf.shape)}); use None instead"
    if is_key(leaf):
        try:
            key_implementation(leaf.dtype)
        except ValueError as error:
            return str(error)
        return None
    if leaf.dtype.name not in STORED_DTYPES:
        return f"has dtype {leaf.dtype.name}, which orbax cannot store; cast it"
    return None


def _unnameable(node: Node, uses: int) -> str | None:
    try:
        node.path.encode()
        node.name.encode()
    except UnicodeEncodeError:
        return "has a name that is no valid Unicode"
    if uses > 1:
        return f"would be stored as '{node.name}', and so would another leaf; rename one"
    return None


def _odd_keys(item: Any) -> Iterator[Any]:
    for keys, _ in jax.tree_util.tree_leaves_with_path(item, is_leaf=lambda leaf: leaf is None):
        for key in keys:
            if isinstance(key, jax.tree_util.DictKey) and not isinstance(key.key, str | int):
                yield key.key


def _walk(tree: Any, keys: tuple[Any, ...]) -> Iterator[tuple[Node, Any]]:
    path = leaf_path(keys)
    if tree is None:
        yield Node(path, NONE), None
        return
    children = _children(tree)
    if len(children) == 1 and not children[0][0]:
        if hasattr(tree, "shape") and hasattr(tree, "dtype"):
            stored = raw(tree)
            yield (
                Node(
                    path,
                    ARRAY,
                    name=".".join(map(_key_name, keys[1:])),
                    dtype=str(tree.dtype),
                    shape=tuple(tree.shape),
                    bytes=stored.size * stored.dtype.itemsize,
                ),
                tree,
            )
        else:
            yield Node(path, _OTHER), tree
        return
    yield Node(path, _kind(tree)), tree
    for key, child in children:
        yield from _walk(child, keys + key)


def _children(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return children


def _kind(container: Any) -> str:
    if isinstance(container, eqx.Module):
        return "module"
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return "namedtuple"
    return type(container).__qualname__


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_below(path: str, above: str) -> bool:
    return path.startswith((above + ".", above + "["))


def _is_end(node: Node, table: Sequence[Node]) -> bool:
    return node.is_array or not any(_is_below(other.path, node.path) for other in table)
