"""What a page shows of a harvest: of everything that a tally holds, the few best for each component."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from pd_eqx.harvest.counts import PairCounts
from pd_eqx.harvest.samples import Table
from pd_eqx.harvest.settings import IMPORTANCE_PARTS
from pd_eqx.harvest.store import Harvest
from pd_eqx.harvest.tally import Tally
from pd_eqx.report.model import Harvested, Label, Scored, Windows

# For each component: windows of a kind, tokens of a kind, and companions.
WINDOWS = 8
TOKENS = 8
COMPANIONS = 8


def harvested(harvest: Harvest, where: str, labels: Mapping[int, Label] | None = None) -> Harvested:
    """The part of a harvest that a page shows.

    **Arguments:**

    - `where`: in words, where it is from.
    - `labels`: by the place of a component among all.
    """
    tally = harvest.tally
    count = tally.fired.size
    batches = sum(end - begin for begin, end in tally.batches)
    positions = max(tally.positions, 1)
    features = harvest.source.kind == "features"
    return Harvested(
        facts={
            "harvest": where,
            "harvested": f"{batches} batches, {tally.positions} positions",
        },
        threshold=tally.settings.threshold,
        positions=tally.positions,
        density=tally.fired / positions,
        mean=tally.importance_sum / IMPORTANCE_PARTS / positions,
        histogram=tally.importance_histogram / positions,
        top=_windows(tally.top, count),
        uniform=_windows(tally.sample, count),
        responds=_telling(tally, tally.responds, tally.seen),
        promotes=None if features else _telling(tally, tally.promotes, tally.predicted),
        neighbours=_companions(tally),
        score_name="correlation",
        labels=dict(labels or {}),
    )


def _windows(table: Table, count: int) -> Windows:
    """The first windows of each component; a table holds them in their order."""
    component = table["component"]
    rank = np.arange(component.size) - np.searchsorted(component, component, side="left")
    kept = rank < WINDOWS
    place = (component[kept], rank[kept])
    if "inputs" in table:
        shown = table["inputs"][kept].astype(np.float32)
        inputs = np.zeros((count, WINDOWS, shown.shape[1]), np.float32)
        importance = np.full((count, WINDOWS), np.nan, np.float32)
        inputs[place], importance[place] = shown, table["importance"][kept]
        return Windows(inputs, importance, None)
    width = table["tokens"].shape[1]
    length = table["length"][kept]
    beyond = np.arange(width) >= length[:, None]
    tokens = np.full((count, WINDOWS, width), -1, np.int32)
    importance = np.full((count, WINDOWS, width), np.nan, np.float32)
    peak = np.full((count, WINDOWS), -1, np.int32)
    tokens[place] = np.where(beyond, -1, table["tokens"][kept])
    importance[place] = np.where(beyond, 0.0, table["importances"][kept])
    peak[place] = (table["position"] - table["start"])[kept]
    return Windows(tokens, importance, peak)


def _telling(tally: Tally, pairs: PairCounts, alone: PairCounts) -> Scored:
    """For each component the tokens that tell most of it, with their pointwise mutual information in bits.

    Most telling is what adds most to the mutual information of "it fires" and the token: how often, times how much more
    often than by chance. By the second alone, whatever occurred once would come first.
    """
    of_token = alone.values[np.searchsorted(alone.first, pairs.second)].astype(float)
    expected = tally.fired[pairs.first] * of_token / max(tally.positions, 1)
    bits = np.log2(pairs.values / expected)
    more = bits > 0
    return _first(
        pairs.first[more],
        pairs.second[more],
        bits[more],
        (pairs.values * bits)[more],
        tally,
        TOKENS,
    )


def _companions(tally: Tally) -> Scored:
    """For each component those whose firing correlates most with its own (the phi coefficient)."""
    pairs, total = tally.coactive, float(tally.positions)
    fired = tally.fired.astype(float)
    a, b = fired[pairs.first], fired[pairs.second]
    spread = np.sqrt(a * b * (total - a) * (total - b))
    covered = pairs.values * total - a * b
    phi = np.divide(covered, spread, out=np.zeros_like(spread), where=spread > 0)
    more = phi > 0
    first, second, phi = pairs.first[more], pairs.second[more], phi[more]
    both = np.concatenate([first, second]), np.concatenate([second, first])
    score = np.concatenate([phi, phi])
    return _first(*both, score, score, tally, COMPANIONS)


def _first(
    component: Int[ndarray, " n"],
    item: Int[ndarray, " n"],
    score: Float[ndarray, " n"],
    weight: Float[ndarray, " n"],
    tally: Tally,
    most: int,
) -> Scored:
    """For each component the `most` items of the largest weight, in that order."""
    order = np.lexsort((item, -weight, component))
    component, item, score = component[order], item[order], score[order]
    rank = np.arange(component.size) - np.searchsorted(component, component, side="left")
    kept = rank < most
    items = np.full((tally.fired.size, most), -1, np.int32)
    scores = np.zeros((tally.fired.size, most), np.float32)
    items[component[kept], rank[kept]] = item[kept]
    scores[component[kept], rank[kept]] = score[kept]
    return Scored(items, scores)
