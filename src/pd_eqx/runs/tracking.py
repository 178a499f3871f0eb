"""What a run says about itself as it goes: one record a logged step, and a line or a bar for a person.

A record is written once and in order. After a kill, records of steps that the restored state has not seen are cut,
and so is a last line that was torn; the run then writes them again, with the same numbers. So that none can be
missing either, the file is made durable before a checkpoint of the same step is.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pd_eqx.runs.directory import write_atomically

Record = Mapping[str, float | int]


@runtime_checkable
class Tracker(Protocol):
    """Somewhere that records go to, besides `metrics.jsonl`."""

    def log(self, record: Record) -> None:
        """Takes one record: `step`, `seconds` and the metrics."""
        ...


class MetricsFile:
    """Appends to `metrics.jsonl`; steps strictly increase.

    **Arguments:**

    - `after`: the step that the run goes on from. Later records are cut, atomically.
    """

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        kept = [record for record in read_metrics(path) if record["step"] <= after]
        whole = "".join(_line(record) for record in kept)
        if not path.exists() or path.read_text(encoding="utf-8") != whole:
            write_atomically(path, whole)
        self.last: dict[str, Any] | None = kept[-1] if kept else None
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> "MetricsFile":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Makes the records durable and closes the file."""
        self.sync()
        self._file.close()

    def log(self, record: Record) -> None:
        """See `Tracker.log`.

        **Errors:** `ValueError` for a step that is not after the last one, or a number that is not finite.
        """
        if self.last is not None and record["step"] <= self.last["step"]:
            raise ValueError(
                f"{self.path}: step {record['step']} comes after {self.last['step']}; steps must increase"
            )
        infinite = [name for name, value in record.items() if not math.isfinite(value)]
        if infinite:
            raise ValueError(f"{self.path}: step {record['step']} has {infinite[0]} not finite")
        self._file.write(_line(record))
        self._file.flush()
        self.last = dict(record)

    def sync(self) -> None:
        """Makes every record so far durable."""
        self._file.flush()
        os.fsync(self._file.fileno())


class NoMetrics:
    """In place of a `MetricsFile`, in a process that writes none."""

    last: dict[str, Any] | None = None

    def __enter__(self) -> "NoMetrics":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def log(self, record: Record) -> None:
        """See `Tracker.log`: nobody takes it."""

    def sync(self) -> None:
        """See `MetricsFile.sync`: nothing to make durable."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a `metrics.jsonl`, in order; a torn last line is left out.

    **Errors:** `ValueError` for a broken line before the last, naming it.
    """
    if not path.exists():
        return []
    *lines, torn = path.read_bytes().split(b"\n")
    del torn  # nothing, in a file that ends as it should
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not a record; the file was edited") from None
    return records


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
