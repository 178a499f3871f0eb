"""The command line, with a signal to itself when a place is reached; a script, run by `small.Runner`."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    # What is imported below makes threads, which the command itself would only make after it has done this.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    if "BLOW" in os.environ:
        strike(**json.loads(os.environ["BLOW"]))
    from pd_eqx.cli import main as command_line

    command_line()


def strike(place: str, count: int, signals: list[int], delay: float) -> None:
    """Arranges for `signals` when `place` is reached for the `count`-th time."""
    reached = 0

    def blow() -> None:
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    def before() -> None:
        nonlocal reached
        reached += 1
        if reached != count:
            return
        if not delay and signal.SIGKILL in signals:
            blow()
            return
        timer = threading.Timer(delay, blow)
        timer.start()
        if len(signals) > 1:
            timer.join()  # or a quick run ends well between the first and the second

    owner, name = PLACES[place]()
    reach(owner, name, before)


def reach(owner: Any, name: str, before: Callable[[], None]) -> None:
    original = getattr(owner, name)

    def reached(*args: Any, **kwargs: Any) -> Any:
        before()
        return original(*args, **kwargs)

    setattr(owner, name, reached)


def assembly_compile() -> tuple[Any, str]:
    from pd_eqx.runs.assembly import Assembly

    return Assembly, "compile"


def target_training() -> tuple[Any, str]:
    from pd_eqx.runs.config.toys import TMSTarget

    return TMSTarget, "build"


def warm_up() -> tuple[Any, str]:
    from pd_eqx.runs import loop

    return loop, "warm_up"


def save() -> tuple[Any, str]:
    from pd_eqx.checkpoint import CheckpointStore

    return CheckpointStore, "save"


def dispatch() -> tuple[Any, str]:
    from pd_eqx.cli.console import ConsoleWatcher

    return ConsoleWatcher, "advance"


def evaluation() -> tuple[Any, str]:
    from pd_eqx.evals.evaluation import Evaluation

    return Evaluation, "__call__"


def finish() -> tuple[Any, str]:
    from pd_eqx.runs import loop

    return loop, "finish"


def fsync() -> tuple[Any, str]:
    return os, "fsync"


PLACES: dict[str, Callable[[], tuple[Any, str]]] = {
    "compile": assembly_compile,
    "target": target_training,
    "warm_up": warm_up,
    "save": save,
    "dispatch": dispatch,
    "evaluation": evaluation,
    "finish": finish,
    "fsync": fsync,
}

if __name__ == "__main__":
    main()
