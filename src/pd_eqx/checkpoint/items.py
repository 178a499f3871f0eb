"""One item's arrays, to orbax's files and back.

Orbax's plain `Checkpointer` is used, not its `CheckpointManager`: the manager chooses the latest step,
prunes and refuses by directory names alone, before a step is known to be whole, and answers a save of
an existing step with False. What it would add is what this package exists to do otherwise. The files
are the same, and a manager reads them.

Items are stored under their native names (the tree itself is given to orbax), as zarr3 in OCDBT,
uncompressed: compression halves the speed and saves 8 % of float32. All calls run under no mesh,
because orbax fails under an active one.

Leaves are cut into chunks of 16 MiB, because a chunk is held twice while it is read: 512 MiB in leaves
of 64 MiB took 625 MiB to read as one chunk each, and 544 MiB so.

Arrays of this host are read by tensorstore, as orbax would, but under the names and sizes that the manifest tells: of
orbax's own metadata, which is a few percent of a small product, nothing is read. Orbax reads what spans processes,
and what others wrote.

Both raise whatever their parsers raise. Here each of them is told as a `CheckpointError`.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from pd_eqx.checkpoint.errors import CorruptCheckpointError
from pd_eqx.checkpoint.structure import Node, raw

_CHUNK_BYTES = 1 << 24

# What tensorstore parses of an item, beside the files that hold data.
INDEX = "manifest.ocdbt"
_INDEX_BYTES = 100_000_000  # of it are kept while arrays are read


def write(step: Path, trees: Mapping[str, Any]) -> None:
    """Write each tree of arrays as the item of its name, into the new directory `step`."""
    if not trees:
        step.mkdir()
        return
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for name in trees:
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)
        handlers.add(name, ocp.args.PyTreeSave, handler)
    saves = {
        name: ocp.args.PyTreeSave(
            tree, jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), tree)
        )
        for name, tree in trees.items()
    }
    composite = ocp.CompositeCheckpointHandler(handler_registry=handlers)
    with jax.set_mesh(None), ocp.Checkpointer(composite) as writer:
        writer.save(step, ocp.args.Composite(**saves))


def read(item: Path, nodes: Sequence[Node]) -> list[np.ndarray]:
    """Arrays of an item that `write` wrote, whole and on the host. PRNG keys come as their raw data.

    **Errors:** `CorruptCheckpointError` for whatever tensorstore raises, and where it holds another shape or dtype.
    """
    context = ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": _INDEX_BYTES}})
    index = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{item}/"},
        "cache_pool": "cache_pool#ocdbt",
    }
    with _told(item):
        opening = [
            ts.open(
                {
                    "driver": "zarr3",
                    "kvstore": {**index, "path": f"{node.name}/"},
                    "recheck_cached_data": False,
                    "recheck_cached_metadata": False,
                    "fill_missing_data_reads": False,
                },
                read=True,
                open=True,
                context=context,
            )
            for node in nodes
        ]
        stores = [opened.result() for opened in opening]
        for node, store in zip(nodes, stores, strict=True):
            _refuse_other(node, store)
        reading = [store.read() for store in stores]
        return [array.result() for array in reading]


def _refuse_other(node: Node, store: ts.TensorStore) -> None:
    """Nothing of an absurd size is read, nor anything cast."""
    dtype, shape = store.dtype.numpy_dtype, tuple(store.shape)
    as_told = node.dtype.startswith("key<") or (dtype.name, shape) == (node.dtype, node.shape)
    if not as_told or math.prod(shape) * dtype.itemsize != node.bytes:
        raise ValueError(f"{node.path} is {dtype.name}{list(shape)} and not {node.told()}")


def read_by_orbax(item: Path, abstract: Any, which: Sequence[int]) -> list[Any]:
    """Some raw leaves of an item: those at the positions `which` of `jax.tree.leaves(abstract)`.

    They come as numpy arrays, which orbax reads with less memory and time than jax arrays. Only a leaf
    whose sharding spans devices of other processes comes as a jax array in that sharding, so that each
    process reads no more than its part. PRNG keys come as their raw data.

    **Errors:** `CorruptCheckpointError` for whatever orbax raises.
    """
    leaves, treedef = jax.tree.flatten(abstract)
    template: list[Any] = [ocp.PLACEHOLDER] * len(leaves)
    how: list[Any] = [ocp.RestoreArgs(restore_type=np.ndarray)] * len(leaves)
    for position in which:
        leaf = leaves[position]
        stored = raw(leaf)
        template[position] = stored
        if spans_processes(leaf):
            how[position] = ocp.ArrayRestoreArgs(
                sharding=leaf.sharding, global_shape=stored.shape, dtype=stored.dtype
            )
    arguments = ocp.args.PyTreeRestore(
        item=treedef.unflatten(template), restore_args=treedef.unflatten(how)
    )
    restored = jax.tree.leaves(_call(item, lambda reader: reader.restore(item, args=arguments)))
    return [restored[position] for position in which]


def spans_processes(leaf: Any) -> bool:
    """Whether a leaf was asked for on devices of other processes too."""
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable


def plain_tree(item: Path) -> tuple[list[str], Any]:
    """The stored names of an item's arrays, and a tree to `read` them by, from its metadata alone.

    **Errors:** `CorruptCheckpointError` for whatever orbax raises.
    """

    def plain(reader: ocp.Checkpointer) -> tuple[list[str], Any]:
        metadata: Any = reader.metadata(item).item_metadata
        names = [leaf.name for leaf in jax.tree.leaves(metadata.tree)]
        return names, jax.tree.map(raw, metadata.tree)

    return _call(item, plain)


def _call(item: Path, work: Callable[[ocp.Checkpointer], Any]) -> Any:
    with (
        _told(item),
        jax.set_mesh(None),
        _without_idle_warning(),
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader,
    ):
        return work(reader)


@contextlib.contextmanager
def _told(item: Path) -> Generator[None]:
    try:
        yield
    except Exception as error:  # orbax and tensorstore raise bare ones
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptCheckpointError(f"{item} cannot be read: {first[:300]}") from error


@contextlib.contextmanager
def _without_idle_warning() -> Generator[None]:
    """Orbax warns of a metadata file that it writes once for a step, not for each item, and does not need."""

    def needed(record: logging.LogRecord) -> bool:
        return "Metadata file does not exist" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(needed)
    try:
        yield
    finally:
        logger.removeFilter(needed)
