"""Figures of a decomposition, each from plain numpy, and a writer that never leaves half a picture.

Figures are built without pyplot: it keeps every figure alive until it is closed, so a run that draws at a
cadence would grow. A figure that many sites share shows the first of them, and says how many it leaves out.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from pd_eqx.evals.evaluation import Result
from pd_eqx.evals.observation import decomposed_sites
from pd_eqx.evals.panels import PANELS
from pd_eqx.state import Decomposition
from pd_eqx.step import Target

Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, " _"]

DPI = 130
# Sites in one figure at most.
MAX_SITES = 24
# Rows or columns of a heat map that still get a label each.
MAX_LABELS = 25
# Columns of a heat map that are all shown, and the importance below which others need not be.
MAX_COLUMNS = 40
FAINT = 0.05

GREY = "#9a9a9a"
INK = "#333333"
BLUE = "#2f6db3"


def importances(
    matrices: Mapping[str, Matrix],
    orders: Mapping[str, Int[np.ndarray, " _"]],
    errors: Mapping[str, Mapping[str, int]],
) -> Figure:
    """Each site's importances as a heat map: a feature a row, a component a column.

    **Arguments:**

    - `matrices`: `[n_features, C]` by site, fed one feature at a time.
    - `orders`: the order of columns by site. Of a site with many, those at the end that are faint everywhere
      are left out, and counted.
    - `errors`: errors by site and tolerance, for the titles; sites may be missing.
    """
    sites, note = _first(matrices)
    kept = {site: _kept_columns(matrices[site][:, orders[site]]) for site in sites}
    widest = max(kept.values())
    across = 1 if widest > 60 else min(len(sites), 2 if widest > 12 else 3)
    down = math.ceil(len(sites) / across)
    tallest = max(matrices[site].shape[0] for site in sites)
    height = 1.1 + min(max(0.22 * tallest, 1.4), 4.5)
    figure = _figure(
        (min(max(0.26 * widest, 3.2), 11.0) * across + 0.9, height * down + 0.5),
        f"Causal importance, one feature at a time{note}",
    )
    panels = _panels(figure, down, across, len(sites))
    image: Any = None
    for axes, site in zip(panels, sites, strict=True):
        order = orders[site][: kept[site]]
        ordered = matrices[site][:, order]
        hidden = matrices[site].shape[1] - kept[site]
        image = axes.imshow(ordered, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        _title(axes, site, _errors_in_words(errors.get(site)))
        more = f"; {hidden} more never above {FAINT}" if hidden else ""
        _label_columns(axes, [str(c) for c in order], f"component (reordered{more})")
        _label_rows(axes, [str(f) for f in range(ordered.shape[0])], "feature")
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.015)
    bar.set_label("causal importance", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def directions(
    V: Mapping[str, Matrix],
    U: Mapping[str, Matrix],
    weights: Mapping[str, Matrix],
    alive: Mapping[str, Bool[np.ndarray, " _"]],
) -> Figure:
    """Sites with a side of two dimensions: the vector of each feature in the target, and in the components beside it.

    A component gives each feature a vector; drawn is the longest, in that feature's colour and with the component's
    number if the component is alive, and in grey if not. Very short ones go unnumbered.

    **Errors:** `ValueError` where no site has such a side; see `factors` for others.
    """
    flat = {site: weight for site, weight in weights.items() if min(weight.shape) == 2}
    if not flat:
        raise ValueError("no site has a side of two dimensions; draw its factors instead")
    sites, note = _first(flat)
    figure = _figure(
        (7.4, 3.7 * len(sites) + 0.5),
        f"Directions of features: target, components (grey: not alive){note}",
    )
    panels = _panels(figure, len(sites), 2, 2 * len(sites))
    for row, site in enumerate(sites):
        features_in = weights[site].shape[1] == 2
        vectors = weights[site] if features_in else weights[site].T
        shares, ways = (V[site], U[site]) if features_in else (U[site].T, V[site].T)
        strongest = np.argmax(np.abs(shares), axis=0)
        of_components = shares[strongest, np.arange(shares.shape[1])][:, None] * ways
        longest = max(np.abs(vectors).max(), np.abs(of_components).max(), 1e-6)
        reach = 1.45 * float(longest)
        target, components = panels[2 * row], panels[2 * row + 1]
        colours = _colours(len(vectors))
        for feature, vector in enumerate(vectors):
            _arrow(target, vector, colours[feature], f"{feature}", reach)
        for component in np.argsort(alive[site], kind="stable"):
            lives = bool(alive[site][component])
            colour = colours[strongest[component]] if lives else GREY
            vector = of_components[component]
            legible = lives and np.linalg.norm(vector) > 0.25 * reach
            name = f"{strongest[component]} (c{component})" if legible else ""
            _arrow(components, vector, colour, name, reach)
        _title(target, site, f"{len(vectors)} vectors of the target")
        count = f"{int(np.sum(alive[site]))} of {len(alive[site])}"
        _title(components, site, f"{count} components alive")
        for axes in (target, components):
            _square(axes, reach, "hidden dimension 0", "hidden dimension 1")
    return figure


def factors(
    V: Mapping[str, Matrix],
    U: Mapping[str, Matrix],
    weights: Mapping[str, Matrix],
    orders: Mapping[str, Int[np.ndarray, " _"]],
) -> Figure:
    """Each site's weight beside the components' sum, and the V and U that make it, as heat maps.

    Components come in the given order, and each is scaled to share its length equally between its V and its U.
    """
    sites, note = _first(weights)
    figure = _figure((11.5, 2.7 * len(sites) + 0.5), f"Weights and their components{note}")
    panels = _panels(figure, len(sites), 4, 4 * len(sites))
    for row, site in enumerate(sites):
        left, right = V[site][:, orders[site]], U[site][orders[site]]
        lengths = np.linalg.norm(left, axis=0), np.linalg.norm(right, axis=1)
        balance = np.sqrt(
            np.divide(lengths[1], lengths[0], out=np.ones_like(lengths[0]), where=lengths[0] > 0)
        )
        inverse = np.divide(1.0, balance, out=np.zeros_like(balance), where=balance > 0)
        shown = (
            ("target W", weights[site], "output", "input"),
            ("sum of components", V[site] @ U[site], "output", "input"),
            ("V", left * balance, "component (reordered)", "input"),
            ("U", right * inverse[:, None], "output", "component (reordered)"),
        )
        reach = max(float(np.abs(matrix).max()) for _, matrix, _, _ in shown) or 1.0
        here = panels[4 * row : 4 * row + 4]
        for axes, (name, matrix, across, down) in zip(here, shown, strict=True):
            image = axes.imshow(matrix, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
            _title(axes, site if name == "target W" else "", name)
            axes.set_xlabel(across, fontsize=8)
            axes.set_ylabel(down, fontsize=8)
            _whole_ticks(axes)
        bar = figure.colorbar(image, ax=here, fraction=0.02, pad=0.01)  # pyright: ignore[reportPossiblyUnboundVariable]
        bar.set_label("weight", fontsize=8)
        bar.ax.tick_params(labelsize=8)
    return figure


def importance_histograms(histograms: Mapping[str, Vector]) -> Figure:
    """How importances are distributed over all positions and components of each site, on a log scale.

    **Arguments:**

    - `histograms`: the share in each of equal parts of [0, 1], by site.
    """
    sites, note = _first(histograms)
    across = min(len(sites), 4)
    down = math.ceil(len(sites) / across)
    figure = _figure((3.4 * across + 0.4, 2.6 * down + 0.5), f"Distribution of importances{note}")
    lowest = min(
        (float(h[h > 0].min()) for h in histograms.values() if np.any(h > 0)), default=1e-4
    )
    for axes, site in zip(_panels(figure, down, across, len(sites)), sites, strict=True):
        share = histograms[site]
        edges = np.linspace(0.0, 1.0, len(share) + 1)
        axes.bar(edges[:-1], share, width=np.diff(edges), align="edge", color=BLUE, linewidth=0)
        _log_scale(axes)
        axes.set_ylim(lowest / 3, 1.5)
        axes.set_xlim(0.0, 1.0)
        middle = float(share[1:-1].sum())
        _title(axes, site, f"{100 * middle:.2g} % within {edges[1]:.2g} to {edges[-2]:.2g}")
        _labels(axes, "causal importance", "share of (position, component)")
    return figure


def per_component(
    values: Mapping[str, Vector],
    title: str,
    unit: str,
    alive: Mapping[str, Bool[np.ndarray, " _"]],
) -> Figure:
    """One number for each component, sorted from the largest, on a log scale; components that are not alive in grey.

    **Arguments:**

    - `values`: `[C]` by site.
    - `title`, `unit`: what they are.
    """
    sites, note = _first(values)
    across = min(len(sites), 4)
    down = math.ceil(len(sites) / across)
    figure = _figure((3.4 * across + 0.4, 2.6 * down + 0.5), f"{title}{note}")
    positive = [float(v[v > 0].min()) for v in values.values() if np.any(v > 0)]
    floor = max(min(positive, default=1e-6) / 3, 1e-8)
    top = max((float(v.max()) for v in values.values()), default=1.0)
    for axes, site in zip(_panels(figure, down, across, len(sites)), sites, strict=True):
        order = np.argsort(-values[site], kind="stable")
        ranks, heights = np.arange(1, len(order) + 1), values[site][order]
        lives = alive[site][order]
        for which, colour in ((lives, BLUE), (~lives, GREY)):
            drawn = which & (heights > 0)
            axes.plot(ranks[drawn], heights[drawn], "o", color=colour, markersize=4)
            zero = which & (heights <= 0)
            axes.plot(ranks[zero], np.full(int(zero.sum()), floor), "v", color=colour, markersize=4)
        _log_scale(axes)
        axes.set_ylim(floor / 1.6, 3.0 * max(top, floor))
        axes.set_xlim(0.3, len(order) + 0.7)
        zeros = int(np.sum(heights <= 0))
        words = f"{int(lives.sum())} of {len(order)} alive"
        _title(axes, site, words + (f", {zeros} at exactly 0 (▾)" if zeros else ""))
        _labels(axes, "component, by rank", unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


# Series that lie on one another still show, each in a dash of its own.
STYLES = ("-", (0, (5, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))


def curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Metrics over training, as `metrics.jsonl` holds them: one panel a kind, and none for kinds that are missing.

    **Arguments:**

    - `records`: each with its `step`; an evaluation's metrics begin with `eval/`.

    **Errors:** `ValueError` where there is nothing to draw.
    """
    found: list[tuple[str, str, str, list[str]]] = []
    for title, prefix, unit in PANELS:
        names = dict.fromkeys(
            name for record in records for name in record if name.startswith(prefix)
        )
        if names:
            found.append((title, prefix, unit, list(names)))
    if not found:
        raise ValueError("no record holds a metric that is drawn; is metrics.jsonl empty?")
    across = min(len(found), 2)
    down = math.ceil(len(found) / across)
    figure = _figure((5.6 * across + 0.2, 3.1 * down + 0.4), "Training")
    for axes, (title, prefix, unit, names) in zip(
        _panels(figure, down, across, len(found)), found, strict=True
    ):
        highest, lowest = 0.0, math.inf
        for index, name in enumerate(names):
            points = [(r["step"], r[name]) for r in records if _is_number(r.get(name))]
            if not points:
                continue
            steps, heights = np.array(points, dtype=float).T
            total = name == f"{prefix}total"
            axes.plot(
                steps,
                heights,
                label=name.removeprefix(prefix),
                color=INK if total else _series(index, len(names)),
                linewidth=2.0 if total else 1.4,
                linestyle="-" if total else STYLES[index % len(STYLES)],
                marker="o" if len(steps) < 3 else "",
                markersize=3,
            )
            highest, lowest = max(highest, heights.max()), min(lowest, heights.min())
        if lowest > 0 and highest > 20 * lowest:
            _log_scale(axes)
        elif lowest >= 0:
            axes.set_ylim(bottom=0.0)
        _title(axes, title, "")
        _labels(axes, "step", unit)
        axes.legend(
            fontsize=7,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
            ncols=1 + len(names) // 14,
        )
    return figure


def draw(
    result: Result,
    decomposition: Decomposition,
    target: Target,
    records: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Figure]:
    """Every figure that an evaluation and a run's records have the numbers for, by file name without its ending.

    **Arguments:**

    - `result`: of an evaluation; figures whose metrics it did not run are left out.
    - `records`: of `metrics.jsonl`.
    """
    arrays, report = result.arrays, result.report
    sites = decomposed_sites(decomposition, target)
    of_all = jax.device_get((decomposition.components, target.weights()))
    V, U, weights = (
        {site: np.asarray(of[site]) for site in sites}
        for of in (of_all[0].V, of_all[0].U, of_all[1])
    )
    orders = arrays.get("order") or {site: np.arange(V[site].shape[1]) for site in sites}
    figures: dict[str, Figure] = {}
    if "single_features" in arrays:
        errors = report.get("identity_ci_error", {})
        figures["importances"] = importances(arrays["single_features"], orders, errors)
    if "alive" in arrays and any(min(weight.shape) == 2 for weight in weights.values()):
        figures["directions"] = directions(V, U, weights, arrays["alive"])
    figures["factors"] = factors(V, U, weights, orders)
    if "mean_importance" in arrays:
        alive = arrays["alive"]
        figures["mean_importance"] = per_component(
            arrays["mean_importance"], "Mean importance of each component", "mean importance", alive
        )
        thresholds = list(next(iter(arrays["density"].values())))
        above = thresholds[-1]
        figures["activation_density"] = per_component(
            {site: of[above] for site, of in arrays["density"].items()},
            "How often each component is active",
            f"share of positions above {above}",
            alive,
        )
    if "histogram" in arrays:
        figures["importance_histograms"] = importance_histograms(arrays["histogram"])
    if records:
        figures["curves"] = curves(records)
    return figures


def save(figures: Mapping[str, Figure], directory: str | os.PathLike[str]) -> list[Path]:
    """Writes each figure as `<name>.png`, whole or not at all: an older picture stays until the new one is complete.

    **Returns:** the paths written.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        partial = folder / f".{name}.png.partial"
        with partial.open("wb") as file:
            figure.savefig(file, format="png", dpi=DPI)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        paths.append(path)
    return paths


def _figure(size: tuple[float, float], title: str) -> Figure:
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=12, color=INK)
    return figure


def _first(by_site: Mapping[str, Any]) -> tuple[list[str], str]:
    """The sites to draw, and what to say of those that are left out."""
    sites = list(by_site)
    left = len(sites) - MAX_SITES
    return sites[:MAX_SITES], (f" (first {MAX_SITES} of {len(sites)} sites)" if left > 0 else "")


def _panels(figure: Figure, down: int, across: int, used: int) -> list[Axes]:
    """The first `used` panels of a grid, row by row; the rest stay blank."""
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes in grid[used:]:
        axes.set_axis_off()
    for axes in grid[:used]:
        axes.tick_params(labelsize=8, color=GREY)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("bottom", "left"):
            axes.spines[side].set_color(GREY)
    return grid[:used]


def _kept_columns(ordered: Matrix) -> int:
    """How many columns to show: all of a few, else up to the last that matters, and one for each row at least."""
    rows, columns = ordered.shape
    if columns <= MAX_COLUMNS:
        return columns
    matter = np.flatnonzero(ordered.max(axis=0) > FAINT)
    return min(columns, max(rows, int(matter[-1]) + 1 if matter.size else 0))


def _title(axes: Axes, name: str, words: str) -> None:
    axes.set_title(f"{name}: {words}" if name and words else name or words, fontsize=9, loc="left")


def _log_scale(axes: Axes) -> None:
    """Logarithmic, without minor ticks: they take longer to lay out than all else in the figure."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())


def _labels(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def _errors_in_words(errors: Mapping[str, int] | None) -> str:
    if not errors:
        return ""
    return "errors " + ", ".join(f"{count} at {tolerance}" for tolerance, count in errors.items())


def _label_columns(axes: Axes, labels: Sequence[str], name: str) -> None:
    axes.set_xlabel(name, fontsize=9)
    if len(labels) <= MAX_LABELS:
        axes.set_xticks(range(len(labels)), labels, fontsize=7)
    else:
        axes.set_xticks([])


def _label_rows(axes: Axes, labels: Sequence[str], name: str) -> None:
    axes.set_ylabel(name, fontsize=9)
    if len(labels) <= MAX_LABELS:
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _whole_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _square(axes: Axes, reach: float, x: str, y: str) -> None:
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.axhline(0.0, color="#e4e4e4", linewidth=0.8, zorder=0)
    axes.axvline(0.0, color="#e4e4e4", linewidth=0.8, zorder=0)
    _labels(axes, x, y)


def _arrow(axes: Axes, vector: Vector, colour: Any, name: str, reach: float) -> None:
    length = float(np.linalg.norm(vector))
    if length < 0.01 * reach:
        axes.plot([0.0], [0.0], "o", color=colour, markersize=3)
        return
    x, y = float(vector[0]), float(vector[1])
    axes.annotate(
        "",
        xy=(x, y),
        xytext=(0.0, 0.0),
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.6, "shrinkA": 0, "shrinkB": 0},
    )
    out = 1.0 + 0.06 * reach / length
    side = "left" if x > 0.4 * length else "right" if x < -0.4 * length else "center"
    rise = "bottom" if y > 0.7 * length else "top" if y < -0.7 * length else "center"
    axes.text(out * x, out * y, name, color=colour, fontsize=8, ha=side, va=rise)


def _colours(count: int) -> list[Any]:
    palette: Colormap = mpl.colormaps["tab10" if count <= 10 else "turbo"]
    return [palette(i) if count <= 10 else palette(i / (count - 1)) for i in range(count)]


def _series(index: int, count: int) -> Any:
    palette: Colormap = mpl.colormaps["tab10" if count <= 10 else "tab20"]
    return palette(index % (10 if count <= 10 else 20))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
