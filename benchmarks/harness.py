"""What the checkpoint benchmarks share: arms in processes of their own, memory from the kernel, plain tables.

An arm is a function of keyword arguments that returns numbers. Each runs in a fresh Python: a process that has
measured one thing has warm caches and a grown heap for the next.
"""

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

Arms = Mapping[str, Callable[..., dict[str, Any]]]
MIB = 1 << 20


def run_arm(script: str, arm: str, cores: int | None = None, **arguments: Any) -> dict[str, Any]:
    """The numbers of one arm, measured in a fresh process that has as many devices as `devices` says, or one.

    **Arguments:**

    - `cores`: how many of those at hand the process may use, by default all; Linux only. XLA has a flag for its threads,
      but its products and loops use them all the same.
    """
    pin = None
    if cores is not None:
        some = sorted(os.sched_getaffinity(0))[: max(1, cores)]
        pin = partial(os.sched_setaffinity, 0, some)
    devices = arguments.get("devices", 1)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        # Arenas keep what was freed and blur the high-water mark; a mapping of its own is given back at once.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
    }
    command = [sys.executable, script, "--arm", arm, "--with", json.dumps(arguments)]
    ended = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        preexec_fn=pin,
    )
    return json.loads(ended.stdout.splitlines()[-1])


def parse(doc: str | None, arms: Arms, add: Callable[[argparse.ArgumentParser], None]) -> Any:
    """The command's arguments; in a process that is an arm, measures, prints and ends."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON instead")
    parser.add_argument("--arm", choices=[*arms], help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="arguments", default="{}", help=argparse.SUPPRESS)
    add(parser)
    parsed = parser.parse_args()
    if parsed.arm is not None:
        print(json.dumps(arms[parsed.arm](**json.loads(parsed.arguments))))
        raise SystemExit
    return parsed


@contextmanager
def scratch() -> Generator[Path]:
    """A directory that goes at the end; `TMPDIR` says on which disk."""
    with tempfile.TemporaryDirectory(prefix="pd_eqx-benchmark-") as folder:
        yield Path(folder)


class Memory:
    """Resident memory above what the process had when this was made, in MiB. Linux only."""

    def __init__(self) -> None:
        gc.collect()
        self.base = _status("VmRSS")
        self.reset()

    def reset(self) -> None:
        """The high-water mark starts anew from here."""
        Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> float:
        """The highest since the last `reset`."""
        return _status("VmHWM") - self.base


def _status(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) / 1024


def bytes_read() -> int:
    """Bytes that this process has asked the kernel for."""
    found = re.search(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.M)
    assert found is not None
    return int(found[1])


def forget(folder: Path) -> None:
    """Drops the files below a folder from the page cache, so that the next read is cold."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the work returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as what is in them, numbers to the right."""
    told = [[_told(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *told, strict=True)]
    for line in (head, *told):
        cells = [f"{line[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("   ".join(cells), flush=True)


def _told(cell: Any) -> str:
    match cell:
        case None:
            return "-"
        case float():
            return f"{cell:.3f}" if cell < 10 else f"{cell:.0f}"
        case _:
            return str(cell)
