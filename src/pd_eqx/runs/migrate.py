"""Checkpoints of two older layouts, rewritten as today's; nothing else in the project reads them.

Each stored the whole state as one orbax item, `default`, with these keys:

    components  ci_fn  components_opt_state  ci_fn_opt_state  step  adversaries
    components  ci_fn  components_opt_state  ci_fn_opt_state  step  sources  sources_opt_state

In the second, older one an adversary's sources and the state of the optimizer that ascends them lay apart, each by
the name of the term; together they are what an `AdversaryState` is.

Orbax writes modules, named tuples and dictionaries alike as keys, tuples as lists, and an empty named tuple as None.
What each was is told from the classes that a state is made of, by their fields; a restore would otherwise refuse the
step. A key that no layout has fails: dropping it could drop a part of a run. The old items carry no
fingerprints, so what is converted is what the disk gives now; from then on it is guarded.
"""

import collections
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from pd_eqx import adversary, components, masks
from pd_eqx.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointStore,
    StructureMismatchError,
    disk,
    items,
)
from pd_eqx.ci import attention, mlp, reverse, transformer

_ITEM = "default"
_COMMON = frozenset({"components", "ci_fn", "components_opt_state", "ci_fn_opt_state", "step"})
_WITH_ADVERSARIES = _COMMON | {"adversaries"}
_WITH_SOURCES = _COMMON | {"sources", "sources_opt_state"}
_MODULES = (adversary, components, masks, attention, mlp, reverse, transformer)


@dataclasses.dataclass(frozen=True)
class MigratedStep:
    """One step that was converted.

    - `layout`: `adversaries` or `sources`, for the keys that it was stored under.
    - `bytes`: of its arrays.
    """

    step: int
    layout: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class _Found:
    step: int
    where: Path
    layout: str
    names: list[str]
    tree: Any


def migrate(path: Path, into: Path) -> tuple[MigratedStep, ...]:
    """Converts every step in `path` to a new directory of checkpoints; `path` is only read.

    **Arguments:**

    - `path`: a directory whose numbered directories hold one item `default` each.
    - `into`: absent or empty.

    **Returns:** what was converted, ascending. Each step was read back and compared byte for byte.

    **Errors:** `CheckpointNotFoundError` where there is nothing to convert; `CheckpointExistsError` if `into` is not
    empty; `StructureMismatchError` for a step with other keys, which is found before anything is written;
    `CorruptCheckpointError` for what cannot be read.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise CheckpointExistsError(f"{into} is not empty; name a directory that is, or a new one")
    found = [_find(path, step) for step in disk.numbered(path)]
    if not found:
        raise CheckpointNotFoundError(f"there is no step in {path}")
    with CheckpointStore(into) as store:
        return tuple(_convert(step, store) for step in found)


def _find(path: Path, step: int) -> _Found:
    where = path / str(step) / _ITEM
    if not where.is_dir():
        inside = sorted(entry.name for entry in (path / str(step)).iterdir() if entry.is_dir())
        raise StructureMismatchError(
            f"step {step} of {path} has no item '{_ITEM}' but {', '.join(inside) or 'nothing'}; only steps that "
            "store their whole state as that one item can be migrated"
        )
    names, tree = items.plain_tree(where)
    keys = frozenset(tree) if isinstance(tree, dict) else frozenset[str]()
    for layout, expected in (("adversaries", _WITH_ADVERSARIES), ("sources", _WITH_SOURCES)):
        if keys == expected:
            return _Found(step, where, layout, names, tree)
    nearest = (
        _WITH_SOURCES if "sources" in keys or "sources_opt_state" in keys else _WITH_ADVERSARIES
    )
    complaints = [
        f"{what} {', '.join(sorted(some))}"
        for what, some in (("unknown", keys - nearest), ("missing", nearest - keys))
        if some
    ]
    raise StructureMismatchError(
        f"step {step} of {path} has none of the known layouts: {'; '.join(complaints)}. Nothing was written"
    )


def _convert(found: _Found, store: CheckpointStore) -> MigratedStep:
    leaves, treedef = jax.tree.flatten(found.tree)
    arrays = items.read_by_orbax(found.where, found.tree, range(len(leaves)))
    flat: dict[str, Any] = treedef.unflatten(arrays)
    if int(flat["step"]) != found.step:
        raise StructureMismatchError(
            f"step {found.step} of {found.where.parents[1]} holds the state after {int(flat['step'])} updates; give the "
            "directory that name"
        )
    state = _state(flat, found)
    narrowed = [
        name
        for name, array in zip(found.names, arrays, strict=True)
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype
    ]
    if narrowed:
        raise StructureMismatchError(
            f"{narrowed[0]} of step {found.step} needs 64-bit types; set JAX_ENABLE_X64=1"
        )
    store.save(found.step, jax.tree.map(jnp.asarray, state))
    expected = iter(jax.tree.leaves(state))
    for name in ("decomposition", "training"):
        back = {node.path: array for node, array in store.read_item(name, found.step)}
        for node in _item(store, found.step, name):
            if back[node].tobytes() != np.asarray(next(expected)).tobytes():
                raise CheckpointError(f"{node} of step {found.step} was not stored as it was read")
    return MigratedStep(found.step, found.layout, sum(array.nbytes for array in arrays))


def _item(store: CheckpointStore, step: int, name: str) -> Iterator[str]:
    stored = next(item for item in store.describe(step).items if item.name == name)
    return (node.path for node in stored.arrays)


def _state(flat: Mapping[str, Any], found: _Found) -> Any:
    """The state that the keys describe, of stand-ins for its classes."""
    product = {name: _dressed(flat[name]) for name in ("components", "ci_fn")}
    training = {
        "components_opt_state": _optimizer(flat["components_opt_state"], flat["components"]),
        "ci_fn_opt_state": _optimizer(flat["ci_fn_opt_state"], flat["ci_fn"]),
        "adversaries": {
            term: _module(
                "AdversaryState",
                {
                    "sources": _dressed(bundle["sources"]),
                    "opt_state": _optimizer(bundle["opt_state"], bundle["sources"]),
                },
            )
            for term, bundle in _bundles(flat, found.step).items()
        },
        "step": flat["step"],
        "averages": {},
    }
    parts = {
        "decomposition": _module("Decomposition", product),
        "training": _module("TrainingItem", training),
    }
    return _module("TrainState", parts)


def _bundles(flat: Mapping[str, Any], step: int) -> Mapping[str, Mapping[str, Any]]:
    """Sources and optimizer state of each term."""
    if "adversaries" in flat:
        bundles: dict[str, dict[str, Any]] = flat["adversaries"] or {}
        for term, bundle in bundles.items():
            if set(bundle) != {"sources", "opt_state"}:
                raise StructureMismatchError(
                    f"step {step}: adversaries.{term} has the keys {', '.join(bundle)}, not sources and opt_state"
                )
        return bundles
    sources, states = flat["sources"] or {}, flat["sources_opt_state"] or {}
    if set(sources) != set(states):
        raise StructureMismatchError(
            f"step {step}: sources are those of {', '.join(sources) or 'no term'}, but sources_opt_state those of "
            f"{', '.join(states) or 'no term'}"
        )
    return {term: {"sources": sources[term], "opt_state": states[term]} for term in sources}


def _optimizer(stored: Any, params: Any) -> Any:
    """The state of an optimizer of `params`: where these have None, it has; elsewhere None was an empty tuple."""
    absent = {path for path, value in _leaves(params) if value is None}

    def is_absent(path: tuple[str, ...]) -> bool:
        return any(path[start:] in absent for start in range(len(path)))

    return _dressed(stored, (), is_absent)


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    match tree:
        case dict():
            children = tree.items()
        case list():
            children = enumerate(tree)
        case _:
            yield path, tree
            return
    for name, child in children:
        yield from _leaves(child, (*path, str(name)))


def _dressed(
    stored: Any,
    path: tuple[str, ...] = (),
    is_absent: Callable[[tuple[str, ...]], bool] = lambda _: True,
) -> Any:
    """A tree of dictionaries and lists as one of stand-ins for the classes that it was made of."""
    match stored:
        case None if not is_absent(path):
            return _named_tuple("Empty", {})
        case list():
            children = (
                _dressed(child, (*path, str(i)), is_absent) for i, child in enumerate(stored)
            )
            return tuple(children)
        case dict():
            inside = {
                name: _dressed(child, (*path, name), is_absent) for name, child in stored.items()
            }
            fields = frozenset(inside)
            if fields in _MODULE_FIELDS:
                return _module("Stored", inside)
            return _named_tuple("Stored", inside) if fields in _TUPLE_FIELDS else inside
        case _:
            return stored


def _module_fields() -> frozenset[frozenset[str]]:
    """The fields with arrays of every module that a state may hold."""
    return frozenset(
        frozenset(field.name for field in dataclasses.fields(cls) if not _is_static(field))
        for module in _MODULES
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, eqx.Module) and cls is not eqx.Module
    ) - {frozenset()}


def _is_static(field: dataclasses.Field[Any]) -> bool:
    return field.metadata.get("static", False)


def _tuple_fields() -> frozenset[frozenset[str]]:
    """The fields of every named tuple that optax keeps its states in."""
    return frozenset(
        frozenset[str](cls.__dict__["_fields"])
        for module in (optax, optax.contrib)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, tuple) and "_fields" in cls.__dict__
    ) - {frozenset()}


def _module(name: str, fields: Mapping[str, Any]) -> Any:
    def body(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = dict.fromkeys(fields, Any)

    return types.new_class(name, (eqx.Module,), exec_body=body)(**fields)


def _named_tuple(name: str, fields: Mapping[str, Any]) -> Any:
    made = collections.namedtuple(name, fields)  # pyright: ignore[reportUntypedNamedTuple]
    return made(**fields)


_MODULE_FIELDS = _module_fields()
_TUPLE_FIELDS = _tuple_fields()
