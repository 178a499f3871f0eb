"""The pages name commands, options, files and pictures that are there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from pd_eqx.cli.app import build

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What people do with a decomposition: each has a page with a picture.
TASKS = ("open", "harvest", "cluster", "interpret", "report", "export", "import-spd")
LARGEST = 150 * 1024


def _lines(text: str) -> Iterator[str]:
    """The commands of a page: indented lines, and what stands between backticks."""
    for found in re.findall(r"^ {4,}(pd-eqx .*)$|`(pd-eqx [^`]*)`", text, re.MULTILINE):
        yield "".join(found).partition("  #")[0]


def _unknown(text: str) -> list[str]:
    known = typer.main.get_group(build()).commands
    wrong: list[str] = []
    for line in _lines(text):
        name, *rest = shlex.split(line.replace("…", ""))[1:] or [""]
        if name.startswith("-") or name.isupper():
            continue
        if name not in known:
            wrong.append(f"{line}: no command {name}")
            continue
        options = {option for parameter in known[name].params for option in parameter.opts}
        asked = {word.partition("=")[0] for word in rest if word.startswith("--")} - {"--help"}
        wrong += [f"{line}: no option {option}" for option in sorted(asked - options)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_exists(page: Path) -> None:
    assert _unknown(page.read_text()) == []


def test_an_unknown_command_or_option_is_found() -> None:
    text = "    pd-eqx harvest RUN --batches 3 --first 2   # --no\n and `pd-eqx harves`, `pd-eqx cluster H --alpah 3`"
    assert _unknown(text) == [
        "pd-eqx harves: no command harves",
        "pd-eqx cluster H --alpah 3: no option --alpah",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    here = [link for link in links if "://" not in link]
    assert [link for link in here if not (page.parent / link).exists()] == []


def test_each_task_has_its_pictures_and_each_picture_its_page() -> None:
    shown = {
        (page.parent / link).resolve(): page.stem
        for page in PAGES
        for link in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    }
    assert set(TASKS) <= {*shown.values()}
    there = {path.resolve() for path in (ROOT / "docs").rglob("*.png")}
    assert there == set(shown)
    assert [path for path in there if path.stat().st_size > LARGEST] == []
