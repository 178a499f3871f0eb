"""A harvest on disk: seven parquet tables and `harvest.json`, which says what they are of (see docs/harvest.md).

The tables hold the tally without loss, so what was written is also what a resumed harvest goes on from and what merging
reads. They change together: all are written beside the old ones, the folder with them is renamed in one stroke, and
only then do they take their places. A kill before that stroke leaves the old harvest, one after it leaves work that the
next writer finishes; readers write nothing, and read what was committed wherever it lies.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pd_eqx.harvest.counts import PairCounts, count_pairs
from pd_eqx.harvest.samples import Table
from pd_eqx.harvest.settings import (
    IMPORTANCE_PARTS,
    PROBABILITY_PARTS,
    HarvestSettings,
    activation_edges,
)
from pd_eqx.harvest.tally import Tally

FORMAT = 1
ABOUT = "harvest.json"
TABLES = (
    "components",
    "windows",
    "tokens",
    "vocabulary",
    "coactivation",
    "patterns",
    "background",
)
_WRITING, _COMMITTED = ".writing", ".committed"


class HarvestError(ValueError):
    """A harvest that cannot be read, merged or continued."""


@dataclasses.dataclass(frozen=True)
class Source:
    """What was harvested; harvests of different sources cannot be merged.

    - `run`: the run's directory, `name`: the run's name; neither keeps harvests apart.
    - `step`: of the checkpoint, `product`: a hash over the fingerprints of its arrays.
    - `kind`: `tokens` or `features`.
    - `sites`: the decomposed sites and their numbers of components, in the order in which components are numbered.
    """

    run: str
    name: str
    step: int
    product: str
    kind: str
    sites: tuple[tuple[str, int], ...]

    def refuse_other(self, other: "Source") -> None:
        """**Errors:** `HarvestError` where the other is a harvest of something else."""
        for key in ("step", "product", "kind", "sites"):
            ours, theirs = getattr(self, key), getattr(other, key)
            if ours != theirs:
                raise HarvestError(
                    f"the harvests are of different decompositions: {key} is {ours!r} of {self.run} and {theirs!r} of "
                    f"{other.run}; harvest one of them anew"
                )

    def names(self) -> list[tuple[str, int]]:
        """The site and the number within it of each component."""
        return [(site, index) for site, count in self.sites for index in range(count)]


@dataclasses.dataclass(frozen=True)
class Harvest:
    """A harvest that was read; see `Tally` for what is in it."""

    source: Source
    tally: Tally


def write_harvest(
    directory: Path, harvest: Harvest, text: Callable[[int], str | None] | None = None
) -> None:
    """Writes a harvest in place of what is there, all of it or nothing.

    **Arguments:**

    - `text`: what a token looks like, for the vocabulary; None where tokens have no text.
    """
    import json

    import pyarrow.parquet as pq

    finish(directory)
    staged = directory / _WRITING
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for name, table in _tables(harvest, text).items():
        pq.write_table(table, staged / f"{name}.parquet", compression="zstd")
    (staged / ABOUT).write_text(json.dumps(_about(harvest), indent=2) + "\n")
    for path in (*staged.iterdir(), staged):
        _flush(path)
    staged.rename(directory / _COMMITTED)
    _flush(directory)
    finish(directory)


def finish(directory: Path) -> None:
    """Puts the tables of a write that was cut off in their places; does nothing where there was none."""
    committed = directory / _COMMITTED
    if committed.is_dir():
        for path in sorted(committed.iterdir()):
            path.replace(directory / path.name)
        _flush(directory)
        committed.rmdir()


def refuse_foreign(directory: Path) -> None:
    """**Errors:** `HarvestError` for what is no directory, or one that is not empty and holds no harvest."""
    if directory.exists() and not directory.is_dir():
        raise HarvestError(f"{directory} is no directory; choose another place for the harvest")
    if directory.is_dir() and not holds_harvest(directory):
        others = [path.name for path in directory.iterdir() if not path.name.startswith(".")]
        if others:
            raise HarvestError(
                f"{directory} is not empty and no harvest (there is {others[0]}); choose another place for the harvest"
            )


def holds_harvest(directory: Path) -> bool:
    """Whether a harvest was committed there."""
    return _place(directory, ABOUT).exists()


def read_table(directory: Path, name: str) -> Any:
    """One of `TABLES` as a `pyarrow.Table`, as it was last committed.

    **Errors:** `OSError` or `ValueError`, as pyarrow raises them.
    """
    import pyarrow.parquet as pq

    return pq.read_table(_place(directory, f"{name}.parquet"))


def read_vocabulary(directory: Path) -> dict[int, str | None]:
    """The text of each token by id; None for one that has none.

    **Errors:** as `read_table`.
    """
    table = read_table(directory, "vocabulary")
    return dict(zip(table["token"].to_pylist(), table["text"].to_pylist(), strict=True))


def read_harvest(directory: Path) -> Harvest:
    """What `write_harvest` wrote.

    **Errors:** `HarvestError` where there is no harvest, or one of another format.
    """
    about = read_about(directory)
    try:
        tables = {name: read_table(directory, name) for name in TABLES}
        settings = HarvestSettings(**about["settings"])
        return Harvest(_source(about), _tally(about, settings, tables))
    except KeyError as error:
        raise HarvestError(f"{directory} is no whole harvest: it lacks {error.args[0]}") from None
    except (OSError, ValueError, TypeError) as error:
        raise HarvestError(f"{directory} is no whole harvest: {error}") from None


def _place(directory: Path, name: str) -> Path:
    committed = directory / _COMMITTED / name
    return committed if committed.exists() else directory / name


def read_about(directory: Path) -> dict[str, Any]:
    """`harvest.json` alone.

    **Errors:** as `read_harvest`.
    """
    import json

    try:
        about = json.loads(_place(directory, ABOUT).read_bytes())
        found = about["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise HarvestError(
            f"{directory} holds no harvest ({ABOUT}); make one with: pd-eqx harvest RUN --batches N"
        ) from None
    if found != FORMAT:
        raise HarvestError(
            f"{directory} is a harvest of format {found}, and this version reads {FORMAT}; harvest anew"
        )
    return about


def _about(harvest: Harvest) -> dict[str, Any]:
    source, tally = harvest.source, harvest.tally
    first = np.cumsum([0, *(count for _, count in source.sites)])
    return {
        "format": FORMAT,
        "run": source.run,
        "name": source.name,
        "step": source.step,
        "product": source.product,
        "kind": source.kind,
        "batches": [list(each) for each in tally.batches],
        "positions": tally.positions,
        "sites": [
            {"name": site, "first": int(begin), "count": count}
            for (site, count), begin in zip(source.sites, first[:-1], strict=True)
        ],
        "settings": dataclasses.asdict(tally.settings),
        "activation_edges": activation_edges(),
        "importance_parts": IMPORTANCE_PARTS,
        "probability_parts": PROBABILITY_PARTS,
    }


def _source(about: Mapping[str, Any]) -> Source:
    sites = tuple((site["name"], site["count"]) for site in about["sites"])
    return Source(
        about["run"], about["name"], about["step"], about["product"], about["kind"], sites
    )


def _tables(harvest: Harvest, text: Callable[[int], str | None] | None) -> dict[str, Any]:
    import pyarrow as pa

    source, tally = harvest.source, harvest.tally
    names = source.names()
    sites = np.array([site for site, _ in names], dtype=object)
    indices = np.array([index for _, index in names], dtype=np.int32)
    positions = max(tally.positions, 1)

    def named(component: np.ndarray) -> dict[str, Any]:
        return {
            "component": component.astype(np.int32),
            "site": pa.array(sites[component], pa.string()),
            "index": indices[component],
        }

    windows: list[Any] = []
    for kind, table in (("top", tally.top), ("sample", tally.sample)):
        component = table["component"]
        begins = np.searchsorted(component, component, side="left")
        windows.append(
            pa.table(
                {
                    **named(component),
                    "kind": pa.array([kind] * component.size, pa.string()),
                    "rank": (np.arange(component.size) - begins).astype(np.int32),
                    "importance": table["importance"],
                    "activation": table["activation"],
                    **_places(table),
                    **_shown(table),
                }
            )
        )
    vocabulary = tally.seen.first
    predicted = dict(zip(tally.predicted.first.tolist(), tally.predicted.values, strict=True))
    vocabulary = np.union1d(vocabulary, tally.predicted.first)
    seen = dict(zip(tally.seen.first.tolist(), tally.seen.values, strict=True))
    symbols = vocabulary.tolist()
    tokens = [
        _associations("responds", tally.responds, tally.fired, tally.seen, positions),
        _associations("promotes", tally.promotes, tally.fired, tally.predicted, positions),
    ]
    pairs = tally.coactive
    expected = tally.fired[pairs.first].astype(float) * tally.fired[pairs.second] / positions
    return {
        "components": pa.table(
            {
                **named(np.arange(len(names))),
                "fired": tally.fired,
                "density": tally.fired / positions,
                "mean_importance": tally.importance_sum / IMPORTANCE_PARTS / positions,
                "importance_sum": tally.importance_sum,
                "importance_histogram": _lists(tally.importance_histogram),
                "activation_histogram": _lists(tally.activation_histogram),
            }
        ),
        "windows": pa.concat_tables(windows),
        "tokens": pa.concat_tables([pa.table({**named(t.pop("component")), **t}) for t in tokens]),
        "vocabulary": pa.table(
            {
                "token": vocabulary.astype(np.int32),
                "text": pa.array([text(s) if text else None for s in symbols], pa.string()),
                "seen": np.array([seen.get(s, 0) for s in symbols], np.int64),
                "predicted": np.array([predicted.get(s, 0) for s in symbols], np.int64),
            }
        ),
        "coactivation": pa.table(
            {
                "first": pairs.first.astype(np.int32),
                "second": pairs.second.astype(np.int32),
                "count": pairs.values,
                "pmi": np.log2(pairs.values / expected),
            }
        ),
        "patterns": pa.table(
            {**_places(tally.patterns), "firing": _firing(tally.patterns, tally.patterns_firing)}
        ),
        "background": pa.table(
            {
                **_places(tally.background),
                **_shown(tally.background),
                "firing": _firing(tally.background, tally.background_firing),
            }
        ),
    }


def _associations(
    direction: str, pairs: PairCounts, fired: np.ndarray, alone: PairCounts, positions: int
) -> dict[str, Any]:
    """Pairs of component and token, with their pointwise mutual information in bits."""
    import pyarrow as pa

    of_token = alone.values[np.searchsorted(alone.first, pairs.second)]
    expected = fired[pairs.first].astype(float) * of_token / positions
    return {
        "component": pairs.first,
        "direction": pa.array([direction] * pairs.keys.size, pa.string()),
        "token": pairs.second.astype(np.int32),
        "count": pairs.values,
        "pmi": np.log2(pairs.values / expected),
    }


def _places(table: Table) -> dict[str, Any]:
    return {
        "batch": table["batch"],
        "row": table["row"].astype(np.int32),
        "position": table["position"].astype(np.int32),
        "priority": table["priority"],
    }


def _shown(table: Table) -> dict[str, Any]:
    """What a window shows; a list is as long as the window."""
    shown: dict[str, Any] = {"start": table["start"].astype(np.int32)}
    for name in ("tokens", "importances", "activations"):
        if name in table:
            shown[name] = _lists(table[name], table["length"])
    if "inputs" in table:
        shown["inputs"] = _lists(table["inputs"])
    return shown


def _lists(values: np.ndarray, lengths: np.ndarray | None = None) -> Any:
    """A list for each row of a matrix, or its first entries."""
    import pyarrow as pa

    rows, width = values.shape
    lengths = np.full(rows, width) if lengths is None else lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = values[np.arange(width) < lengths[:, None]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _firing(table: Table, members: Table) -> Any:
    """A list of components for each row, found by the row's priority."""
    import pyarrow as pa

    order = np.lexsort((members["component"], members["priority"]))
    ends = np.searchsorted(members["priority"][order], table["priority"], side="right")
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    components = members["component"][order].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(components))


def _tally(about: Mapping[str, Any], settings: HarvestSettings, tables: Mapping[str, Any]) -> Tally:
    components, windows = tables["components"], tables["windows"]
    tokens, vocabulary = tables["tokens"], tables["vocabulary"]

    directions = np.asarray(tokens["direction"].to_pylist(), dtype=object)

    def pairs(direction: str) -> PairCounts:
        chosen = directions == direction
        return count_pairs(
            *(_column(tokens, name)[chosen] for name in ("component", "token", "count"))
        )

    def alone(name: str) -> PairCounts:
        symbols = _column(vocabulary, "token")
        return count_pairs(symbols, np.zeros_like(symbols), _column(vocabulary, name))

    kinds = np.asarray(windows["kind"].to_pylist(), dtype=object)
    width = settings.before + settings.after + 1
    read = {
        "component": _column(windows, "component"),
        "importance": windows["importance"].to_numpy(),
        "activation": windows["activation"].to_numpy(),
        **_read_places(windows),
        **_read_shown(windows, width),
    }
    by_kind = {kind: {k: v[kinds == kind] for k, v in read.items()} for kind in ("top", "sample")}
    coactive = tables["coactivation"]
    return Tally(
        settings=settings,
        batches=tuple((begin, end) for begin, end in about["batches"]),
        positions=about["positions"],
        fired=_column(components, "fired"),
        importance_sum=_column(components, "importance_sum"),
        importance_histogram=_matrix(components["importance_histogram"]),
        activation_histogram=_matrix(components["activation_histogram"]),
        responds=pairs("responds"),
        promotes=pairs("promotes"),
        seen=alone("seen"),
        predicted=alone("predicted"),
        coactive=count_pairs(*(_column(coactive, name) for name in ("first", "second", "count"))),
        top=by_kind["top"],
        sample=by_kind["sample"],
        patterns=_read_places(tables["patterns"]),
        patterns_firing=_read_firing(tables["patterns"]),
        background={
            **_read_places(tables["background"]),
            **_read_shown(tables["background"], width),
        },
        background_firing=_read_firing(tables["background"]),
    )


def _column(table: Any, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.int64)


def _read_places(table: Any) -> Table:
    numbers = {name: _column(table, name) for name in ("batch", "row", "position")}
    return {**numbers, "priority": table["priority"].to_numpy()}


def _read_shown(table: Any, width: int) -> Table:
    shown: Table = {"start": _column(table, "start")}
    rows = table.num_rows
    if "inputs" in table.column_names:
        return {**shown, "length": np.ones(rows, np.int64), "inputs": _matrix(table["inputs"])}
    for name in ("tokens", "importances", "activations"):
        if name in table.column_names:
            lists = table[name].combine_chunks()
            lengths = lists.value_lengths().to_numpy()
            flat = lists.flatten().to_numpy()
            padded = np.zeros((rows, width), flat.dtype)
            padded[np.arange(width) < lengths[:, None]] = flat
            shown |= {"length": lengths.astype(np.int64), name: padded}
    return shown


def _read_firing(table: Any) -> Table:
    lists = table["firing"].combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    return {
        "priority": np.repeat(table["priority"].to_numpy(), lengths),
        "component": lists.flatten().to_numpy().astype(np.int64),
    }


def _matrix(column: Any) -> np.ndarray:
    lists = column.combine_chunks()
    flat = lists.flatten().to_numpy()
    return flat.reshape(len(lists), -1) if len(lists) else flat.reshape(0, 0)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
