"""A signal is taken at any moment, and given back afterwards."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from pd_eqx.runs.preemption import NeverStop, SignalStop


def python(code: str, *signals: signal.Signals, wait_for: str = "ready\n") -> tuple[int, str, str]:
    """Status and output of a process that gets signals once it has printed a line."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == wait_for
        for number in signals:
            process.send_signal(number)
            time.sleep(0.2)
        stdout, stderr = process.communicate(timeout=30)
    return process.returncode, stdout, stderr


PREAMBLE = "import time; from pd_eqx.runs.preemption import SignalStop\n"
# Holds the interpreter lock at most for moments, but never runs another line of Python: as a compilation does.
BUSY = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10_000_000)\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_nothing_at_stake_the_process_leaves_at_once(number: signal.Signals) -> None:
    code = PREAMBLE + (
        "with SignalStop('go on with: x') as stop:\n"
        "    stop.note('step 7 is saved')\n"
        "    print('ready', flush=True)\n    " + BUSY + "    print('too late')\n"
    )
    started = time.monotonic()
    status, stdout, stderr = python(code, number)
    assert (status, stdout) == (75, "")
    assert number.name in stderr
    assert "step 7 is saved\ngo on with: x" in stderr
    assert time.monotonic() - started < 4.0


def test_while_something_is_at_stake_a_flag_is_raised() -> None:
    code = PREAMBLE + (
        "with SignalStop('') as stop:\n"
        "    with stop.holding():\n"
        "        print('ready', flush=True)\n"
        "        while not stop.requested: time.sleep(0.01)\n"
        "        print('saved')\n"
        "print('left')\n"
    )
    assert python(code, signal.SIGTERM)[:2] == (0, "saved\nleft\n")


def test_a_second_interrupt_leaves_at_once_even_so() -> None:
    code = PREAMBLE + (
        "with SignalStop('go on with: x') as stop:\n"
        "    with stop.holding():\n"
        "        print('ready', flush=True)\n        " + BUSY + "        print('too late')\n"
    )
    status, stdout, stderr = python(code, signal.SIGINT, signal.SIGINT)
    assert (status, stdout) == (130, "")
    assert "go on with: x" in stderr


def test_more_terminations_only_repeat_the_first() -> None:
    code = PREAMBLE + (
        "with SignalStop('') as stop, stop.holding():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1.0)\n"
        "    print(stop.requested)\n"
    )
    ended = python(code, signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    assert ended[:2] == (0, "True\n")


def test_a_thread_from_before_does_not_let_a_signal_through() -> None:
    code = (
        "import threading\nthreading.Thread(target=lambda: time.sleep(3), daemon=True).start()\n"
        "with SignalStop('') as stop, stop.holding():\n"
        "    print('ready', flush=True)\n"
        "    while not stop.requested: time.sleep(0.01)\n"
        "    print('saved')\n"
    )
    assert python(PREAMBLE + code, signal.SIGTERM)[:2] == (0, "saved\n")


def test_signals_are_given_back() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with SignalStop("") as stop:
        assert not stop.requested
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_inside_another_program_no_signal_is_taken() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = NeverStop()
    with stop.holding():
        assert not stop.requested
        assert signal.getsignal(signal.SIGINT) == before
