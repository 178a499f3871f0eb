"""Signals: a run that is told to stop saves what is complete, says how to go on, and exits with 75.

A trainer that looks at a flag at the ends of its steps misses what comes while it compiles, and Python's own
handlers wait for the interpreter, which a compilation keeps away for minutes. So the signals are blocked in every
thread and one thread waits for them; handlers are there too, for threads that somebody made before. While something is at stake (`holding`) it raises a flag that the loop looks
at between dispatches; at all other times everything of value is on disk already and the process leaves at once. A
second SIGINT always leaves at once.

Exit statuses: 75 (try again) after a first SIGTERM or SIGINT, 130 after a second SIGINT.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

INTERRUPTED = 75
KILLED = 130

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_END = signal.SIGUSR1  # wakes the waiting thread when nobody is to be waited for any more


@runtime_checkable
class Stop(Protocol):
    """How a run learns that it should end early."""

    @property
    def requested(self) -> bool:
        """Whether to save and return at the next chance."""
        ...

    def holding(self) -> contextlib.AbstractContextManager[None]:
        """While entered, a signal only sets `requested`."""
        ...

    def note(self, advice: str) -> None:
        """What to tell a person if the process leaves from here."""
        ...


class NeverStop:
    """For a run inside another program, whose signals are not ours to take."""

    @property
    def requested(self) -> bool:
        """See `Stop.requested`: never."""
        return False

    @contextlib.contextmanager
    def holding(self) -> Generator[None, None, None]:
        """See `Stop.holding`: nothing to hold."""
        yield

    def note(self, advice: str) -> None:
        """See `Stop.note`: nobody to tell."""


class SignalStop:
    """Takes SIGTERM and SIGINT for as long as it is entered; of the main thread, before it starts others.

    Threads inherit the blocked signals, so this is the first thing that a command does.

        with SignalStop("go on with: ...") as stop:
            outcome = train(config, run_dir, stop=stop)

    **Arguments:**

    - `again`: how to go on, told to a person when the process leaves from here.
    """

    def __init__(self, again: str) -> None:
        self._again = again
        self._lock = threading.RLock()  # a handler may interrupt its holder
        self._requested = False
        self._holds = 0
        self._interrupts = 0
        self._advice = "nothing had been done yet"
        self._waiter = threading.Thread(target=self._wait, name="signals", daemon=True)
        self._blocked_before: set[int] = set()
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "SignalStop":
        """Blocks the signals and starts to wait for them."""
        self._blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS | {_END})
        for number in _SIGNALS:
            self._handlers_before[number] = signal.signal(number, self._handle)
        self._waiter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the signals back to whoever had them."""
        signal.pthread_kill(self._waiter.ident or 0, _END)
        self._waiter.join()
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_before)

    @property
    def requested(self) -> bool:
        """See `Stop.requested`."""
        return self._requested

    @contextlib.contextmanager
    def holding(self) -> Generator[None, None, None]:
        """See `Stop.holding`."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def note(self, advice: str) -> None:
        """See `Stop.note`."""
        self._advice = advice

    def _wait(self) -> None:
        while True:
            number = signal.sigwait(_SIGNALS | {_END})
            if number == _END:
                return
            self._received(number)

    def _handle(self, number: int, frame: object) -> None:
        del frame
        self._received(number)

    def _received(self, number: int) -> None:
        with self._lock:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                _leave(KILLED, f"interrupted twice, left at once; {self._again}")
            if not self._holds:
                name = signal.Signals(number).name
                _leave(INTERRUPTED, f"{name}: {self._advice}\n{self._again}")
            self._requested = True


def _leave(status: int, message: str) -> None:
    """Ends the process from any thread, whatever the others are in the middle of."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar had hidden it
        sys.stderr.write(f"{cursor}\n{message}\n")
        sys.stderr.flush()
    os._exit(status)
