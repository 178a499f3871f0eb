"""Curves of a run's records, few and short enough for a page: thinned in steps, and the first few of each kind."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pd_eqx.evals.panels import PANELS
from pd_eqx.report.model import Panel, Series

MAX_POINTS = 400
MAX_SERIES = 8


def panels(records: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """One panel for each kind of metric that the records of `metrics.jsonl` hold, and none for others.

    A curve keeps its first and last point and, evenly spread, at most `MAX_POINTS`; a panel keeps its total and the
    first `MAX_SERIES` others.
    """
    made: list[Panel] = []
    for title, prefix, unit in PANELS:
        names = dict.fromkeys(
            name for record in records for name in record if name.startswith(prefix)
        )
        ordered = sorted(names, key=lambda name: name.split("/")[-2:][0] != "total")
        ordered.sort(key=lambda name: "total" not in name.removeprefix(prefix).split("/"))
        kept = ordered[: MAX_SERIES + 1]
        series = tuple(
            one for name in kept if (one := _series(name.removeprefix(prefix), name, records))
        )
        if series:
            made.append(Panel(title, unit, series, left_out=len(ordered) - len(kept)))
    return tuple(made)


def _series(name: str, key: str, records: Sequence[Mapping[str, Any]]) -> Series | None:
    points = [
        (record["step"], value)
        for record in records
        if isinstance(value := record.get(key), int | float)
    ]
    if not points:
        return None
    count = min(len(points), MAX_POINTS)
    kept = [
        points[i] for i in np.unique(np.linspace(0, len(points) - 1, count).round().astype(int))
    ]
    steps, values = zip(*kept, strict=True)
    return Series(name, steps, values)
