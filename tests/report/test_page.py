"""The file that a report is: it stands alone, and text in it is text."""

import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

from pd_eqx.report import page
from report.reports import text_report, toy_report


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def read(html: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = _Reader()
    reader.feed(html)
    return reader.tags


def test_the_file_asks_for_nothing() -> None:
    html = page.render(toy_report())
    for tag, attributes in read(html):
        assert "src" not in attributes, tag
        link: Any = attributes.get("href") or "#"
        assert link.startswith(("#", "data:")), tag
    outside = set(re.findall(r"https?://[^\s\"'<>]+", html))
    assert outside <= {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert "@import" not in html
    assert not re.search(r"\burl\(", html)


def test_text_from_a_run_is_never_markup() -> None:
    tags = [tag for tag, _ in read(page.render(text_report()))]
    assert "b" not in tags  # a token and a label hold one
    assert tags.count("script") == 1 + 2 + 1  # the head, a part for each site, the page's own


def test_every_asset_is_used() -> None:
    folder = resources.files("pd_eqx.report") / "assets"
    html = page.render(toy_report())
    for asset in folder.iterdir():
        if asset.name.endswith((".js", ".css")):
            assert asset.read_text(encoding="utf-8") in html, asset.name
