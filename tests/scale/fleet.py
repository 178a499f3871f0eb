"""One run in one or several processes of their own, which are all gone when a test is over."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

COMMAND = [sys.executable, "-c", "from pd_eqx.cli import main; main()"]
HEARTBEAT = 20
LONG_ENOUGH = 300.0  # seconds; a busy machine compiles slowly


def environment(cache: Path) -> dict[str, str]:
    """For processes that share a compilation cache, and choose their devices themselves."""
    return {
        **{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XDG_CACHE_HOME": str(cache / "home"),
        "COLUMNS": "200",
    }


class Fleet:
    """The processes of one run, started together.

    - `running`: them, the first first.
    """

    def __init__(
        self,
        config: Path,
        run_dir: Path,
        cache: Path,
        processes: int,
        devices: int,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.run_dir = run_dir
        self._logs = [
            run_dir.with_name(f"{run_dir.name}-{time.monotonic_ns()}-{i}.log")
            for i in range(processes)
        ]
        base = ["train", str(config), "--run-dir", str(run_dir), "--simulate", str(devices)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.running: list[subprocess.Popen[bytes]] = []
        for index, log in enumerate(self._logs):
            joined = [
                *("--coordinator", f"127.0.0.1:{port}", "--processes", str(processes)),
                *("--process", str(index), "--heartbeat", str(HEARTBEAT)),
            ]
            with log.open("wb") as out:
                started = subprocess.Popen(
                    [*command, *base, *(joined if processes > 1 else [])],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment(cache),
                )
            self.running.append(started)

    def wait(self, seconds: float = LONG_ENOUGH) -> list[int]:
        """Exit statuses of all processes, which end within so many seconds."""
        until = time.monotonic() + seconds
        return [process.wait(max(0.1, until - time.monotonic())) for process in self.running]

    def wait_for_step(self, step: int) -> None:
        """Returns when a checkpoint of this step or a later one is there."""
        until = time.monotonic() + LONG_ENOUGH
        while max(self.saved(), default=-1) < step:
            assert all(process.poll() is None for process in self.running), self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)

    def saved(self) -> list[int]:
        """The steps by name."""
        places = (self.run_dir / "checkpoints").glob("[0-9]*")
        return sorted(int(place.name) for place in places if place.name.isdecimal())

    def said(self, process: int | None = None) -> str:
        """What one process has written, or all of them."""
        logs: Sequence[Path] = self._logs if process is None else [self._logs[process]]
        return "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')}" for log in logs)

    def end(self) -> None:
        """Kills what is left."""
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def fleet(
    config: Path, run_dir: Path, cache: Path, *, processes: int = 1, devices: int
) -> Generator[Fleet, None, None]:
    """Processes of one run, none of which outlives the block."""
    started = Fleet(config, run_dir, cache, processes, devices)
    try:
        yield started
    finally:
        started.end()
