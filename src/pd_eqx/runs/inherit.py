"""Fine-tune initialisation: a fresh process around the product of another run's checkpoint.

Of the parent only the decomposition is read: no file of its `training` is opened, so none of its optimizers and
adversaries has to be known, and a parent that was stripped of them will do. The fresh product is freed before the
parent's is read, so that two are never alive at once.
"""

import hashlib
from pathlib import Path

import equinox as eqx
import jax

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.donation import abstract_like
from pd_eqx.state import TrainState

_ITEM = "decomposition"


def init_from_parent(
    state: TrainState, checkpoints: str | Path, step: int | None = None
) -> TrainState:
    """A fresh state with the decomposition of a parent's checkpoint in place of its own (S33).

    **Arguments:**

    - `state`: fresh, at step 0 (see `init_state`). It says what is expected of the parent, leaf by leaf, and where each
      leaf is placed, whatever devices the parent was on. Its own decomposition is consumed.
    - `checkpoints`: the parent's store.
    - `step`: which of its steps; the latest by default.

    **Returns:** the parent's decomposition, bit for bit, with the fresh training item.

    **Errors:** `ValueError` for a state that has had updates; `CheckpointError`: `StructureMismatchError`, with each
    differing leaf, for another decomposition.
    """
    if int(state.training.step):
        raise ValueError(
            f"the state has had {int(state.training.step)} updates; a run starts from its parent's product at step 0, "
            "with a fresh state from `init_state`"
        )
    abstract = abstract_like(state.decomposition)
    for leaf in jax.tree.leaves(state.decomposition):
        leaf.delete()
    with CheckpointStore(checkpoints, read_only=True) as store:
        product = store.restore_item(_ITEM, abstract, step)
    return eqx.tree_at(lambda state: state.decomposition, state, product)


def product_fingerprint(checkpoints: str | Path, step: int) -> str:
    """A SHA-256 over the fingerprints of all leaves of a stored decomposition; reads no data.

    **Errors:** `CheckpointNotFoundError` where there is no such step.
    """
    with CheckpointStore(checkpoints, read_only=True) as store:
        product = store.describe_item(_ITEM, step)
    prints = [f"{node.path} {node.fingerprint}" for node in product.arrays]
    return hashlib.sha256("\n".join(prints).encode()).hexdigest()
