"""The golden fixture, and the account of golden arrays at the end of a session.

The account belongs to one process: under pytest-xdist each worker sees a part, so nothing is printed there and
`test_account.py` is skipped.
"""

from collections.abc import Iterator, Sequence

import jax
import pytest

from parity.golden import Golden, Ledger, Precision

LEDGER = pytest.StashKey[Ledger]()


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


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ledger = _ledger(config)
    if ledger.accounts:
        terminalreporter.section("golden arrays")
        for line in ledger.lines():
            terminalreporter.write_line(line)
