import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from evals import perfect
from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.evals import figures
from pd_eqx.evals.activity import Activity
from pd_eqx.evals.evaluation import EvaluationSettings, Result, make_evaluation
from pd_eqx.evals.patterns import Identity, SingleFeatures

RECORDS = [
    {"step": step, "loss/total": 1.0 / step, "loss/stochastic": 0.5 / step, "eval/alive/linear1": 5}
    for step in (1, 10, 100)
]
PNG = b"\x89PNG\r\n\x1a\n"


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    settings = EvaluationSettings(
        (Activity(bins=10),), (SingleFeatures(perfect.FEATURES, {"*": Identity()}),), n_batches=1
    )
    batches = SparseFeatures(64, perfect.FEATURES, 0.3)
    result = make_evaluation(settings)(
        perfect.decomposition(), perfect.target(), batches, jax.random.key(0)
    )
    return figures.draw(result, perfect.decomposition(), perfect.target(), RECORDS)


def test_each_figure_that_there_are_numbers_for_is_drawn(drawn: dict[str, Figure]) -> None:
    assert set(drawn) == {
        "importances",
        "directions",
        "factors",
        "mean_importance",
        "activation_density",
        "importance_histograms",
        "curves",
    }
    bare = figures.draw(Result({}, {}), perfect.decomposition(), perfect.target())
    assert set(bare) == {"factors"}


def test_importances_are_drawn_in_the_order_that_shows_the_pattern(
    drawn: dict[str, Figure],
) -> None:
    first, second, _ = drawn["importances"].axes
    image = np.asarray(first.images[0].get_array())
    assert np.array_equal(image, np.eye(perfect.FEATURES, perfect.COUNT))
    labels = [label.get_text() for label in first.get_xticklabels()]
    assert labels[: perfect.FEATURES] == [str(c) for c in perfect.PLACES]
    assert second.get_title(loc="left") == "linear2: errors 0 at 0.1, 0 at 0.2"


def test_directions_show_each_feature_twice(drawn: dict[str, Figure]) -> None:
    assert titles(drawn["directions"]) == [
        "linear1: 5 vectors of the target",
        "linear1: 5 of 8 components alive",
        "linear2: 5 vectors of the target",
        "linear2: 5 of 8 components alive",
    ]
    components = drawn["directions"].axes[1]
    names = {text.get_text() for text in components.texts} - {""}
    assert names == {f"{f} (c{c})" for f, c in enumerate(perfect.PLACES.tolist())}


def test_faint_columns_of_a_wide_heat_map_are_left_out_and_counted() -> None:
    matrix = np.zeros((3, 90))
    matrix[[0, 1, 2], [0, 1, 50]] = 1.0
    figure = figures.importances({"wide": matrix}, {"wide": np.arange(90)}, {})
    axes = figure.axes[0]
    assert np.asarray(axes.images[0].get_array()).shape == (3, 51)
    assert "39 more never above" in axes.get_xlabel()


def test_a_figure_says_how_many_sites_it_leaves_out() -> None:
    many = {f"layer{i}": np.array([0.9, 0.1]) for i in range(figures.MAX_SITES + 3)}
    figure = figures.importance_histograms(many)
    assert len(figure.axes) == figures.MAX_SITES
    assert figure.get_suptitle().endswith("(first 24 of 27 sites)")


def test_curves_skip_what_is_missing_or_not_finite() -> None:
    records: list[dict[str, Any]] = [*RECORDS, {"step": 200, "loss/total": float("nan")}]
    figure = figures.curves(records)
    assert titles(figure) == ["Losses", "Alive components"]
    total = figure.axes[0].lines[0]
    assert np.asarray(total.get_xdata()).tolist() == [1, 10, 100]
    with pytest.raises(ValueError, match=r"metrics\.jsonl empty"):
        figures.curves([{"step": 1}])


def test_components_that_are_never_active_are_drawn_and_counted() -> None:
    figure = figures.per_component(
        {"site": np.array([0.0, 0.5, 0.0])}, "t", "u", {"site": np.array([False, True, False])}
    )
    assert titles(figure) == ["site: 1 of 3 alive, 2 at exactly 0 (▾)"]


def test_saving_writes_whole_pictures(drawn: dict[str, Figure], tmp_path: Path) -> None:
    paths = figures.save({"curves": drawn["curves"]}, tmp_path / "new" / "figures")
    assert [path.name for path in paths] == ["curves.png"]
    assert paths[0].read_bytes().startswith(PNG)
    assert sorted(p.name for p in paths[0].parent.iterdir()) == ["curves.png"]


def test_a_picture_that_fails_half_way_leaves_the_older_one(
    drawn: dict[str, Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = figures.save({"curves": drawn["curves"]}, tmp_path)
    before = path.read_bytes()

    def half(self: Figure, file: Any, **rest: Any) -> None:
        file.write(PNG)
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space"):
        figures.save({"curves": drawn["curves"]}, tmp_path)
    assert path.read_bytes() == before


def test_no_figure_is_kept_alive_by_pyplot(drawn: dict[str, Figure]) -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
