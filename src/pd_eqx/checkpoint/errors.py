"""Every way in which a checkpoint can disappoint, as one family of errors.

Whoever catches `CheckpointError` has caught all that a store raises about what is on disk or what it
was asked for. Each error is a sentence that names the leaf or the step and ends in what to do.
"""


class CheckpointError(Exception):
    """The base of all errors of `pd_eqx.checkpoint`."""


class StructureMismatchError(CheckpointError):
    """The stored tree is not the one asked for; lists every path that differs, before any data is read."""


class CorruptCheckpointError(CheckpointError):
    """Stored bytes are not the bytes that were saved; `leaves` are the paths of those that it hit."""

    def __init__(self, message: str, leaves: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.leaves = leaves


class IncompleteCheckpointError(CheckpointError):
    """A directory is there but is no whole step: an item, its record or its commit is missing."""


class CheckpointNotFoundError(CheckpointError):
    """No such step, or no step at all; also what a reader gets whose step was pruned under it."""


class CheckpointExistsError(CheckpointError):
    """The step is already on disk; nothing is overwritten."""


class UnsavableStateError(CheckpointError):
    """The state holds leaves that cannot be stored faithfully; lists each, before anything is written."""


class SaveFailedError(CheckpointError):
    """A save did not reach the disk, now or in the background; the previous steps are untouched."""


class ReadOnlyError(CheckpointError):
    """A store opened with `read_only=True` was asked to write."""


class PlacementError(CheckpointError):
    """A leaf cannot be placed as asked, on these devices or in this process."""
