"""Trained toy targets, kept on disk under everything that decides their bits.

Two runs with the same seed and the same target train the same network, so the second may read what the first has
trained. A file that was read for the wrong settings would be a silent error, so its name is a hash of the
settings, the key, the code that trains, and the versions and the platform that it runs on: whatever changes
one of them trains anew. A file that was damaged would be another, so it starts with a hash of its own content, and one that
does not match is as if it were absent.

Losing the cache loses time alone. A folder that cannot be written is warned of and never stops a run.
"""

import dataclasses
import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from pd_eqx.targets.training import Progress, TargetT, Training, abstract_target, train_target

# The rooms and modules that a toy's bits come from.
_SOURCES = ("targets", "data", "optimizers.py", "schedule.py")
_DIGEST = hashlib.sha256().digest_size


def default_folder() -> Path:
    """`pd_eqx/targets` in the user's cache: `$XDG_CACHE_HOME`, or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pd_eqx" / "targets"


@dataclasses.dataclass(frozen=True)
class TargetCache:
    """A folder of trained targets. Any number of processes may share it."""

    folder: Path

    def path(self, key: PRNGKeyArray, training: Training[Any]) -> Path:
        """Where the target of these settings and this key is kept, if it is."""
        return self.folder / f"{identity(key, training)}.target"

    def load(self, key: PRNGKeyArray, training: Training[TargetT]) -> TargetT | None:
        """The target, bit for bit as it was saved; None if it is not there, or was damaged."""
        try:
            content = self.path(key, training).read_bytes()
        except OSError:
            return None
        digest, payload = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        with np.load(io.BytesIO(payload), allow_pickle=False) as file:
            leaves = [file[str(index)] for index in range(len(file.files))]
        wanted, structure = jax.tree.flatten(abstract_target(training))
        fits = len(leaves) == len(wanted) and all(
            (leaf.shape, leaf.dtype) == (want.shape, want.dtype)
            for leaf, want in zip(leaves, wanted, strict=True)
        )
        return jax.tree.unflatten(structure, map(jax.numpy.asarray, leaves)) if fits else None

    def save(self, key: PRNGKeyArray, training: Training[TargetT], target: TargetT) -> None:
        """Keeps a target. A crash at any moment leaves the old file, or none, under its name.

        **Errors:** `OSError` if the folder cannot be written.
        """
        buffer = io.BytesIO()
        leaves = jax.device_get(jax.tree.leaves(target))
        np.savez(buffer, **{str(index): leaf for index, leaf in enumerate(leaves)})
        payload = buffer.getvalue()
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".saving-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path(key, training))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def cached_target(
    cache: TargetCache | None,
    key: PRNGKeyArray,
    training: Training[TargetT],
    watch: Callable[[Progress], None] = lambda progress: None,
) -> TargetT:
    """A trained and checked target: read from the cache, or trained and then kept there.

    **Arguments:**

    - `cache`: None to train whatever is kept.
    - the others, and the errors, are those of `train_target`.
    """
    if cache is None:
        return train_target(key, training, watch)
    target = cache.load(key, training)
    if target is None:
        target = train_target(key, training, watch)
        try:
            cache.save(key, training, target)
        except OSError as error:
            warnings.warn(
                f"the trained {training.name} could not be kept for other runs in {cache.folder}: "
                f"{error.strerror}. This run goes on; set target.cache to false to stop trying",
                stacklevel=2,
            )
    return target


def identity(key: PRNGKeyArray, training: Training[Any]) -> str:
    """A name for everything that decides the bits of a trained target, 32 hexadecimal digits."""
    device = jax.devices()[0]
    parts = [
        repr(training),
        str(jax.random.key_impl(key)),
        np.asarray(jax.random.key_data(key)).tobytes().hex(),
        jax.__version__,
        metadata.version("jaxlib"),
        device.platform,
        device.device_kind,
        str(jax.numpy.result_type(float)),
        _source_digest(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _source_digest() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for source in _SOURCES:
        place = package / source
        for path in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()
