"""Checkpoints of Equinox modules that give back what was saved, bit for bit, or say why not."""

from pd_eqx.checkpoint.describe import StepDescription, StoreDescription, Stray
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
    UnsavableStateError,
)
from pd_eqx.checkpoint.manifest import StoredFile, StoredItem
from pd_eqx.checkpoint.store import CheckpointStore
from pd_eqx.checkpoint.structure import Node
from pd_eqx.donation import abstract_like

__all__ = [
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "CheckpointStore",
    "CorruptCheckpointError",
    "IncompleteCheckpointError",
    "Node",
    "PlacementError",
    "ReadOnlyError",
    "SaveFailedError",
    "StepDescription",
    "StoreDescription",
    "StoredFile",
    "StoredItem",
    "Stray",
    "StructureMismatchError",
    "UnsavableStateError",
    "abstract_like",
]
