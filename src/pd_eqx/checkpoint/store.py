"""Saves an Equinox module step by step, and gives back exactly what was saved or an error.

A state is an Equinox module; each of its dynamic fields is an *item*, stored in its own directory
`<path>/<step>/<field>/`, so that a consumer of one item opens no file of the others. What the store
promises, and the failure that each promise guards against:

- A step is there when it is whole (see `disk` for the order of operations). Resuming from half a step,
  or from a directory that merely looks like one, is how runs are lost.
- The structure asked for is compared with the stored one before any data is read. Orbax casts dtypes,
  takes None for an array, and pads.
- Every leaf is checked against its fingerprint. Orbax does not check data.
- Restored arrays are copied, leaf by leaf, into buffers of XLA's own, placed and typed so that a step
  compiled for the abstract tree runs without compiling again and donates every byte. A plain
  restore borrows host memory for some leaves, by the luck of the allocator.
"""

import dataclasses
import gc
import operator
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from pd_eqx import processes
from pd_eqx.checkpoint import disk, items, manifest
from pd_eqx.checkpoint.background import Background
from pd_eqx.checkpoint.describe import StepDescription, StoreDescription, strays
from pd_eqx.checkpoint.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    PlacementError,
    ReadOnlyError,
    SaveFailedError,
    StructureMismatchError,
)
from pd_eqx.checkpoint.fingerprint import device_sums, fingerprint, host_sums
from pd_eqx.checkpoint.manifest import Entry, Manifest, StoredItem
from pd_eqx.checkpoint.structure import (
    Node,
    differences,
    fields,
    is_key,
    leaves,
    nodes,
    raw,
    refuse_unsavable,
)
from pd_eqx.donation import from_host, own_copy

_GROUP_BYTES = 1 << 30

_device_sums = jax.jit(device_sums)


@dataclasses.dataclass(frozen=True)
class _Pending:
    """An item on its way to the disk: its nodes, and its arrays with PRNG keys as raw data."""

    name: str
    nodes: tuple[Node, ...]
    treedef: Any
    arrays: list[jax.Array]


class CheckpointStore:
    """The steps of one directory. Use it as a context manager, so that closing waits for saves.

    **Arguments:**
    - `path`: the directory; made if it is absent, unless `read_only`.
    - `keep_last`: how many of the newest whole steps survive a save; `None` keeps all, or only the
      newest if `keep_every` is given.
    - `keep_every`: whole steps that are multiples of it survive as well.
    - `read_only`: the store writes and removes nothing, and every `save` raises.
    - `asynchronous`: `save` returns once the state is copied to host memory, and writes in the background.
      The copy is as large as what the state takes on all devices of this process, replicas included,
      and is freed when the write is done; the loop may donate the state at once, and still reuses all of it.

    Where a run has several processes, all of them make the same calls, on a directory that all of them see: each writes
    and reads its own shards, nothing is gathered, and the first commits the step while the others wait.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        read_only: bool = False,
        asynchronous: bool = False,
    ) -> None:
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1, or None")
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._background = Background() if asynchronous and not read_only else None
        if not read_only:
            self.path.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for a save in the background, and raise what it raised."""
        self.wait()

    def wait(self) -> None:
        """Return when the last save is on disk.

        **Errors:** `SaveFailedError` when it failed in the background.
        """
        if self._background is not None:
            self._background.wait()

    def save(self, step: int, state: Any) -> None:
        """Store `state` as step `step`; on return, or when asynchronous after `wait`, it is durable.

        **Arguments:**
        - `step`: the number of updates that the state has had; not negative, and not on disk.
        - `state`: an Equinox module whose leaves are jax arrays. It may be donated after the call.

        **Errors:** `UnsavableStateError` and `CheckpointExistsError` before anything is written,
        `SaveFailedError` when the disk refuses, `ReadOnlyError`; also the failure of the save before, if
        that ran in the background.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True; it cannot save")
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step is {step}; a step counts updates and cannot be negative")
        self.wait()
        if (self.path / str(step)).exists():
            raise CheckpointExistsError(
                f"step {step} is already in {self.path}, and a save never overwrites; "
                "remove it by hand, or save under another step"
            )
        refuse_unsavable(state)
        if self._background is not None and processes.count() > 1:
            raise SaveFailedError(
                f"this program runs as {processes.count()} processes, whose saves in the background would cross the "
                "computations of the loop; open the store with asynchronous=False"
            )
        with jax.set_mesh(None):
            pending = [self._pend(name, item) for name, item in fields(state).items()]
        jax.block_until_ready([item.arrays for item in pending])
        if self._background is None:
            self._write(step, pending)
        else:
            self._background.start(lambda: self._write(step, pending))

    def restore(self, abstract: Any, step: int | None = None, *, verify: bool = True) -> Any:
        """The whole state of a step, ready to be donated to a compiled step.

        **Arguments:**
        - `abstract`: the state with a `ShapeDtypeStruct` for each array, as from `abstract_like` or
          `jax.eval_shape`. Each leaf comes back in the sharding or layout that is given there, or
          uncommitted where none is.
        - `step`: which step; the latest whole one by default.
        - `verify`: check each leaf's fingerprint, at the cost of one pass over the bytes.

        **Returns:** a state like `abstract`.

        **Errors:** `StructureMismatchError`, `PlacementError`, `CheckpointNotFoundError`,
        `IncompleteCheckpointError`, `CorruptCheckpointError`.
        """
        step, record = self._choose(step)
        asked = fields(abstract)
        stored = self._compare(step, record, asked, whole=True)
        for name, item in asked.items():
            _refuse_placement(item, name)
        restored = [
            self._read(step, stored[name], item, verify=verify) for name, item in asked.items()
        ]
        _, treedef = jax.tree.flatten(abstract, is_leaf=lambda node: node is not abstract)
        return treedef.unflatten(restored)

    def restore_item(
        self,
        item: str,
        abstract: Any,
        step: int | None = None,
        *,
        to: Literal["devices", "host"] = "devices",
        verify: bool = True,
    ) -> Any:
        """One item of a step, without opening a file of the others.

        **Arguments:**
        - `item`: the field's name, such as `decomposition`.
        - `abstract`: the item, described as for `restore`.
        - `step`, `verify`: as for `restore`.
        - `to`: `"devices"` as for `restore`, or `"host"` for numpy leaves (a PRNG key comes as its
          raw data), which need no device memory.

        **Errors:** as for `restore`.
        """
        return self.restore_item_and_step(item, abstract, step, to=to, verify=verify)[0]

    def restore_item_and_step(
        self,
        item: str,
        abstract: Any,
        step: int | None = None,
        *,
        to: Literal["devices", "host"] = "devices",
        verify: bool = True,
    ) -> tuple[Any, int]:
        """The same, and which step it was: asking for the latest first would read its manifest twice."""
        step, record = self._choose(step)
        self._entry(step, record, item)
        stored = self._compare(step, record, {item: abstract}, whole=False)[item]
        if to == "devices":
            _refuse_placement(abstract, item)
        found = self._read(step, stored, abstract, verify=verify, to_host=to == "host")
        return found, step

    def read_item(self, item: str, step: int | None = None) -> Iterator[tuple[Node, np.ndarray]]:
        """Each array of an item with its record, on the host, without knowing the item's class.

        It reads a quarter of a gigabyte at a time, or one larger array, and checks each fingerprint. A
        PRNG key comes as its raw data. `dict` over `(node.path, array)` makes a table of it.

        **Arguments:** as for `restore_item`.

        **Errors:** as for `restore_item`, at the first damaged array.
        """
        step, record = self._choose(step)
        directory = self.path / str(step)
        stored = self._item(directory, self._entry(step, record, item))
        self._refuse_altered(directory, stored)
        for node, array in self._arrays(directory, stored):
            if array is None:
                raise self._gone(directory) or _corrupt(directory, [node])
            yield node, array

    def verify(self, step: int | None = None) -> StepDescription:
        """Read every byte of a step and compare it with what was saved.

        **Arguments:**
        - `step`: which step; the latest whole one by default.

        **Returns:** the step's description.

        **Errors:** `CorruptCheckpointError`, naming every damaged array of every item, and those
        of `restore` for a step that is not whole.
        """
        step, record = self._choose(step)
        directory = self.path / str(step)
        stored = tuple(self._item(directory, entry) for entry in record.entries)
        absent, resized = manifest.missing(directory, record.present)
        damage = [*absent, *resized, *manifest.altered(directory, record.present)]
        wrong = [
            node for item in stored if not item.stripped for node in self._wrong(directory, item)
        ]
        if damage or wrong:
            raise self._gone(directory) or _corrupt(directory, wrong, "\n".join(damage))
        return StepDescription(step, stored)

    @overload
    def describe(self, step: int) -> StepDescription: ...
    @overload
    def describe(self, step: None = None) -> StoreDescription: ...
    def describe(self, step: int | None = None) -> StepDescription | StoreDescription:
        """What a step holds, or without `step` everything in the directory; reads no data.

        **Errors:** `CheckpointNotFoundError` when there is no directory of that number.
        """
        self._check()
        if step is None:
            found = [self._describe(number) for number in disk.numbered(self.path)]
            return StoreDescription(self.path, tuple(found), strays(self.path))
        if step not in disk.numbered(self.path):
            raise self._no_such(step)
        return self._describe(step)

    def describe_item(self, item: str, step: int | None = None) -> StoredItem:
        """What was recorded of one item; reads no data, and no file of the others.

        **Arguments:**
        - `item`: its name; it may have been stripped.
        - `step`: which step; the latest whole one by default.

        **Errors:** as for `restore_item`.
        """
        step, record = self._choose(step)
        entry = self._entry(step, record, item, even_stripped=True)
        return self._item(self.path / str(step), entry)

    def steps(self) -> list[int]:
        """The whole steps on disk now, ascending."""
        self._check()
        return [step for step in disk.numbered(self.path) if self._is_whole(step)]

    def latest_step(self) -> int | None:
        """The newest whole step on disk now, if there is one."""
        self._check()
        newest_first = reversed(disk.numbered(self.path))
        return next((step for step in newest_first if self._is_whole(step)), None)

    def _check(self) -> None:
        if self._background is not None:
            self._background.check()

    def _pend(self, name: str, item: Any) -> _Pending:
        arrays: list[jax.Array] = []
        prints: dict[str, str] = {}
        for node, leaf in leaves(item, name):
            array = jax.random.key_data(leaf) if is_key(leaf) else leaf
            # One leaf at a time: many computations with collectives in flight at once can deadlock.
            prints[node.path] = _fingerprint(node, array)
            if self._background is not None:
                array = jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))
            arrays.append(array)
        told = (
            dataclasses.replace(node, fingerprint=prints.get(node.path, ""))
            for node in nodes(item, name)
        )
        return _Pending(name, tuple(told), jax.tree.structure(item), arrays)

    def _write(self, step: int, pending: Sequence[_Pending]) -> None:
        try:
            attempt = int(processes.gathered(disk.attempt())[0, 0])
            staged = disk.staging(self.path, step, attempt)
            directory = staged / str(step)
            processes.by_first(lambda: disk.stage(self.path, step, attempt))
            trees = {
                item.name: item.treedef.unflatten(item.arrays) for item in pending if item.arrays
            }
            items.write(directory, trees)
            processes.by_first(lambda: self._commit(step, staged, pending))
        except processes.PeerError:
            raise
        except Exception as error:
            if processes.is_first():
                disk.unstage(self.path, step)
            raise SaveFailedError(
                f"step {step} was not saved to {self.path}: {error}. The steps before it are as they "
                "were, and saving it again is safe"
            ) from error
        processes.by_first(lambda: self._prune(step))

    def _commit(self, step: int, staged: Path, pending: Sequence[_Pending]) -> None:
        directory = staged / str(step)
        disk.flush_tree(directory)
        for name, content in _recorded(step, directory, pending).items():
            disk.write(directory / name, content)
        disk.flush(directory)
        disk.publish(staged, self.path, step)

    def _prune(self, saved: int) -> None:
        if self._keep_last is None and self._keep_every is None:
            return
        whole = [step for step in disk.numbered(self.path) if self._is_whole(step)]
        kept = {saved, *whole[-(self._keep_last or 1) :]}
        if self._keep_every is not None:
            kept.update(step for step in whole if step % self._keep_every == 0)
        try:
            disk.finish_removals(self.path)
            for step in whole:
                if step not in kept:
                    disk.remove(self.path, step)
        except OSError as error:
            raise CheckpointError(
                f"step {saved} is saved, but an older step could not be removed: {error}"
            ) from error

    def _whole(self, step: int) -> Manifest:
        """The manifest of a step whose files are all there."""
        directory = self.path / str(step)
        record = manifest.read(directory)
        absent, resized = manifest.missing(directory, record.present)
        if absent:
            raise IncompleteCheckpointError(
                f"step {step} of {self.path} is not whole: {absent[0]}"
                f"{f' and {len(absent) - 1} files more' if absent[1:] else ''}"
            )
        if resized:
            raise CorruptCheckpointError(f"step {step} of {self.path} is damaged: {resized[0]}")
        return record

    def _describe(self, step: int) -> StepDescription:
        directory = self.path / str(step)
        try:
            record = manifest.read(directory)
            stored = tuple(manifest.read_item(directory, entry) for entry in record.entries)
        except CheckpointError as error:
            return StepDescription(step, (), str(error))
        try:
            self._whole(step)
        except CheckpointError as error:
            return StepDescription(step, stored, str(error))
        return StepDescription(step, stored)

    def _no_such(self, step: int) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(
            f"there is no step {step} in {self.path}; whole steps: {self.steps()}"
        )

    def _entry(
        self, step: int, record: Manifest, name: str, *, even_stripped: bool = False
    ) -> Entry:
        entry = record.entry(name)
        if entry is None:
            raise StructureMismatchError(
                f"step {step} of {self.path} has no item '{name}'; it holds {', '.join(record.names)}"
            )
        if entry.stripped and not even_stripped:
            raise IncompleteCheckpointError(
                f"step {step} of {self.path} was stripped of {name} and can no longer be resumed; it "
                f"still serves {', '.join(other.name for other in record.entries if not other.stripped)}"
            )
        return entry

    def _item(self, directory: Path, entry: Entry) -> StoredItem:
        try:
            return manifest.read_item(directory, entry)
        except CheckpointError as error:
            raise self._gone(directory) or error from None

    def _is_whole(self, step: int) -> bool:
        try:
            self._whole(step)
        except CheckpointError:
            return False
        return True

    def _choose(self, step: int | None) -> tuple[int, Manifest]:
        self._check()
        numbered = disk.numbered(self.path)
        if step is not None:
            step = operator.index(step)
            if step not in numbered:
                raise self._no_such(step)
            return step, manifest.read(self.path / str(step))
        for newest in reversed(numbered):
            try:
                return newest, self._whole(newest)
            except IncompleteCheckpointError as error:
                warnings.warn(f"passed over: {error}", stacklevel=3)
        raise CheckpointNotFoundError(f"there is no whole step in {self.path}")

    def _compare(
        self, step: int, record: Manifest, asked: dict[str, Any], *, whole: bool
    ) -> dict[str, StoredItem]:
        """The stored items, of which each has what was asked for and, where `whole` is, all are asked for."""
        names = [name for name in record.names if whole or name in asked]
        entries = [self._entry(step, record, name) for name in names]
        stored = [self._item(self.path / str(step), entry) for entry in entries]
        differing = differences(
            [node for item in stored for node in item.nodes],
            [node for name, item in asked.items() for node in nodes(item, name)],
        )
        if differing:
            lines = "\n".join(f"  {line}" for line in differing)
            others = ", ".join(record.names)
            raise StructureMismatchError(
                f"step {step} of {self.path} does not fit the "
                f"{'state' if whole else 'item'} you asked for:\n{lines}\n"
                f"{len(differing)} paths differ. The step holds {others}; to use one alone: "
                "restore_item(name, ...)"
            )
        return {item.name: item for item in stored}

    def _read(
        self, step: int, stored: StoredItem, abstract: Any, *, verify: bool, to_host: bool = False
    ) -> Any:
        by_path = {node.path: node for node in stored.arrays}
        asked = [(by_path[node.path], leaf) for node, leaf in leaves(abstract, stored.name)]
        if not asked:
            return abstract
        directory = self.path / str(step)
        spans = not to_host and any(items.spans_processes(leaf) for _, leaf in asked)
        self._refuse_altered(directory, stored, by_orbax=spans)
        settled: list[Any] = []
        wrong: list[Node] = []
        for group in _grouped([node for node, _ in asked]):
            try:
                if spans:
                    arrays = items.read_by_orbax(directory / stored.name, abstract, group)
                else:
                    nodes_of_group = [asked[position][0] for position in group]
                    arrays = items.read(directory / stored.name, nodes_of_group)
            except CorruptCheckpointError as error:
                wrong = self._wrong(directory, stored)
                raise self._gone(directory) or _corrupt(directory, wrong, str(error)) from error
            for position in group:
                node, like = asked[position]
                # Each array is let go before the next is placed: one state and one leaf, not two states.
                array = arrays.pop(0)
                with jax.set_mesh(None):
                    leaf = array if to_host else _settled(array, like)
                    del array
                    if verify and _fingerprint(node, leaf) != node.fingerprint:
                        wrong.append(node)
                settled.append(leaf)
                # JAX lets go of a host array that it has copied at the next collection, of any depth.
                gc.collect(0)
        if wrong:
            raise _corrupt(directory, wrong)
        return jax.tree.structure(abstract).unflatten(settled)

    def _refuse_altered(self, directory: Path, item: StoredItem, *, by_orbax: bool = False) -> None:
        """Raise unless the item is there, and the files that will be parsed are as they were written."""
        if item.files and not (directory / item.name).is_dir():
            raise self._gone(directory) or IncompleteCheckpointError(
                f"{directory} has lost its item {item.name}; copy it from a backup, or restore another step"
            )
        parsed = [file for file in item.files if by_orbax or Path(file.path).name == items.INDEX]
        altered = manifest.altered(directory, parsed)
        if altered:
            raise self._gone(directory) or _corrupt(directory, (), "\n".join(altered))

    def _gone(self, directory: Path) -> CheckpointNotFoundError | None:
        """The error to raise if a step could not be read because it is there no more."""
        if (directory / manifest.NAME).exists():
            return None
        return CheckpointNotFoundError(
            f"{directory} was removed while it was being read, as by a writer that keeps only its newest "
            f"steps; whole steps now: {self.steps()}"
        )

    def _wrong(self, directory: Path, item: StoredItem) -> list[Node]:
        """The arrays of an item that are not what was saved, each read by itself."""
        return [node for node, array in self._arrays(directory, item) if array is None]

    def _arrays(
        self, directory: Path, item: StoredItem
    ) -> Iterator[tuple[Node, np.ndarray | None]]:
        """Each array of an item, on the host; None for one that is not what was saved."""
        for group in _grouped(item.arrays):
            members = [item.arrays[position] for position in group]
            read = _read_each(directory / item.name, members)
            for node, array in zip(members, read, strict=True):
                intact = array is not None and _fingerprint(node, array) == node.fingerprint
                yield node, array if intact else None


def _grouped(nodes: Sequence[Node]) -> Iterator[list[int]]:
    """The positions of the nodes, in groups of so many bytes as a host can spare, or of one."""
    group: list[int] = []
    size = 0
    for position, node in enumerate(nodes):
        if group and size + node.bytes > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(position)
        size += node.bytes
    if group:
        yield group


def _read_each(item: Path, wanted: Sequence[Node]) -> list[np.ndarray | None]:
    """Some arrays; None for each that cannot be read, found by halving."""
    try:
        return [*items.read(item, wanted)]
    except CorruptCheckpointError:
        if len(wanted) == 1:
            return [None]
        half = len(wanted) // 2
        return _read_each(item, wanted[:half]) + _read_each(item, wanted[half:])


def _recorded(step: int, directory: Path, pending: Sequence[_Pending]) -> dict[str, bytes]:
    """The files that record the step, the manifest last."""
    stored = tuple(
        StoredItem(
            item.name,
            item.nodes,
            manifest.recorded(directory, item.name, frozenset()) if item.arrays else (),
        )
        for item in pending
    )
    names = frozenset(item.name for item in pending)
    return manifest.encode(step, stored, manifest.recorded(directory, None, names))


def _fingerprint(node: Node, leaf: Any) -> str:
    """The fingerprint of an array: on its devices, or on the host for a numpy array."""
    if isinstance(leaf, np.ndarray):
        sums = host_sums(leaf)
    else:
        totals = jax.device_get(_device_sums(jax.random.key_data(leaf) if is_key(leaf) else leaf))
        sums = tuple(int(total) for total in totals)
    return fingerprint(node.path, node.dtype, node.shape, sums)


def _settled(array: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A leaf that was read, placed as asked, in memory that a step can reuse."""
    if isinstance(array, np.ndarray):
        return from_host(array, like)
    copied = jax.block_until_ready(own_copy(array, like))
    array.delete()
    return copied


def _refuse_placement(item: Any, name: str) -> None:
    wrong: list[str] = []
    for node, like in leaves(item, name):
        sharding = getattr(like, "sharding", None)
        if jnp.dtype(raw(like).dtype) != jax.dtypes.canonicalize_dtype(raw(like).dtype):
            wrong.append(
                f"{node.path}  {node.told()} needs 64-bit types: set jax_enable_x64, or read it with "
                'restore_item(..., to="host")'
            )
        elif sharding is not None:
            try:
                sharding.shard_shape(node.shape)
            except ValueError as error:
                wrong.append(f"{node.path}  {node.told()} cannot be placed as asked: {error}")
    if wrong:
        raise PlacementError("\n  ".join(["nothing was read:", *wrong]))


def _corrupt(directory: Path, wrong: Sequence[Node], cause: str = "") -> CorruptCheckpointError:
    lines = [f"{directory} is damaged; what is stored is not what was saved:"]
    lines += [f"  {node.path}  {node.told()}" for node in wrong]
    lines += [cause] if cause else []
    lines.append("restore another step, or copy this one from a backup")
    return CorruptCheckpointError("\n".join(lines), tuple(node.path for node in wrong))
