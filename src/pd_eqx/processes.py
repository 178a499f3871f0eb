"""The processes of one run: who they are, what they agree on, and what only the first of them does.

A run over several hosts is one program in several processes, each of which must start every computation that the others
start, in the same order: one that saves while another goes on makes both wait for ever. What depends on a clock or a
signal is therefore agreed on before it is acted upon, and files are written by the first process while the others wait
for its word. With one process all of this is free.

A process that dies takes the others with it: their next computation fails within seconds, or JAX's coordination service
ends them when heartbeats have stayed away for `heartbeat_seconds`. Nothing is lost but the steps since the last
checkpoint.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

HEARTBEAT_SECONDS = 60


class PeerError(RuntimeError):
    """Another process of this run failed, and this one could not go on without it."""


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    timeout_seconds: int = 300,
) -> None:
    """Makes this process one of several. Before any computation.

    **Arguments:**

    - `coordinator`: `host:port` on which the first process listens; `processes`: how many there are; `process`: which
      one this is, from 0. Without them all they are found in the environment of a cluster's scheduler.
    - `heartbeat_seconds`: after so long without a sign of life a process counts as dead, and the others are ended.
    - `timeout_seconds`: how long to wait for all to join.

    **Errors:** `PeerError` where they did not come together.
    """
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=timeout_seconds,
            heartbeat_timeout_seconds=heartbeat_seconds,
            shutdown_timeout_seconds=heartbeat_seconds,
        )
    except (RuntimeError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PeerError(
            f"the processes of this run did not come together (coordinator {coordinator}, process {process} of "
            f"{processes}): {first}. Start all of them within {timeout_seconds} s, with one and the same coordinator"
        ) from None


def count() -> int:
    """How many processes there are."""
    return jax.process_count()


def is_first() -> bool:
    """Whether this is the process that writes files and talks to people."""
    return jax.process_index() == 0


def gathered(*numbers: int) -> np.ndarray:
    """What each process said: `[processes, len(numbers)]` of int32; a barrier, too.

    **Errors:** `PeerError` if a process is gone.
    """
    if count() == 1:
        return np.array([numbers], np.int32)
    from jax.experimental import multihost_utils

    try:
        return np.asarray(multihost_utils.process_allgather(np.array(numbers, np.int32)))
    except jax.errors.JaxRuntimeError as error:
        raise peer_error(error) from error


def by_first(work: Callable[[], None]) -> None:
    """Has the first process do something that the others wait for.

    **Errors:** what `work` raises, in the first process; `PeerError` in the others.
    """
    error: Exception | None = None
    if is_first():
        try:
            work()
        except Exception as raised:  # noqa: BLE001  it is raised again when the others know
            error = raised
    failed = bool(gathered(int(error is not None))[0, 0])
    if error is not None:
        raise error
    if failed:
        raise PeerError(
            "process 0 failed; what it says is the reason, and this process left with it"
        )


def from_first(tree: Any) -> Any:
    """The first process's numpy arrays, on every process; the others give arrays of the same shapes."""
    if count() == 1:
        return tree
    from jax.experimental import multihost_utils

    try:
        return multihost_utils.broadcast_one_to_all(tree)
    except jax.errors.JaxRuntimeError as error:
        raise peer_error(error) from error


def peer_error(error: Exception) -> PeerError:
    """What a failed computation means where several processes take part in each."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return PeerError(
        f"process {jax.process_index()} of {count()} lost contact with another one, which has probably died or was "
        f"stopped: {first[:200]}. Nothing since the last checkpoint is kept; start all processes again"
    )
