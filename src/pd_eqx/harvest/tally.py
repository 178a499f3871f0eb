"""A tally: all that a harvest knows, of any number of batches, and the sum of two.

Everything in it is an integer, an extreme or a draw by hash, so the sum is exact: the tally of batches 0 to 9 has the
bits of the tally of 0 to 4 plus that of 5 to 9. Its size depends on the components, the tokens of the vocabulary and the
settings, and not on how much text has been read.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int64

from pd_eqx.harvest import samples
from pd_eqx.harvest.counts import PairCounts, count_pairs
from pd_eqx.harvest.measure import Measured
from pd_eqx.harvest.samples import Table
from pd_eqx.harvest.settings import (
    IMPORTANCE_PARTS,
    HarvestSettings,
    activation_edges,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
    """What is known of every component after some batches; components are numbered over all sites.

    - `settings`: what is collected.
    - `batches`: which batches, as disjoint ascending ranges `(first, end)`.
    - `positions`: how many positions they have.
    - `fired`: at how many of them each component fired. `importance_sum`: in parts of `IMPORTANCE_PARTS`.
    - `importance_histogram`: over all positions; `activation_histogram`: over those at which the component fired.
    - `responds`: how often (component, token) fired together; on features, at how many positions the component fired
      while the feature was not zero.
    - `promotes`: the probability that the target gave to (component, next token) where the component fired.
    - `seen`, `predicted`: the same of each token alone, over all positions; the second of each pair is 0.
    - `coactive`: how often two components `first < second` fired together.
    - `top`, `sample`: windows of each component.
    - `patterns`, `patterns_firing`: drawn positions, and which components fired there.
    - `background`, `background_firing`: drawn windows, and which components fired anywhere in them.
    """

    settings: HarvestSettings
    batches: tuple[tuple[int, int], ...]
    positions: int
    fired: Int64[np.ndarray, " C"]
    importance_sum: Int64[np.ndarray, " C"]
    importance_histogram: Int64[np.ndarray, "C bins"]
    activation_histogram: Int64[np.ndarray, "C octaves"]
    responds: PairCounts
    promotes: PairCounts
    seen: PairCounts
    predicted: PairCounts
    coactive: PairCounts
    top: Table
    sample: Table
    patterns: Table
    patterns_firing: Table
    background: Table
    background_firing: Table

    def __add__(self, other: "Tally") -> "Tally":
        """The tally of the batches of both.

        **Errors:** `ValueError` where they were collected differently, or have a batch in common.
        """
        if self.settings != other.settings:
            ours, theirs = (dataclasses.asdict(tally.settings) for tally in (self, other))
            key = next(key for key in ours if ours[key] != theirs[key])
            raise ValueError(
                f"two harvests differ in {key}: {ours[key]} and {theirs[key]}; they cannot be merged"
            )
        patterns = samples.lowest(
            samples.joined(self.patterns, other.patterns),
            samples.joined(self.patterns_firing, other.patterns_firing),
            self.settings.patterns,
        )
        background = samples.lowest(
            samples.joined(self.background, other.background),
            samples.joined(self.background_firing, other.background_firing),
            self.settings.background,
        )
        return Tally(
            self.settings,
            joined_ranges(self.batches, other.batches),
            self.positions + other.positions,
            self.fired + other.fired,
            self.importance_sum + other.importance_sum,
            self.importance_histogram + other.importance_histogram,
            self.activation_histogram + other.activation_histogram,
            self.responds + other.responds,
            self.promotes + other.promotes,
            self.seen + other.seen,
            self.predicted + other.predicted,
            self.coactive + other.coactive,
            samples.best(samples.joined(self.top, other.top), self.settings.top),
            samples.drawn(samples.joined(self.sample, other.sample), self.settings.sample),
            *patterns,
            *background,
        )


def joined_ranges(
    first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """Disjoint ascending ranges that hold both.

    **Errors:** `ValueError` where they overlap.
    """
    ranges: list[tuple[int, int]] = []
    for begin, end in sorted((*first, *second)):
        if ranges and begin < ranges[-1][1]:
            raise ValueError(f"batch {begin} is in both harvests; it would be counted twice")
        if ranges and begin == ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return tuple(ranges)


def tally_rows(
    measured: Measured, inputs: np.ndarray, settings: HarvestSettings, batch: int, first_row: int
) -> Tally:
    """The tally of some rows of one batch, as if they were all of it.

    **Arguments:**

    - `measured`: of these rows, on the host.
    - `inputs`: these rows: tokens `[rows, length]`, or features `[rows, n_features]`.
    - `first_row`: the place of the first of them in the batch.
    """
    return _Rows(measured, inputs, settings, batch, first_row).tally()


class _Rows:
    """Rows of one batch as sequences: `[rows, length, …]`, features being sequences of one position."""

    def __init__(
        self,
        measured: Measured,
        inputs: np.ndarray,
        settings: HarvestSettings,
        batch: int,
        first_row: int,
    ) -> None:
        self.settings, self.batch, self.first_row = settings, batch, first_row
        self.importance_sum = np.asarray(measured.importance_sum)
        self.at_least = np.asarray(measured.at_least)
        self.predicted = self.probability = None
        if measured.predicted is not None and measured.probability is not None:
            self.predicted = np.asarray(measured.predicted)
            self.probability = np.asarray(measured.probability)
        self.is_text = bool(np.issubdtype(inputs.dtype, np.integer))
        self.inputs = inputs if self.is_text else inputs[:, None, :]
        shape = (*self.inputs.shape[:2], measured.importances.shape[-1])
        self.rows, self.length, self.count = shape
        self.importances = np.asarray(measured.importances).reshape(shape)
        self.activations = np.asarray(measured.activations).reshape(shape)
        # Where each firing is: its row, its position and its component.
        firing = self.importances > settings.threshold
        self.row, self.position, self.component = np.nonzero(firing)
        self.flat = self.row * self.length + self.position

    def tally(self) -> Tally:
        predicted = self._predicted()
        patterns, background = self._patterns(), self._background()
        return Tally(
            self.settings,
            # The other rows of the batch belong to the range that its first row has opened.
            () if self.first_row else ((self.batch, self.batch + 1),),
            self.rows * self.length,
            np.bincount(self.component, minlength=self.count).astype(np.int64),
            np.rint(self.importance_sum.astype(np.float64) * IMPORTANCE_PARTS).astype(np.int64),
            self._importance_histogram(),
            self._activation_histogram(),
            self._responds(),
            self._together(predicted),
            self._seen(),
            count_pairs(predicted.second, np.zeros_like(predicted.second), predicted.values),
            self._coactive(),
            samples.best(self._windows(self._best()), self.settings.top),
            samples.drawn(self._windows(self._drawn()), self.settings.sample),
            *patterns,
            *background,
        )

    def _importance_histogram(self) -> np.ndarray:
        at_least = self.at_least.astype(np.int64)
        above = np.concatenate([at_least[1:], np.zeros_like(at_least[:1])])
        return (at_least - above).T.copy()

    def _activation_histogram(self) -> np.ndarray:
        edges = activation_edges()
        values = self.activations[self.row, self.position, self.component]
        bins = len(edges) + 1
        place = self.component * bins + np.searchsorted(edges, values, side="right")
        counted = np.bincount(place, minlength=self.count * bins)
        return counted.astype(np.int64).reshape(self.count, bins)

    def _symbols(self) -> tuple[np.ndarray, np.ndarray]:
        """Each position with what is there: its token, or the features that are not zero."""
        if self.is_text:
            return np.arange(self.rows * self.length), self.inputs.reshape(-1).astype(np.int64)
        positions, features = np.nonzero(self.inputs.reshape(self.rows * self.length, -1))
        return positions, features

    def _seen(self) -> PairCounts:
        _, symbols = self._symbols()
        return count_pairs(symbols, np.zeros_like(symbols))

    def _responds(self) -> PairCounts:
        if self.is_text:
            tokens = self.inputs[self.row, self.position].astype(np.int64)
            return count_pairs(self.component, tokens)
        positions, symbols = self._symbols()
        return self._together(PairCounts((positions << 32) | symbols, np.ones_like(symbols)))

    def _predicted(self) -> PairCounts:
        """The probability of the likeliest next tokens, by position."""
        predicted, probability = self.predicted, self.probability
        if predicted is None or probability is None:
            nothing = np.zeros(0, np.int64)
            return PairCounts(nothing, nothing)
        each = np.repeat(np.arange(self.rows * self.length), predicted.shape[-1])
        return count_pairs(
            each, predicted.reshape(-1).astype(np.int64), probability.reshape(-1).astype(np.int64)
        )

    def _together(self, by_position: PairCounts) -> PairCounts:
        """Summed over the positions at which each component fired."""
        from scipy import sparse

        if not by_position.keys.size:
            return by_position
        width = int(by_position.second.max()) + 1
        shape = (self.rows * self.length, width)
        right = sparse.csr_array(
            (by_position.values, (by_position.first, by_position.second)), shape=shape
        )
        found = sparse.coo_array(self._firing().T @ right)
        return count_pairs(found.row.astype(np.int64), found.col.astype(np.int64), found.data)

    def _coactive(self) -> PairCounts:
        from scipy import sparse

        firing = self._firing()
        found = sparse.coo_array(sparse.triu(firing.T @ firing, k=1))
        return count_pairs(found.row.astype(np.int64), found.col.astype(np.int64), found.data)

    def _firing(self) -> Any:
        from scipy import sparse

        ones = np.ones(self.flat.size, np.int64)
        shape = (self.rows * self.length, self.count)
        return sparse.csr_array((ones, (self.flat, self.component)), shape=shape)

    def _firings(self) -> Table:
        place = (self.row, self.position, self.component)
        row = self.row + self.first_row
        return {
            "component": self.component,
            "importance": self.importances[place],
            "activation": self.activations[place],
            "batch": np.full(row.size, self.batch, np.int64),
            "row": row,
            "position": self.position,
            "priority": samples.priorities(self.component, self.batch, row, self.position),
        }

    def _best(self) -> Table:
        firings = self._firings()
        return samples.best(
            samples.taken(firings, samples.best_of_each_row(firings)), self.settings.top
        )

    def _drawn(self) -> Table:
        return samples.drawn(self._firings(), self.settings.sample)

    def _windows(self, firings: Table) -> Table:
        """The firings with what surrounds them; columns that end in `s` have a window to a row, padded at its end."""
        row = firings["row"] - self.first_row
        start, length, columns = self._around(row, firings["position"])
        shown = {"start": start, "length": length, **columns}
        if self.is_text:
            where = self._indices(row, start)
            component = firings["component"][:, None]
            shown["importances"] = self.importances[(*where, component)]
            shown["activations"] = self.activations[(*where, component)]
        return {**firings, **shown}

    def _around(
        self, row: np.ndarray, position: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Table]:
        """Where each window starts, how long it is, and the inputs that it shows."""
        start = np.maximum(position - self.settings.before, 0)
        end = np.minimum(position + self.settings.after + 1, self.length)
        if self.is_text:
            tokens = self.inputs[self._indices(row, start)].astype(np.int32)
            return start, end - start, {"tokens": tokens}
        return start, end - start, {"inputs": self.inputs[row, position]}

    def _indices(self, row: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        width = self.settings.before + self.settings.after + 1
        position = np.minimum(start[:, None] + np.arange(width), self.length - 1)
        return row[:, None], position

    def _places(self) -> Table:
        row, position = np.divmod(np.arange(self.rows * self.length), self.length)
        row = row + self.first_row
        return {
            "batch": np.full(row.size, self.batch, np.int64),
            "row": row,
            "position": position,
            "priority": samples.priorities(self.batch, row, position),
        }

    def _patterns(self) -> tuple[Table, Table]:
        places = self._places()
        members: Table = {
            "priority": places["priority"][self.flat],
            "component": self.component,
        }
        return samples.lowest(places, members, self.settings.patterns)

    def _background(self) -> tuple[Table, Table]:
        places = self._places()
        kept = np.argsort(places["priority"], kind="stable")[: self.settings.background]
        places = samples.taken(places, kept)
        row = places["row"] - self.first_row
        start, length, columns = self._around(row, places["position"])
        which, component = np.nonzero(
            np.stack(
                [
                    np.any(self.importances[r, s : s + n] > self.settings.threshold, axis=0)
                    for r, s, n in zip(row, start, length, strict=True)
                ]
            )
        )
        members: Table = {"priority": places["priority"][which], "component": component}
        table = {**places, "start": start, "length": length, **columns}
        return samples.lowest(table, members, self.settings.background)
