"""How many devices a command sees, and which process of how many it is.

JAX fixes its devices when it first looks at them, so their number is said before anything that could look is imported.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Generator
from typing import Annotated

import typer

_AGAIN = 75

Simulate = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Run on so many simulated CPU devices, whatever hardware there is; by default on all of the hardware. "
        "With several processes: so many in each.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="One process of several: where the first of them listens; or `cluster`, to find this and the next two in "
        "the environment of a scheduler such as Slurm.",
    ),
]
Processes = Annotated[int | None, typer.Option(min=1, help="How many processes there are.")]
Process = Annotated[int | None, typer.Option(min=0, help="Which of them this one is, from 0.")]
Heartbeat = Annotated[
    int,
    typer.Option(
        min=5, help="Seconds without a sign of life after which a process counts as dead."
    ),
]


def simulate_devices(count: int | None) -> None:
    """Makes jax see `count` CPU devices and nothing else; None leaves it as it is."""
    if count is None:
        return
    import re

    import jax

    # The older way to say so would contradict the newer one.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = re.sub(
        r"--xla_force_host_platform_device_count=\S+", "", flags
    ).strip()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


@contextlib.contextmanager
def joined(
    coordinator: str | None, processes: int | None, process: int | None, heartbeat: int
) -> Generator[None, None, None]:
    """While entered, this process is one of several, if it was told so.

    It leaves at once if it fails: whoever is tidy on the way out waits for the others, who wait for it.
    """
    if coordinator is None:
        if processes is not None or process is not None:
            sys.stderr.write("pd-eqx: --processes and --process need --coordinator HOST:PORT\n")
            raise SystemExit(2)
        yield
        return

    from pd_eqx.processes import PeerError, join

    try:
        if coordinator == "cluster":
            join(heartbeat_seconds=heartbeat)
        else:
            join(coordinator, processes, process, heartbeat_seconds=heartbeat)
        yield
    except PeerError as error:
        _leave(f"pd-eqx: {error}\n", _AGAIN)
    except SystemExit as left:
        _leave("", left.code if isinstance(left.code, int) else 1)
    except BaseException:  # noqa: BLE001  told in full, and the process ends here
        _leave(traceback.format_exc(), 1)


def _leave(message: str, status: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.write(message)
        sys.stderr.flush()
    os._exit(status)
