"""The golden fixture, and the account of golden arrays at the end of a session.

The account belongs to one process: under pytest-xdist all parity tests go to one worker, which hands its
account's lines on to be printed. The process that prints them collects nothing and so never sees a conftest of
this folder: that is why this is a plugin, which the conftest above loads.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest

from parity.golden import Golden, Ledger, Precision

LEDGER = pytest.StashKey[Ledger]()
LINES = pytest.StashKey[list[str]]()


def _ledger(config: pytest.Config) -> Ledger:
    return config.stash.setdefault(LEDGER, Ledger())


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return _ledger(pytestconfig)


@pytest.fixture(params=["x64", "float32"])
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    """Switches x64 for this test alone."""
    with jax.enable_x64(request.param == "x64"):
        yield request.param


@pytest.fixture
def golden(request: pytest.FixtureRequest, precision: Precision, ledger: Ledger) -> Golden:
    """The golden file that the test's module names."""
    left_out = getattr(request.module, "LEFT_OUT", {})
    return ledger.open(request.module.GOLDEN, left_out, precision)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "parity":
            _ledger(item.config).whole = False


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None and _ledger(session.config).accounts:
        output["golden"] = _ledger(session.config).lines()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(LINES, []).extend(
        getattr(node, "workeroutput", {}).get("golden", [])
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ledger = _ledger(config)
    lines = ledger.lines() if ledger.accounts else config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("golden arrays")
        for line in lines:
            terminalreporter.write_line(line)
