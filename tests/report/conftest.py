"""One browser for all tests of the page, and reports that it can open."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pd_eqx.report.model import Report
from pd_eqx.report.page import render
from report.browser import Page, skip_without, start
from report.reports import text_report, toy_report
from runs.conftest import runner, uninterrupted

__all__ = ["runner", "uninterrupted"]

Opener = Callable[[Report], Page]


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Writes a report and opens it."""
    skip_without()
    driver: Any = start()
    folder = tmp_path_factory.mktemp("reports")

    def opened(report: Report) -> Page:
        path = folder / f"report-{len(list(folder.iterdir()))}.html"
        path.write_text(render(report), encoding="utf-8")
        return Page(driver, path)

    yield opened
    driver.quit()


@pytest.fixture(scope="session")
def toy(opener: Opener) -> Page:
    """A toy's report."""
    return opener(toy_report())


@pytest.fixture(scope="session")
def text(opener: Opener) -> Page:
    """A language model's report, with all that a harvest adds."""
    return opener(text_report())
