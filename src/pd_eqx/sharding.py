"""Where everything lies: a mesh of devices, and one table of rules that places each array on it.

The mesh has three axes. `replica` splits the batch and copies all else. `fsdp` splits the batch too, and every matrix by
a side that is not of components, to be gathered where it is used. `tensor` splits the components: each device has some
columns of V, the same rows of U, and their importances.

`RULES` is the whole of the policy. A leaf that no rule names, such as a scalar, is on every device: an array that was
left where it happened to be made runs when fresh and refuses to when restored. Sites must tile, because a matrix that
was silently copied to every device is a run that no longer fits; what is small (importance functions, sources) is split
where it tiles and copied where it does not. `Placed` tells what became of each leaf.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pd_eqx.sites import Site
from pd_eqx.stream import Stream

REPLICA, FSDP, TENSOR = "replica", "fsdp", "tensor"
AXES = (REPLICA, FSDP, TENSOR)
# What one axis of an array is split over: mesh axes, the first the slowest; none for not at all.
Split = tuple[str, ...]


def batch_axes(sizes: Mapping[str, int]) -> Split:
    """What a batch is split over, on a mesh of these sizes by axis.

    As `AXES` has them, but `fsdp` before `replica` where all three are above 1. XLA's partitioner (jax 0.10.2 and
    0.12.0) gave the rows of `h @ U` to the wrong devices there, for `h` split (batch, tensor), U split (tensor, fsdp) and
    a product that is wanted (batch, tensor): to bring the devices of `h` into U's order it moves rows between them, and
    never back. With `fsdp` first there is nothing to move. Elsewhere that order costs: U's gradient then gathers the batch,
    five times the bytes an update of an 8 x 8 x 1 mesh.
    """
    return (FSDP, REPLICA) if min(sizes[axis] for axis in AXES) > 1 else (REPLICA, FSDP)


Tree = TypeVar("Tree")


class MeshError(ValueError):
    """A mesh that the devices, the sites or the batch do not fit; the message has a line for each misfit."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """How many devices there are along each axis; one axis may be None, for all the devices that are left.

    **Errors:** `MeshError` for two axes without a size, or a size below one.
    """

    replica: int | None = 1
    fsdp: int | None = 1
    tensor: int | None = 1

    def __post_init__(self) -> None:
        """Refuses what could not be filled in."""
        if sum(size is None for size in self.sizes) > 1:
            raise MeshError(
                f"mesh: only one axis can take the devices that are left, found {self}; give the others a number"
            )
        if any(size is not None and size < 1 for size in self.sizes):
            raise MeshError(f"mesh: each axis has 1 device or more, found {self}")

    @property
    def sizes(self) -> tuple[int | None, int | None, int | None]:
        """The three sizes, in the order of `AXES`."""
        return self.replica, self.fsdp, self.tensor

    def filled(self, n_devices: int) -> tuple[int, ...]:
        """The sizes on so many devices; without an open axis they may take fewer than all.

        **Errors:** `MeshError` where the devices do not suffice, or cannot be shared out evenly.
        """
        given = math.prod(size for size in self.sizes if size is not None)
        told = "x".join("?" if size is None else str(size) for size in self.sizes)
        if given > n_devices:
            raise MeshError(
                f"mesh: {told} (replica x fsdp x tensor) needs {given} devices, found {n_devices}; lower the mesh, or "
                "run on more devices"
            )
        if None in self.sizes and n_devices % given:
            raise MeshError(
                f"mesh: {told} (replica x fsdp x tensor) cannot share out {n_devices} devices evenly; {given} must "
                "divide them"
            )
        return tuple(n_devices // given if size is None else size for size in self.sizes)

    def mesh(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """The mesh over these devices, by default all of jax's, of every process.

        **Errors:** as `filled`; `MeshError` where a device of another process would be left out.
        """
        found = list(jax.devices() if devices is None else devices)
        sizes = self.filled(len(found))
        used = math.prod(sizes)
        if used < len(found) and len({device.process_index for device in found}) > 1:
            raise MeshError(
                f"mesh: {'x'.join(map(str, sizes))} leaves {len(found) - used} of {len(found)} devices idle, which a run "
                "of several processes cannot; set one axis to null to take them all"
            )
        return jax.sharding.Mesh(np.array(found[:used]).reshape(sizes), AXES)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """What a rule may look at: the leaf's shape, components by site and in all, the batch size and its split."""

    path: str
    shape: tuple[int, ...]
    counts: Mapping[str, int]
    batch_size: int
    batch: Split

    @property
    def component_counts(self) -> frozenset[int]:
        """How long an axis of components is: that of the site that the path names, or of any and all of them."""
        for site, count in self.counts.items():
            if f"[{site!r}]" in self.path:
                return frozenset({count})
        return frozenset({*self.counts.values(), sum(self.counts.values())})


@dataclasses.dataclass(frozen=True)
class Rule:
    """How some leaves are split.

    - `what`: which these are, in words; `pattern`: a regular expression that their path contains.
    - `splits`: what each axis is split over, from the first to the last.
    """

    what: str
    pattern: str
    splits: Callable[[_Leaf], tuple[Split, ...]]


def _sources(leaf: _Leaf) -> tuple[Split, ...]:
    """Batch-shaped sources lie with the batch; shared ones are split by component alone, as finely as they can be."""
    rest = ((),) * (len(leaf.shape) - 2)
    if len(leaf.shape) > 1 and leaf.shape[0] == leaf.batch_size:
        return (leaf.batch, *rest, (TENSOR,))
    return ((), *rest, (TENSOR, *leaf.batch))[-len(leaf.shape) :]


def _delta_sources(leaf: _Leaf) -> tuple[Split, ...]:
    first = leaf.batch if leaf.shape[0] == leaf.batch_size else ()
    return (first, *((),) * (len(leaf.shape) - 1))


def _importance_function(leaf: _Leaf) -> tuple[Split, ...]:
    """An axis of components over `tensor`; the longest of the others over `fsdp`."""
    splits: list[Split] = [()] * len(leaf.shape)
    axes = list(range(len(leaf.shape)))
    ends = {0, len(axes) - 1}
    of_components = [
        axis for axis in axes if axis in ends and leaf.shape[axis] in leaf.component_counts
    ]
    if of_components:
        splits[of_components[0]] = (TENSOR,)
        axes.remove(of_components[0])
    if axes and len(leaf.shape) > 1:
        splits[max(axes, key=lambda axis: leaf.shape[axis])] = (FSDP,)
    return tuple(splits)


def _matrix(leaf: _Leaf) -> tuple[Split, ...]:
    """The axis before the last; those before it are a stack of layers, which is run one by one and so never split."""
    if len(leaf.shape) < 2:
        return ((),) * len(leaf.shape)
    return (*((),) * (len(leaf.shape) - 2), (FSDP,), ())


# The first rule whose pattern the path contains counts. A moment has its parameter's path at its end, and so its place.
RULES: tuple[Rule, ...] = (
    Rule("V [d_in, C] and its moments", r"\.V\[", lambda _: ((FSDP,), (TENSOR,))),
    Rule("U [C, d_out] and its moments", r"\.U\[", lambda _: ((TENSOR,), (FSDP,))),
    Rule("sources [*scope, C] and moments", r"\.?adversaries\[.*\.component$", _sources),
    Rule("delta sources [*scope] and moments", r"\.?adversaries\[.*\.delta$", _delta_sources),
    Rule("moving averages [C]", r"\.?averages\[", lambda _: ((TENSOR,),)),
    Rule("importance function and moments", r"ci_fn", _importance_function),
    Rule("the target's matrices [*stack, d_in, d_out]", r"^target", _matrix),
    Rule("all else: counters, biases, tables", r"", lambda leaf: ((),) * len(leaf.shape)),
)


@dataclasses.dataclass(frozen=True)
class Placed:
    """What became of a leaf: by which rule, how it is split, and the axes that the rule named but do not tile."""

    path: str
    rule: Rule
    spec: PartitionSpec
    copied: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places every array of one run; see `make_layout`.

    - `counts`: components by decomposed site; `batch_size`: how many elements a batch has.
    """

    mesh: jax.sharding.Mesh
    counts: Mapping[str, int]
    batch_size: int

    @property
    def batch(self) -> Split:
        """What a batch is split over; see `batch_axes`."""
        return batch_axes(self.mesh.shape)

    @property
    def replicated(self) -> NamedSharding:
        """On every device, whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def by_batch(self) -> NamedSharding:
        """The first axis with the batch."""
        return NamedSharding(self.mesh, PartitionSpec(self.batch))

    def placed(self, path: str, shape: tuple[int, ...]) -> Placed:
        """Where a leaf goes.

        **Arguments:**

        - `path`: as `donation.leaf_path` tells it, from the state down, or `target` and down.
        """
        leaf = _Leaf(path, shape, self.counts, self.batch_size, self.batch)
        rule = next(rule for rule in RULES if re.search(rule.pattern, path))
        spec: list[Split | None] = []
        copied: list[str] = []
        for length, split in zip(shape, rule.splits(leaf), strict=True):
            kept = self._that_tile(length, split)
            copied += [axis for axis in split if axis not in kept and self.mesh.shape[axis] > 1]
            spec.append(kept or None)
        while spec and spec[-1] is None:
            spec.pop()
        return Placed(path, rule, PartitionSpec(*spec), tuple(copied))

    def sharding(self, path: str, shape: tuple[int, ...]) -> NamedSharding:
        """The place of one array."""
        return NamedSharding(self.mesh, self.placed(path, shape).spec)

    def shardings(self, abstract: Tree, below: str = "") -> Tree:
        """The place of each array in a tree; `below` is the path of the tree itself."""

        def place(keys: tuple[Any, ...], leaf: Any) -> NamedSharding:
            path = (below + jax.tree_util.keystr(keys)).removeprefix(".")
            return self.sharding(path, tuple(leaf.shape))

        return jax.tree_util.tree_map_with_path(place, abstract)

    def abstract(self, abstract: Tree, below: str = "") -> Tree:
        """The same shapes and dtypes, with the place of each array."""
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            abstract,
            self.shardings(abstract, below),
        )

    def with_batch(self, tree: Tree) -> Tree:
        """Inside a computation: arrays `[batch, ...]` lie with the batch, their other axes as XLA likes.

        Of a stream, whose directions know no batch, XLA places all.
        """

        def constrain(x: Any) -> Any:
            if isinstance(x, Stream):
                return x
            free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
            spec = PartitionSpec(self.batch, *free)
            return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

        return jax.tree.map(constrain, tree, is_leaf=lambda node: isinstance(node, Stream))

    def with_components(self, tree: Tree) -> Tree:
        """Inside a computation: arrays `[batch, ..., C]` lie with the batch and with the components."""

        def constrain(x: jax.Array) -> jax.Array:
            spec = PartitionSpec(self.batch, *(None,) * (x.ndim - 2), (TENSOR,))
            return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

        return jax.tree.map(constrain, tree)

    def _that_tile(self, length: int, split: Split) -> Split:
        kept: list[str] = []
        for axis in split:
            if self.mesh.shape[axis] == 1:
                continue
            size = self.mesh.shape[axis] * math.prod(self.mesh.shape[other] for other in kept)
            if length % size == 0:
                kept.append(axis)
        return tuple(kept)


def make_layout(
    mesh: jax.sharding.Mesh, sites: Sequence[Site], counts: Mapping[str, int], batch_size: int
) -> Layout:
    """A layout in which every decomposed site and the batch tile.

    **Errors:** `MeshError`, with the lines of `misfits`.
    """
    lines = misfits(mesh.shape, sites, counts, batch_size)
    if lines:
        raise MeshError("\n".join(lines))
    return Layout(mesh, dict(counts), batch_size)


def misfits(
    sizes: Mapping[str, int], sites: Sequence[Site], counts: Mapping[str, int], batch_size: int
) -> list[str]:
    """A line for each decomposed site and axis that do not tile, and for the batch, with the sizes that would."""
    fsdp, tensor = sizes[FSDP], sizes[TENSOR]
    lines: list[str] = []
    for site in sites:
        if site.name not in counts:
            continue
        for side, length, axis, size in (
            ("d_in", site.d_in, FSDP, fsdp),
            ("d_out", site.d_out, FSDP, fsdp),
            ("C", counts[site.name], TENSOR, tensor),
        ):
            if length % size:
                nearest = ""
                if side == "C":
                    below = length - length % size
                    nearest = (
                        f", or sites.{site.name} to a multiple of {size} ({_options(below, size)})"
                    )
                lines.append(
                    f"site {site.name!r}: {side} = {length} does not tile over mesh.{axis} = {size}; set mesh.{axis} to "
                    f"{_listed(_divisors(length))}{nearest}"
                )
    shards = sizes[REPLICA] * fsdp
    if batch_size % shards:
        below = batch_size - batch_size % shards
        lines.append(
            f"data.batch_size = {batch_size} does not tile over mesh.replica x mesh.fsdp = {shards}; set it to a multiple "
            f"({_options(below, shards)}), or the two axes to a product of {_listed(_divisors(batch_size))}"
        )
    return lines


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _options(below: int, size: int) -> str:
    return f"{below} or {below + size}" if below else str(size)


def _listed(sizes: Sequence[int]) -> str:
    shown = list(map(str, sizes if len(sizes) <= 8 else sizes[:8]))
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} or {shown[-1]}" + (" (or more)" if len(sizes) > 8 else "")
