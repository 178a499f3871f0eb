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

Orbax raises whatever its parsers raise. Here each of them is told as a `CheckpointError`.
"""

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from pd_eqx.checkpoint.errors import CorruptCheckpointError
from pd_eqx.checkpoint.structure import raw

_CHUNK_BYTES = 1 << 24


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


def read(item: Path, abstract: Any, which: Sequence[int]) -> list[Any]:
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
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable:
            how[position] = ocp.ArrayRestoreArgs(
                sharding=sharding, global_shape=stored.shape, dtype=stored.dtype
            )
    arguments = ocp.args.PyTreeRestore(
        item=treedef.unflatten(template), restore_args=treedef.unflatten(how)
    )
    restored = jax.tree.leaves(_call(item, lambda reader: reader.restore(item, args=arguments)))
    return [restored[position] for position in which]


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
    try:
        with (
            jax.set_mesh(None),
            _without_idle_warning(),
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader,
        ):
            return work(reader)
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
