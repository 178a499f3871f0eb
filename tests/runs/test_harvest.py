"""A harvest says what the run says, and any parts of it add up to the whole."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

import pd_eqx
from pd_eqx.evals.observation import draw_batch
from pd_eqx.harvest.settings import HarvestSettings, activation_edges
from pd_eqx.harvest.store import (
    TABLES,
    HarvestError,
    finish,
    read_harvest,
    read_table,
    write_harvest,
)
from pd_eqx.runs.harvest import harvest_run, merge_harvests
from pd_eqx.runs.open import OpenedRun
from runs.deposited import deposit_features, deposit_tokens

# So few that something is dropped in every table.
FEW = HarvestSettings(
    top=2, sample=3, before=3, after=1, patterns=40, background=7, predictions=3, bins=4
)
BATCHES = 4


@pytest.fixture(scope="module", params=[pytest.param("tokens", marks=pytest.mark.slow), "features"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenedRun:
    make = deposit_tokens if request.param == "tokens" else deposit_features
    return pd_eqx.open_run(make(tmp_path_factory.mktemp(request.param) / "run"))


@pytest.fixture(scope="module")
def whole(run: OpenedRun) -> Path:
    directory = run.directory.root / "harvest"
    harvest_run(run, directory, range(BATCHES), FEW)
    return directory


def tables(directory: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: pq.read_table(directory / f"{name}.parquet").to_pylist() for name in TABLES}


def test_the_tables_say_what_the_run_says(run: OpenedRun, whole: Path) -> None:
    keys, batches = run.assembly.keys, run.assembly.batches
    draw = jax.jit(draw_batch)
    inputs = np.stack([draw(batches, keys.evaluation, i)[0] for i in range(BATCHES)])
    is_text = inputs.dtype.kind == "i"
    sites = [site.name for site in run.target.sites()]
    importances, activations = [], []
    for batch in inputs:
        ci, x = run.causal_importances(batch).lower, run.component_activations(batch)
        U = run.decomposition.components.U
        chosen = [site for site in sites if site in ci]
        importances.append(np.concatenate([ci[site] for site in chosen], axis=-1))
        activations.append(
            np.concatenate([x[site] * np.linalg.norm(U[site], axis=1) for site in chosen], axis=-1)
        )
    count = importances[0].shape[-1]
    length = inputs.shape[2] if is_text else 1
    shape = (BATCHES, inputs.shape[1], length, count)
    ci, x = np.stack(importances).reshape(shape), np.stack(activations).reshape(shape)
    fired = ci > FEW.threshold
    positions = fired[..., 0].size
    assert 0.05 < fired.mean() < 0.95, "the test would see nothing"
    found = tables(whole)

    for c, row in enumerate(found["components"]):
        assert row["component"] == c
        assert row["fired"] == fired[..., c].sum()
        assert row["density"] == pytest.approx(fired[..., c].mean())
        assert row["mean_importance"] == pytest.approx(ci[..., c].mean(), abs=1e-5)
        histogram, _ = np.histogram(ci[..., c], FEW.bins, (0, 1))
        assert row["importance_histogram"] == histogram.tolist()
        edges = [-np.inf, *activation_edges(), np.inf]
        histogram, _ = np.histogram(x[..., c][fired[..., c]], edges)
        assert row["activation_histogram"] == histogram.tolist()
    named = [(row["site"], row["index"]) for row in found["components"]]
    counts = run.decomposition.components.counts
    assert named == [(s, i) for s in sites if s in counts for i in range(counts[s])]

    flat = fired.reshape(-1, count).astype(np.int64)
    together = flat.T @ flat
    pairs = {(row["first"], row["second"]): row for row in found["coactivation"]}
    expected = {(a, b) for a, b in zip(*np.nonzero(np.triu(together, 1)), strict=True)}
    assert set(pairs) == expected
    for (a, b), row in pairs.items():
        assert row["count"] == together[a, b]
        ratio = together[a, b] * positions / (together[a, a] * together[b, b])
        assert row["pmi"] == pytest.approx(np.log2(ratio))

    symbols = np.eye(11, dtype=np.int64)[inputs.reshape(-1)] if is_text else None
    if symbols is None:
        symbols = (inputs.reshape(positions, -1) != 0).astype(np.int64)
    responds = flat.T @ symbols
    of_tokens = [row for row in found["tokens"] if row["direction"] == "responds"]
    assert len(of_tokens) == np.count_nonzero(responds)
    for row in of_tokens:
        c, t = row["component"], row["token"]
        assert row["count"] == responds[c, t]
        ratio = responds[c, t] * positions / (flat[:, c].sum() * symbols[:, t].sum())
        assert row["pmi"] == pytest.approx(np.log2(ratio))
    promoted = [row for row in found["tokens"] if row["direction"] == "promotes"]
    assert bool(promoted) == is_text
    if is_text:
        logits = np.concatenate([run.output(batch) for batch in inputs]).reshape(positions, -1)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p *= np.argsort(np.argsort(-p, axis=1), axis=1) < FEW.predictions
        promotes = flat.T @ p
        for row in promoted:
            weight = row["count"] / (1 << 16)
            assert weight == pytest.approx(promotes[row["component"], row["token"]], abs=1e-3)

    for row in found["windows"]:
        b, r, p, c = (row[key] for key in ("batch", "row", "position", "component"))
        assert row["importance"] == pytest.approx(ci[b, r, p, c], abs=1e-6)
        assert row["activation"] == pytest.approx(x[b, r, p, c], abs=1e-5)
        if is_text:
            window = slice(max(p - 3, 0), p + 2)
            assert row["start"] == window.start
            assert row["tokens"] == inputs[b, r, window].tolist()
            np.testing.assert_allclose(row["importances"], ci[b, r, window, c], atol=1e-6)
            np.testing.assert_allclose(row["activations"], x[b, r, window, c], atol=1e-5)
        else:
            np.testing.assert_array_equal(row["inputs"], inputs[b, r])
    for c in range(count):
        kinds = {kind: [w for w in found["windows"] if (w["component"], w["kind"]) == (c, kind)] for kind in ("top", "sample")}  # fmt: skip
        best_of_rows = np.sort(np.where(fired, ci, -1)[..., c].max(2).reshape(-1))[::-1]
        expected_top = [ci for ci in best_of_rows[: FEW.top] if ci > FEW.threshold]
        np.testing.assert_allclose([w["importance"] for w in kinds["top"]], expected_top, atol=1e-6)
        assert len(kinds["sample"]) == min(FEW.sample, fired[..., c].sum())
        assert [w["rank"] for w in kinds["sample"]] == list(range(len(kinds["sample"])))

    assert len(found["patterns"]) == min(FEW.patterns, positions)
    for row in found["patterns"]:
        b, r, p = (row[key] for key in ("batch", "row", "position"))
        assert row["firing"] == np.flatnonzero(fired[b, r, p]).tolist()
    assert len(found["background"]) == FEW.background
    for row in found["background"]:
        b, r, p = (row[key] for key in ("batch", "row", "position"))
        window = fired[b, r, max(p - 3, 0) : p + 2] if is_text else fired[b, r, p][None]
        assert row["firing"] == np.flatnonzero(window.any(0)).tolist()


def test_parts_in_any_order_add_up_to_the_whole(
    run: OpenedRun, whole: Path, tmp_path: Path
) -> None:
    parts = {range(1): "a", range(1, 3): "b", range(3, 4): "c"}
    for batches, name in parts.items():
        harvest_run(run, tmp_path / name, batches, FEW)
    merge_harvests([tmp_path / name for name in ("c", "a", "b")], tmp_path / "merged")
    assert tables(tmp_path / "merged") == tables(whole)
    assert read_harvest(tmp_path / "merged").tally.batches == ((0, BATCHES),)
    with pytest.raises(HarvestError, match="batch 1 is in both"):
        merge_harvests([whole, tmp_path / "b"], tmp_path / "twice")
    with pytest.raises(HarvestError, match="already holds a harvest"):
        merge_harvests([whole], tmp_path / "a")


def test_a_harvest_goes_on_where_it_was_stopped(
    run: OpenedRun, whole: Path, tmp_path: Path
) -> None:
    class StoppedError(Exception):
        pass

    def stop(index: int, positions: int) -> None:
        if index == 2:
            raise StoppedError

    times = iter(range(0, 10_000, 100))  # so that every batch is saved
    with pytest.raises(StoppedError):
        harvest_run(
            run, tmp_path, range(BATCHES), FEW, watch=stop, clock=lambda: float(next(times))
        )
    assert read_harvest(tmp_path).tally.batches == ((0, 2),)
    done: list[int] = []
    harvest_run(run, tmp_path, range(BATCHES), watch=lambda index, _: done.append(index))
    assert done == [2, 3]
    assert tables(tmp_path) == tables(whole)
    with pytest.raises(HarvestError, match="choose another --out"):
        harvest_run(run, tmp_path, range(5), dataclasses.replace(FEW, top=5))
    assert tables(tmp_path) == tables(whole)


def test_a_write_that_is_cut_off_anywhere_leaves_the_old_harvest_or_the_new(
    run: OpenedRun, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    harvest_run(run, old, range(2), FEW)
    before, after = tables(old), tables(whole)
    assert before != after
    new = read_harvest(whole)

    class KilledError(Exception):
        pass

    left = 0

    def counted(original: Any) -> Any:
        def call(self: Path, *args: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise KilledError
            return original(self, *args)

        return call

    for until in range(1, 40):
        directory = tmp_path / f"cut{until}"
        shutil.copytree(old, directory)
        left = until
        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "rmdir", "write_text"):
                patch.setattr(Path, name, counted(getattr(Path, name)))
            try:
                write_harvest(directory, new)
                break
            except KilledError:
                pass
        left = 0
        lying = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        found = read_harvest(directory).tally.batches
        expected = before if found == ((0, 2),) else after
        assert {name: read_table(directory, name).to_pylist() for name in TABLES} == expected
        # A reader writes nothing (S27); the next writer puts all in place.
        assert lying == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        finish(directory)
        assert tables(directory) == expected
    assert left > 0, "the write never ended"


def test_harvests_of_two_decompositions_are_not_mixed(
    run: OpenedRun, whole: Path, tmp_path: Path
) -> None:
    harvest = read_harvest(whole)
    other = dataclasses.replace(harvest.source, step=9)
    write_harvest(tmp_path / "other", dataclasses.replace(harvest, source=other))
    with pytest.raises(HarvestError, match=r"step is \d+ of .* and 9 of"):
        harvest_run(run, tmp_path / "other", range(5), FEW)
    with pytest.raises(HarvestError, match="holds no harvest"):
        read_harvest(tmp_path)


def test_a_harvest_takes_no_place_that_holds_something_else(
    run: OpenedRun, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place, said in (("full", "not empty and no harvest"), ("file", "is no directory")):
        with pytest.raises(HarvestError, match=said):
            harvest_run(run, tmp_path / place, range(1), FEW)
        with pytest.raises(HarvestError, match=said):
            merge_harvests([whole], tmp_path / place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "notes"]
