"""One item's arrays, to orbax's files and back.

Orbax's plain `Checkpointer` is used, not its `CheckpointManager`: the manager chooses the latest step,
prunes and refuses by directory names alone, before a step is known to be whole, and answers a save of
an existing step with False. What it would add is what this package exists to do otherwise. The files
are the same, and a manager reads them.

Items are stored under their native names (the tree itself is given to orbax), as zarr3 in OCDBT,
uncompressed: compression halves the speed and saves 8 % of float32. All calls run under no mesh,
because orbax fails under an active one.

Orbax raises whatever its parsers raise. Here each of them is told as a `CheckpointError`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from pd_eqx.checkpoint.errors import CorruptCheckpointError
from pd_eqx.checkpoint.structure import raw


def write(step: Path, trees: Mapping[str, Any]) -> None:
    """Write each tree of arrays as the item of its name, into the new directory `step`."""
    if not trees:
        step.mkdir()
        return
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for name in trees:
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)
        handlers.add(name, ocp.args.PyTreeSave, handler)
    saves = {name: ocp.args.PyTreeSave(tree) for name, tree in trees.items()}
    composite = ocp.CompositeCheckpointHandler(handler_registry=handlers)
    with jax.set_mesh(None), ocp.Checkpointer(composite) as writer:
        writer.save(step, ocp.args.Composite(**saves))


def read(item: Path, abstract: Any) -> list[Any]:
    """The raw leaves of an item, in the order of `jax.tree.leaves(abstract)`.

    A leaf that has a sharding comes as a jax array in that sharding; one that has none comes as a
    numpy array. PRNG keys come as their raw data.

    **Errors:** `CorruptCheckpointError` for whatever orbax raises.
    """
    leaves, treedef = jax.tree.flatten(abstract)
    template: list[Any] = []
    how: list[Any] = []
    for leaf in leaves:
        stored = raw(leaf)
        sharding = getattr(leaf, "sharding", None)
        template.append(jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=sharding))
        how.append(
            ocp.RestoreArgs(restore_type=np.ndarray)
            if sharding is None
            else ocp.ArrayRestoreArgs(
                sharding=sharding, global_shape=stored.shape, dtype=stored.dtype
            )
        )
    arguments = ocp.args.PyTreeRestore(
        item=treedef.unflatten(template),
        restore_args=treedef.unflatten(how),
    )
    return jax.tree.leaves(_call(item, lambda reader: reader.restore(item, args=arguments)))


def read_named(item: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Some arrays of an item by their stored names, as numpy arrays, without its abstract tree.

    **Errors:** `CorruptCheckpointError` for whatever orbax raises.
    """
    wanted = frozenset(names)

    def work(reader: ocp.Checkpointer) -> list[np.ndarray]:
        metadata: Any = reader.metadata(item).item_metadata
        found, treedef = jax.tree.flatten(metadata.tree)
        template = [leaf if leaf.name in wanted else ocp.PLACEHOLDER for leaf in found]
        how = [ocp.RestoreArgs(restore_type=np.ndarray)] * len(found)
        arguments = ocp.args.PyTreeRestore(
            item=treedef.unflatten(template), restore_args=treedef.unflatten(how)
        )
        restored = jax.tree.leaves(reader.restore(item, args=arguments))
        by_name = {leaf.name: array for leaf, array in zip(found, restored, strict=True)}
        return [by_name[name] for name in names]

    return _call(item, work)


def _call(item: Path, work: Callable[[ocp.Checkpointer], Any]) -> Any:
    try:
        with (
            jax.set_mesh(None),
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader,
        ):
            return work(reader)
    except Exception as error:  # orbax and tensorstore raise bare ones
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptCheckpointError(f"{item} cannot be read: {first[:300]}") from error
