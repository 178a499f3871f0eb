"""A report as one HTML file: a template, a style sheet and a few scripts of this package, and the data as JSON.

The file asks for nothing else. Its content policy refuses every connection, so that a page which began to ask would be
blank where it did, and a test would see it.
"""

from importlib import resources
from typing import Any

from pd_eqx.report.model import Report
from pd_eqx.report.packing import head, part, script_safe

_STYLES = ("style.css",)
# In the order in which each needs the one before.
_SCRIPTS = (
    "data.js",
    "dom.js",
    "charts.js",
    "heat.js",
    "vectors.js",
    "geometry.js",
    "windows.js",
    "table.js",
    "overview.js",
    "sites.js",
    "component.js",
    "main.js",
)


def render(report: Report) -> str:
    """The whole file. Needs jinja2, of the `cli` extra."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_asset("page.html.j2"))
    parts = (part(report, index) for index in range(len(report.sites)))
    return template.render(
        title=f"{report.run.name} · step {report.run.step}",
        styles=[_safe(_asset(name)) for name in _STYLES],
        scripts=[_safe(_asset(name)) for name in _SCRIPTS],
        head=_safe(script_safe(head(report))),
        parts=[_safe(script_safe(each)) for each in parts],
    )


def _asset(name: str) -> str:
    folder = resources.files("pd_eqx.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")


def _safe(text: str) -> Any:
    import markupsafe

    return markupsafe.Markup(text)  # our own files, and JSON that `script_safe` made
