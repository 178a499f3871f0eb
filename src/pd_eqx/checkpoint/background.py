"""A save that runs beside the training loop, and cannot fail or vanish in silence.

One thread at a time does the writing, on a copy of the state that nobody else holds. What it raises is
kept and raised again by the next call on the store. At the end of the program Python shuts down the
pools of threads that orbax works with before it waits for ordinary threads, so a write still running
would fail then: the wait is therefore registered to happen earlier.
"""

import threading
import weakref
from collections.abc import Callable


class Background:
    """At most one running piece of work, and the error of the last one."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        this = weakref.ref(self)
        # Python offers no public way to run before `concurrent.futures` is shut down.
        threading._register_atexit(_finish, this)  # pyright: ignore[reportAttributeAccessIssue]

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; call only after `wait`."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  it is raised again by the next call
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint-save")
        self._thread.start()

    def check(self) -> None:
        """Raise what finished work has raised, once."""
        if self._thread is None or not self._thread.is_alive():
            error, self._error = self._error, None
            if error is not None:
                raise error

    def wait(self) -> None:
        """Wait for the work, and raise what it raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()


def _finish(this: weakref.ref[Background]) -> None:
    background = this()
    if background is not None:
        background.wait()
