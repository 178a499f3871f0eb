"""A report as JSON that a browser reads fast: what every view needs at once, and a part for each site read when opened.

Arrays are little-endian bytes in base64, with a letter for how they are to be read: `f` float32, `h` float16, `i`
int32, `b` one byte, for numbers in [0, 1] in steps of 1/255. JSON has no other numbers than finite ones; what is not
is written as null.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from pd_eqx.report.model import Harvested, Heat, Matrix, Report, Scored, SiteReport, Windows

FORMAT = 1
# Up to so many entries a site's vectors are all written; beyond, the largest few of each.
ALL_ENTRIES = 1_500_000
LARGEST = 24
# The importance from which a feature alone counts as answered.
MATTERS = 0.5
# How many features or tokens a few words name.
WORDS = 3
# Up to so many entries a site's weight is written too.
WEIGHT_ENTRIES = 16_384

Json = dict[str, Any]


def head(report: Report) -> Json:
    """What the overview, the list of sites and the table need."""
    names = [site.name for site in report.sites]
    counts = [site.count for site in report.sites]
    harvest = report.harvest
    norms = np.concatenate([_norms(site) for site in report.sites])
    labels = harvest.labels if harvest else {}
    return {
        "format": FORMAT,
        "run": {
            "name": report.run.name,
            "step": report.run.step,
            "steps": report.run.steps,
            "seconds": report.run.seconds,
            "finished": report.run.finished,
            "distance": report.run.distance,
            "config": report.run.config,
            "facts": dict(report.run.facts),
        },
        "reads": report.reads,
        "numbers": finite(report.numbers),
        "panels": [
            {
                "title": panel.title,
                "unit": panel.unit,
                "leftOut": panel.left_out,
                "series": [
                    {"name": s.name, "steps": list(s.steps), "values": finite(list(s.values))}
                    for s in panel.series
                ],
            }
            for panel in report.panels
        ],
        "sites": [_site(site) for site in report.sites],
        "names": names,
        "counts": counts,
        "density": packed(report.density, "f"),
        "mean": packed(report.mean, "f"),
        "norm": packed(norms, "f"),
        "alive": packed(report.alive.astype(np.uint8) * 255, "b"),
        "above": report.above,
        "aliveRule": report.alive_rule,
        "measuredOn": report.measured_on,
        "labels": {
            str(place): [label.text, finite(label.score), label.author]
            for place, label in labels.items()
        },
        "gists": {str(place): gist for place, gist in gists(report).items()},
        "vocabulary": _words(report),
        "harvest": dict(harvest.facts) if harvest else None,
        "scoreName": harvest.score_name if harvest else "",
    }


def gists(report: Report) -> dict[int, str]:
    """What each component seems to answer to, in a few words: features that alone make it matter, or its tokens."""
    said: dict[int, str] = {}
    start = 0
    for site in report.sites:
        if site.response is not None:
            for c, importances in enumerate(site.response.T):
                features = np.flatnonzero(importances > MATTERS)
                if features.size:
                    strongest = features[np.argsort(-importances[features], kind="stable")]
                    said[start + c] = _listed([f"feature {f}" for f in strongest])
        start += site.count
    responds = report.harvest.responds if report.harvest else None
    if responds is not None and report.reads == "tokens":
        for place, tokens in enumerate(responds.items.tolist()):
            words = [_quoted(report.vocabulary.get(t), t) for t in tokens[:WORDS] if t >= 0]
            if words:
                said[place] = ", ".join(words)
    return said


def _quoted(word: str | None, token: int) -> str:
    """A token's text, its spaces and line breaks with it; its number where it has none."""
    return f"token {token}" if word is None else "“" + word.replace("\n", "⏎") + "”"


def _words(report: Report) -> dict[str, str]:
    """The words of the tokens that some page shows."""
    harvest = report.harvest
    if harvest is None or report.reads != "tokens":
        return {}
    shown = [windows.tokens for windows in (harvest.top, harvest.uniform) if windows]
    shown += [scored.items for scored in (harvest.responds, harvest.promotes) if scored]
    ids = np.unique(np.concatenate([tokens.reshape(-1) for tokens in shown])) if shown else []
    found = ((int(token), report.vocabulary.get(int(token))) for token in ids)
    return {str(token): word for token, word in found if word is not None}


def _listed(words: Sequence[str]) -> str:
    more = len(words) - WORDS
    return ", ".join(words[:WORDS]) + (f" and {more} more" if more > 0 else "")


def part(report: Report, index: int) -> Json:
    """What the pages of one site's components need."""
    site = report.sites[index]
    start = sum(earlier.count for earlier in report.sites[:index])
    here = slice(start, start + site.count)
    return {
        "V": _vectors(site.V.T, _balance(site)),
        "U": _vectors(site.U, 1.0 / _balance(site)),
        "weight": packed(site.weight, "f") if site.weight.size <= WEIGHT_ENTRIES else None,
        "response": packed(site.response.T, "b") if site.response is not None else None,
        **(_harvested(report.harvest, here) if report.harvest else {}),
    }


def packed(array: ndarray, how: str) -> Json:
    """An array as its shape and bytes. How `b`: floats in [0, 1] are rounded to 1/255; bytes are taken as they are."""
    if how == "b" and array.dtype != np.uint8:
        array = np.round(np.clip(np.nan_to_num(array), 0.0, 1.0) * 255.0).astype(np.uint8)
    dtype = {"f": "<f4", "h": "<f2", "i": "<i4", "b": "u1"}[how]
    data = np.ascontiguousarray(array, dtype=dtype).tobytes()
    return {"as": how, "shape": list(array.shape), "data": base64.b64encode(data).decode()}


def finite(value: Any) -> Any:
    """The same, with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): finite(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def script_safe(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it ends the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair is in no HTML file


def _site(site: SiteReport) -> Json:
    d_in, d_out = site.weight.shape
    return {
        "name": site.name,
        "dIn": d_in,
        "dOut": d_out,
        "count": site.count,
        "alive": site.alive,
        "l0": finite(site.l0),
        "unexplained": finite(site.unexplained),
        "features": site.features,
        "facts": dict(site.facts),
        "histogram": finite(site.histogram.tolist()) if site.histogram is not None else None,
        "heats": [_heat(heat) for heat in site.heats],
    }


def _heat(heat: Heat) -> Json:
    return {
        "title": heat.title,
        "rows": list(heat.rows),
        "columns": heat.columns.tolist(),
        "hidden": heat.hidden,
        "faint": heat.faint,
        "values": packed(heat.values, "b"),
    }


def _norms(site: SiteReport) -> ndarray:
    return np.linalg.norm(site.V, axis=0) * np.linalg.norm(site.U, axis=1)


def _balance(site: SiteReport) -> ndarray:
    """What V is scaled by, and U divided by, so that a component's two vectors are equally long."""
    lengths = np.linalg.norm(site.V, axis=0), np.linalg.norm(site.U, axis=1)
    whole = (lengths[0] > 0) & (lengths[1] > 0)
    safe = [np.where(whole, length, 1.0) for length in lengths]
    return np.sqrt(safe[1] / safe[0])


def _vectors(vectors: Matrix, scale: ndarray) -> Json:
    """Vectors `[C, d]`, scaled; whole, or the largest entries of each with the share of its square that they hold."""
    scaled = vectors * scale[:, None]
    if scaled.size <= ALL_ENTRIES:
        return {"size": scaled.shape[1], "all": packed(scaled, "h")}
    kept = min(LARGEST, scaled.shape[1])
    where = np.argpartition(-np.abs(scaled), kept - 1, axis=1)[:, :kept]
    values = np.take_along_axis(scaled, where, axis=1)
    order = np.argsort(-np.abs(values), axis=1)
    where, values = np.take_along_axis(where, order, 1), np.take_along_axis(values, order, 1)
    square = np.sum(scaled**2, axis=1)
    share = np.sum(values**2, axis=1) / np.where(square > 0, square, 1.0)
    return {
        "size": scaled.shape[1],
        "where": packed(where, "i"),
        "largest": packed(values, "h"),
        "share": packed(share, "f"),
    }


def _harvested(harvest: Harvested, here: slice) -> Json:
    return {
        "histogram": packed(harvest.histogram[here], "f")
        if harvest.histogram is not None
        else None,
        "top": _windows(harvest.top, here),
        "uniform": _windows(harvest.uniform, here),
        "responds": _scored(harvest.responds, here),
        "promotes": _scored(harvest.promotes, here),
        "neighbours": _scored(harvest.neighbours, here),
    }


def _windows(windows: Windows | None, here: slice) -> Json | None:
    if windows is None:
        return None
    tokens, importance = windows.tokens[here], windows.importance[here]
    there = ~np.isnan(importance.reshape(*importance.shape[:2], -1)[:, :, 0])
    as_numbers = "i" if np.issubdtype(tokens.dtype, np.integer) else "h"
    return {
        "count": packed(there.sum(axis=1), "i"),
        "tokens": packed(tokens, as_numbers),
        "importance": packed(importance, "b"),
        "peak": packed(windows.peak[here], "i") if windows.peak is not None else None,
    }


def _scored(scored: Scored | None, here: slice) -> Json | None:
    if scored is None:
        return None
    return {"items": packed(scored.items[here], "i"), "scores": packed(scored.scores[here], "f")}
