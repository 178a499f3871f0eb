"""What a run shows: lines that are seldom enough to read, and numbers in units that people use."""

import io

import pytest
from rich.console import Console

from pd_eqx.cli.console import ConsoleWatcher, clock_time, readable_bytes
from pd_eqx.runs.loop import Progress


def shown(*, terminal: bool, seconds_between: float) -> list[str]:
    """The lines of a run of ten dispatches."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    now = 0.0
    with ConsoleWatcher(console, "small", clock=lambda: now) as watcher:
        for step in range(1, 11):
            watcher.advance(Progress(step, 10, rate=2.0, losses={"loss/total": 0.125}))
            now += seconds_between
    return stream.getvalue().splitlines()


def test_plain_lines_come_every_five_seconds_and_at_the_end() -> None:
    lines = shown(terminal=False, seconds_between=2.0)
    assert [line.split()[1] for line in lines] == ["2/10", "5/10", "8/10", "10/10"]
    assert lines[0] == "step 2/10  2.0 steps/s  00:00:04 left  total 1.25e-01"
    assert lines[-1] == "step 10/10  2.0 steps/s  00:00:00 left  total 1.25e-01"


def test_a_terminal_gets_a_bar_with_the_same_numbers() -> None:
    # The last thing written is what shows the cursor again.
    last, cursor = shown(terminal=True, seconds_between=0.1)[-2:]
    assert cursor == "\x1b[?25h"
    assert "small" in last
    assert "10/10" in last
    assert "total 1.25e-01" in last


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "00:00:00"), (73.2, "00:01:13"), (360_000.0, "100:00:00")]
)
def test_times_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (14 * 1024, "14 KiB"), (3 << 30, "3 GiB"), (5 << 40, "5.0 TiB")],
)
def test_bytes_come_in_a_unit_that_fits(count: int, text: str) -> None:
    assert readable_bytes(count) == text
