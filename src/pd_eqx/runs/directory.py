"""The run directory: what lies where, and how a file gets there whole.

    config.yaml        what the run is, every default written out
    run.json           what is known about its processes: how often it was resumed
    inputs.json        what the run reads that lies elsewhere: published weights, a corpus
    target/            the frozen network, if the run trained it
    checkpoints/N/     the state after exactly N updates
    metrics.jsonl      one record a logged step
    figures/           pictures
    summary.json       the result; its presence means that the run is finished
    report.html        all of it for a reader

A kill at any instant leaves each of these whole or absent: every file is written under another name, made durable
and then renamed. A directory without one whole checkpoint has nothing to lose, and counts as fresh.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

_TEMPORARY = ".writing-"


class RunDirectoryError(ValueError):
    """A directory that a run cannot use."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The places in one run directory."""

    root: Path

    @property
    def config(self) -> Path:
        """What the run is."""
        return self.root / "config.yaml"

    @property
    def record(self) -> Path:
        """What is known about its processes."""
        return self.root / "run.json"

    @property
    def inputs(self) -> Path:
        """What the run reads that lies elsewhere."""
        return self.root / "inputs.json"

    @property
    def target(self) -> Path:
        """A store of the target."""
        return self.root / "target"

    @property
    def checkpoints(self) -> Path:
        """A store of the states."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One record a logged step."""
        return self.root / "metrics.jsonl"

    @property
    def figures(self) -> Path:
        """Pictures."""
        return self.root / "figures"

    @property
    def summary(self) -> Path:
        """The result."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """All of it for a reader."""
        return self.root / "report.html"

    def prepare(self) -> None:
        """Makes the directory, or takes it as it is.

        **Errors:** `RunDirectoryError` for a place that cannot be written, or that holds something else.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            foreign = self._foreign()
            probe = self.root / f"{_TEMPORARY}probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunDirectoryError(f"cannot use {self.root}: {error.strerror}") from None
        if foreign and not self.config.exists():
            raise RunDirectoryError(
                f"{self.root} is not empty and not a run (there is no config.yaml, but there is {foreign}); "
                "choose another --run-dir"
            )

    def require(self) -> None:
        """**Errors:** `RunDirectoryError` where there is no run."""
        if not self.config.is_file():
            raise RunDirectoryError(f"{self.root} is not a run: there is no config.yaml in it")

    @contextlib.contextmanager
    def locked(self) -> Generator[None, None, None]:
        """Keeps every other process from training here; the lock falls with the process that holds it.

        **Errors:** `RunDirectoryError` if another process holds it.
        """
        with (self.root / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirectoryError(
                    f"another process is training in {self.root}; wait for it, or stop it"
                ) from None
            yield

    def _foreign(self) -> str | None:
        ours = {"config.yaml", "run.json", "target", "checkpoints", "metrics.jsonl", "figures"}
        ours |= {"summary.json", "inputs.json", ".lock"}
        names = sorted(entry.name for entry in self.root.iterdir())
        others = (name for name in names if name not in ours and not name.startswith(_TEMPORARY))
        return next(others, None)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replaces a file by new content, durably: a reader sees the old or the new, whatever is killed."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    data = content.encode() if isinstance(content, str) else content
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file; see `write_atomically`."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds keys and values.

    **Errors:** `RunDirectoryError` for a file that does not.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} holds no keys and values")
    return value


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
