"""A headless Chromium that opens reports from disk, and what it says about them."""

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "PD_EQX_TEST_BROWSER"
_Found = TypeVar("_Found")


def missing() -> str | None:
    """Why no browser can be started here, or None."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser at hand ({', '.join(BROWSERS)}); on Debian: apt-get install chromium chromium-driver"
    if not shutil.which("chromedriver"):
        return "no chromedriver at hand; on Debian: apt-get install chromium-driver"
    try:
        import selenium  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError:
        return "selenium is not installed: pip install 'pd_eqx[test]'"
    return None


def skip_without() -> None:
    """Skips the test where there is no browser; fails it where the environment says that there must be one."""
    reason = missing()
    if reason is None:
        return
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but there is {reason}")
    pytest.skip(reason)


def start() -> Any:
    """A driver of a browser without a window, that looks nothing up."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(found for name in BROWSERS if (found := shutil.which(name)))
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
    ):
        options.add_argument(argument)
    options.add_argument("--disable-dev-shm-usage")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


@dataclasses.dataclass(frozen=True)
class Page:
    """One report in the browser."""

    driver: Any
    path: Path

    def go(self, address: str = "#/") -> "Page":
        """Opens the report afresh at an address."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.path.as_uri()}{address}")
        self.wait(lambda: self.run("return document.querySelector('main').children.length > 0"))
        return self

    def look(self, width: int = 1280, height: int = 800, scheme: str = "light") -> "Page":
        """Sets the size of the screen and the colours that its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        """The first element that a CSS selector matches, once there is one."""
        return self.wait(lambda: next(iter(self.all(selector)), None))

    def all(self, selector: str) -> list[Any]:
        """All elements that a CSS selector matches."""
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """The text of the first match."""
        return self.find(selector).text

    def wait(self, until: Callable[[], _Found], seconds: float = 20.0) -> _Found:
        """What `until` gives, once that is true; an element that the page has just replaced is not yet it."""
        from selenium.common.exceptions import StaleElementReferenceException

        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if found := until():
                    return found
            assert time.monotonic() < end, f"waited {seconds} s at {self.driver.current_url}"
            time.sleep(0.02)

    def complaints(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
