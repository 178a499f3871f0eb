"""What `pd-eqx cluster` writes is the clustering of what the harvest sampled, whole, and such that scipy takes it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.cluster import hierarchy

from pd_eqx.cli.cluster import cluster
from pd_eqx.cluster.ensemble import adjusted_rand
from pd_eqx.cluster.mdl import description_length
from pd_eqx.cluster.store import cluster_harvest
from pd_eqx.harvest.measure import Measured
from pd_eqx.harvest.settings import HarvestSettings
from pd_eqx.harvest.store import Harvest, HarvestError, Source, write_harvest
from pd_eqx.harvest.tally import tally_rows

ROWS, LENGTH, COUNT = 50, 8, 8
# Which cause each component follows: 0, 3 and 5 the first, 1 and 7 the second, 2 and 6 one of their own. 4 never fires.
CAUSES = [0, 1, 2, 0, None, 0, 3, 1]
# With less, 2 and 6 would be worth a group: naming one of three is cheaper than one of four.
ALPHA = 3.0
TOGETHER = [{0, 3, 5}, {1, 7}, {2}, {6}]


def _harvested(directory: Path, importances: np.ndarray) -> Path:
    measured: Any = Measured(
        importances,  # pyright: ignore[reportArgumentType]
        importances,  # pyright: ignore[reportArgumentType]
        importances.sum((0, 1)),
        np.zeros((20, COUNT), np.int32),  # pyright: ignore[reportArgumentType]
        None,
        None,
    )
    tokens = np.zeros((ROWS, LENGTH), np.int32)
    # Fewer patterns than positions: what is clustered is the sample, not all.
    tally = tally_rows(measured, tokens, HarvestSettings(patterns=300), 0, 0)
    source = Source("run", "planted", 3, "abc", "tokens", (("a", 5), ("b", 3)))
    write_harvest(directory, Harvest(source, tally))
    return directory


def _planted() -> np.ndarray:
    random = np.random.default_rng(3)
    causes = random.random((4, ROWS, LENGTH)) < 0.15
    importances = np.zeros((ROWS, LENGTH, COUNT), np.float32)
    for component, cause in enumerate(CAUSES):
        if cause is not None:
            # Noise, so that no two are alike and mergers have an order.
            noise = random.random((ROWS, LENGTH)) < 0.02
            importances[..., component] = causes[cause] ^ noise
    return importances


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _harvested(tmp_path_factory.mktemp("planted") / "harvest", _planted())


@pytest.fixture
def harvest(planted: Path, tmp_path: Path) -> Path:
    shutil.copytree(planted, tmp_path / "harvest")
    return tmp_path / "harvest"


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _told(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], list[dict[str, Any]]]:
    about = json.loads((folder / "clusters.json").read_bytes())
    table = pq.read_table(folder / "clusters.parquet")
    clusters = {name: table[name].to_numpy() for name in table.column_names}
    return about, clusters, pq.read_table(folder / "merges.parquet").to_pylist()


def _active(harvest: Path, components: list[int]) -> np.ndarray:
    """The sampled positions as the harvest's own table tells them."""
    firing = pq.read_table(harvest / "patterns.parquet")["firing"].to_pylist()
    return np.array([[component in at for component in components] for at in firing])


def test_the_files_say_what_was_found(harvest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(harvest, alpha=ALPHA, seeds=3, out=None)
    about, found, merges = _told(harvest / "clusters")
    said = capsys.readouterr().out
    assert "7 components fire at 300 positions" in said
    assert f"saved  {harvest / 'clusters'}" in said
    assert f"agreement of 3 resamplings   {about['agreement']:.3f}" in said

    assert found["component"].tolist() == [*range(COUNT)]
    assert found["site"].tolist() == ["a"] * 5 + ["b"] * 3
    assert found["index"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    groups = [set(np.flatnonzero(found["cluster"] == c).tolist()) for c in range(about["clusters"])]
    assert groups == TOGETHER
    assert found["size"].tolist() == [3, 2, 1, 3, 0, 3, 1, 2]
    assert found["cluster"][4] == -1
    assert np.isnan(found["stability"]).tolist() == [c == 4 for c in range(COUNT)]

    chosen = [0, 1, 2, 3, 5, 6, 7]
    assert about["components"] == chosen
    active = _active(harvest, chosen)
    assert about["positions"] == len(active) == 300
    in_clusters = found["cluster"][chosen]
    assert about["cost"] == pytest.approx(description_length(active, in_clusters, ALPHA))
    assert about["cost_alone"] == pytest.approx(description_length(active, np.arange(7), ALPHA))
    groups_now = np.arange(7)
    for number, merger in enumerate(merges):
        pair = [merger["first"], merger["second"]]
        groups_now = np.where(np.isin(groups_now, pair), 7 + number, groups_now)
        assert merger["size"] == np.count_nonzero(groups_now == 7 + number)
        assert merger["cost"] == pytest.approx(description_length(active, groups_now, ALPHA))
    assert len(merges) == 6
    costs = np.array([about["cost_alone"], *(merger["cost"] for merger in merges)])
    np.testing.assert_allclose(np.diff(costs), [merger["change"] for merger in merges], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, ALPHA, 20.0])
def test_scipy_takes_the_tree(harvest: Path, alpha: float) -> None:
    about = cluster_harvest(harvest, harvest / "clusters", alpha, 0)
    _, found, _ = _told(harvest / "clusters")
    linkage = np.load(harvest / "clusters" / "linkage.npy")
    assert hierarchy.is_valid_linkage(linkage, throw=True)
    assert hierarchy.is_monotonic(linkage)
    drawn = hierarchy.dendrogram(linkage, labels=about["components"], no_plot=True)
    assert sorted(drawn["ivl"] or []) == about["components"]
    flat = hierarchy.fcluster(linkage, about["stop"], "distance")
    assert adjusted_rand(flat, found["cluster"][about["components"]]) == 1.0
    if alpha == ALPHA:
        leaves = [about["components"][leaf] for leaf in hierarchy.leaves_list(linkage)]
        places = sorted(leaves.index(component) for component in (0, 3, 5))
        assert places[2] - places[0] == 2, "what is one cluster is side by side"


def test_a_larger_alpha_gives_smaller_clusters(harvest: Path) -> None:
    counts = [
        cluster_harvest(harvest, harvest / "c", alpha, 0)["clusters"] for alpha in (0.0, 1.0, 50.0)
    ]
    assert counts[0] <= counts[1] < counts[2] == 7


def test_the_same_command_writes_the_same_bytes_and_another_replaces_all(harvest: Path) -> None:
    to = harvest / "clusters"
    cluster_harvest(harvest, to, 1.0, 2)
    first = _bytes(to)
    assert set(first) == {"clusters.json", "clusters.parquet", "merges.parquet", "linkage.npy"}
    cluster_harvest(harvest, to, 1.0, 2)
    assert _bytes(to) == first
    cluster_harvest(harvest, to, 50.0, 2)
    same = [name for name, content in _bytes(to).items() if content == first[name]]
    assert same in ([], ["linkage.npy"])  # the tree may be the same, and only its cut another


@pytest.mark.parametrize("replaced", range(5))
def test_a_write_that_is_cut_off_leaves_no_mixture(
    harvest: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    """The 4 files take their places one by one; a kill comes before each, or after the last."""
    to = harvest / "clusters"
    cluster_harvest(harvest, to, 1.0, 2)
    old = _bytes(to)
    left = [replaced]
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        try:
            cluster_harvest(harvest, to, 50.0, 2)
            assert replaced == 4
        except KeyboardInterrupt:
            assert replaced < 4
    assert ("clusters.json" in _bytes(to)) == (replaced == 4)
    cluster_harvest(harvest, to, 50.0, 2)
    whole = _bytes(to)
    assert whole != old
    cluster_harvest(harvest, harvest / "fresh", 50.0, 2)
    assert whole == _bytes(harvest / "fresh")
    assert not (to / ".writing").exists()


def test_a_clustering_that_fails_leaves_the_old_one(
    harvest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = harvest / "clusters"
    cluster_harvest(harvest, to, 1.0, 2)
    old = _bytes(to)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space"):
        cluster_harvest(harvest, to, 50.0, 2)
    assert _bytes(to) == old


def test_where_one_component_fires_or_none(tmp_path: Path) -> None:
    importances = np.zeros((ROWS, LENGTH, COUNT), np.float32)
    silent = _harvested(tmp_path / "silent", importances)
    with pytest.raises(
        HarvestError, match="no component fires at any of its 300 sampled positions"
    ):
        cluster_harvest(silent, tmp_path / "clusters", 1.0, 2)
    assert not (tmp_path / "clusters").exists()
    importances[:, 0, 2] = 1.0
    one = _harvested(tmp_path / "one", importances)
    about = cluster_harvest(one, one / "clusters", 1.0, 2)
    assert (about["components"], about["clusters"], about["stop"]) == ([2], 1, 0)
    assert np.load(one / "clusters" / "linkage.npy").shape == (0, 4)


def _no_table(harvest: Path) -> None:
    (harvest / "patterns.parquet").unlink()


def _another_table(harvest: Path) -> None:
    shutil.copy(harvest / "coactivation.parquet", harvest / "patterns.parquet")


def _cut_off(harvest: Path) -> None:
    (harvest / "windows.parquet").write_bytes(b"PAR1")


def _no_settings(harvest: Path) -> None:
    (harvest / "harvest.json").write_text('{"format": 1}')


def _a_number_for_settings(harvest: Path) -> None:
    about = json.loads((harvest / "harvest.json").read_text())
    (harvest / "harvest.json").write_text(json.dumps({**about, "settings": 3}))


@pytest.mark.parametrize(
    "damage", [_no_table, _another_table, _cut_off, _no_settings, _a_number_for_settings]
)
def test_a_harvest_that_is_not_whole_is_told_in_a_line(
    harvest: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    damage(harvest)
    with pytest.raises(SystemExit) as ended:
        cluster(harvest, alpha=1.0, seeds=0, out=None)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pd-eqx: {harvest} is no whole harvest: ")
    assert said.count("\n") == 1
    assert not (harvest / "clusters").exists()


def test_where_nothing_can_be_written(harvest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in (harvest / "harvest.json", harvest / "harvest.json" / "below"):
        with pytest.raises(SystemExit) as ended:
            cluster(harvest, alpha=1.0, seeds=0, out=out)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "pd-eqx: nowhere holds no harvest (harvest.json); make one with: pd-eqx harvest"),
        (["nowhere", "--alpha", "-1"], "--alpha"),
        (["nowhere", "--seeds", "x"], "--seeds"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_a_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-c", "from pd_eqx.cli import main; main()", "cluster", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())
