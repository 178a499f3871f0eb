"""Draws the pictures of these pages from runs on this machine.

    make demo demo-tiny-lm                                 # runs/tms_5-2, runs/tiny_lm; the latter is harvested
    pd-eqx harvest runs/tms_5-2 --batches 20
    pd-eqx cluster runs/tms_5-2/harvest
    pd-eqx cluster runs/tiny_lm/harvest
    pd-eqx export runs/tms_5-2 --to runs/tms_5-2-export
    pd-eqx import-spd DIR/model_10000.pth --run-dir runs/imported    # of goodfire-ai/spd; see import-spd.md
    pd-eqx interpret runs/tiny_lm/harvest --endpoint URL --model NAME --yes
    python docs/draw.py                                    # or some: python docs/draw.py open cluster

Pictures whose runs are not there are left as they are, and named.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

INTO = Path(__file__).parent / "pictures"
TOY, TEXT = Path("runs/tms_5-2"), Path("runs/tiny_lm")
EXPORT, IMPORTED = Path("runs/tms_5-2-export"), Path("runs/imported")
THRESHOLD = 0.1
BLUE, RED, GREY = "#2f6fad", "#c0453b", "#9a9a9a"


def draw_open() -> None:
    """What `causal_importances` and `ablate` answer about a toy."""
    import pd_eqx

    run = pd_eqx.open_run(_there(TOY))
    count = run.target.weights()["linear1"].shape[0]
    inputs = 0.75 * np.eye(count, dtype=np.float32)  # one feature at a time
    importances = np.asarray(run.causal_importances(inputs).lower["linear1"])
    order = np.argsort(-importances.max(axis=0), kind="stable")[: 2 * count]
    gone = int(order[0])
    changed = np.asarray(run.output(inputs) - run.ablate(inputs, {"linear1": [gone]}))

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), width_ratios=(2, 1))
    image = left.imshow(importances[:, order], cmap="viridis", vmin=0, vmax=1, aspect="auto")
    left.set_xticks(range(order.size), order)
    left.set_yticks(range(count))
    left.set(xlabel=f"component of linear1 ({order.size} of {importances.shape[1]})")
    left.set(ylabel="the feature that is fed", title="causal importance")
    figure.colorbar(image, ax=left)
    most = np.abs(changed).max()
    image = right.imshow(changed, cmap="RdBu_r", vmin=-most, vmax=most)
    right.set_xticks(range(count))
    right.set_yticks(range(count))
    right.set(xlabel="output", title=f"what is lost without component {gone}")
    figure.colorbar(image, ax=right)
    _save(figure, "open")


def draw_harvest() -> None:
    """Densities, activations and tokens, from the tables of a language model's harvest."""
    import pyarrow.parquet as pq

    harvest = _there(TEXT / "harvest")
    components = pq.read_table(harvest / "components.parquet").to_pylist()
    about = json.loads((harvest / "harvest.json").read_text())
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), width_ratios=(3, 3, 2))
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(about["sites"])))
    for site, colour in zip(about["sites"], colours, strict=True):
        density = np.array([row["density"] for row in components if row["site"] == site["name"]])
        name = site["name"].removeprefix("layers.")
        left.plot(
            np.arange(1, density.size + 1), np.sort(density)[::-1], color=colour, lw=1, label=name
        )
    left.legend(fontsize=6, ncols=2)
    left.set(yscale="log", xlabel="components of a site, by rank", ylabel="fires at this share")
    left.set(title="firing density")

    chosen = _telling(harvest, components)
    edges = np.array(about["activation_edges"])
    counts = np.array(components[chosen]["activation_histogram"])
    filled = np.flatnonzero(counts)
    bars = np.arange(filled[0], filled[-1] + 1)
    middle.bar(bars, counts[bars], color=BLUE)
    # Between the two bins at 0, edges are powers of two.
    told = np.unique(np.linspace(bars[0], bars[-1], 5).astype(int))
    powers = [
        f"{np.sign(edges[e]):+.0f}"[0] + f"$2^{{{np.log2(abs(edges[e])):.0f}}}$" for e in told
    ]
    middle.set_xticks(told + 0.5, powers)
    name = f"{components[chosen]['site']} / {components[chosen]['index']}"
    middle.set(xlabel="activation at a firing, by octaves", ylabel="firings", title=name)

    tokens = pq.read_table(
        harvest / "tokens.parquet",
        filters=[("component", "==", chosen), ("direction", "==", "responds")],
    ).to_pylist()
    best = sorted(tokens, key=lambda row: -row["pmi"] * row["count"])[:10][::-1]
    text = pq.read_table(harvest / "vocabulary.parquet").to_pylist()
    words = {row["token"]: row["text"] for row in text}
    right.barh(range(len(best)), [row["pmi"] for row in best], color=BLUE)
    right.set_yticks(range(len(best)), [repr(words[row["token"]]) for row in best], fontsize=8)
    right.set(xlabel="bits", title="tokens it responds to")
    _save(figure, "harvest")


def _telling(harvest: Path, components: list[dict[str, Any]]) -> int:
    """The component whose tokens say most of it, of those that fire at 0.5 to 5 % of positions."""
    import pyarrow.parquet as pq

    table = pq.read_table(harvest / "tokens.parquet", filters=[("direction", "==", "responds")])
    component = table["component"].to_numpy()
    bits = table["pmi"].to_numpy() * table["count"].to_numpy()
    told = np.bincount(component, np.maximum(bits, 0), len(components))
    fired = np.array([row["fired"] for row in components])
    density = np.array([row["density"] for row in components])
    told = told / np.maximum(fired, 1)
    return int(np.argmax(np.where((density > 0.005) & (density < 0.05), told, -1)))


def draw_cluster() -> None:
    """A toy's dendrogram, and a language model's cost by mergers."""
    import pyarrow.parquet as pq
    from scipy.cluster.hierarchy import dendrogram

    toy = _there(TOY / "harvest" / "clusters")
    about = json.loads((toy / "clusters.json").read_text())
    rows = pq.read_table(toy / "clusters.parquet").to_pylist()
    names = [f"{rows[c]['site']} / {rows[c]['index']}" for c in about["components"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(3, 2))
    dendrogram(
        np.load(toy / "linkage.npy"),
        labels=names,
        ax=left,
        color_threshold=about["stop"] + 0.5,
        above_threshold_color=GREY,
        leaf_rotation=60,
    )
    left.axhline(about["stop"] + 0.5, color=RED, ls=":", lw=1)
    left.set(ylabel="merger", title=f"{TOY.name}: {about['clusters']} clusters below the line")

    text = _there(TEXT / "harvest" / "clusters")
    about = json.loads((text / "clusters.json").read_text())
    merges = pq.read_table(text / "merges.parquet")
    cost = np.concatenate([[about["cost_alone"]], merges["cost"].to_numpy()]) / about["positions"]
    right.plot(cost, color=BLUE)
    right.axvline(about["stop"], color=RED, ls=":", lw=1)
    right.annotate(
        f" {about['clusters']} clusters of\n {len(about['components'])} components",
        (about["stop"], cost.max()),
        va="top",
        ha="right" if about["stop"] > cost.size / 2 else "left",
    )
    right.set(
        xlabel="mergers", ylabel="bits a position", title=f"{TEXT.name}: the cost", ylim=(0, None)
    )
    _save(figure, "cluster")


def draw_interpret() -> None:
    """How the scores of labels are distributed."""
    import pyarrow.parquet as pq

    folder = _there(TEXT / "harvest" / "labels")
    about = json.loads((folder / "labels.json").read_text())
    rows = pq.read_table(folder / "labels.parquet").to_pylist()
    scored = sorted((row for row in rows if row["score"] is not None), key=lambda row: row["score"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), width_ratios=(2, 3))
    left.hist([row["score"] for row in scored], np.linspace(0, 1, 13), color=BLUE)
    left.axvline(0.5, color=RED, ls=":", lw=1)
    left.set(xlabel="score; 0.5 is chance", ylabel="labels", title=about["model"])
    shown = [*scored[:4], *scored[-6:]]
    right.barh(range(len(shown)), [row["score"] for row in shown], color=BLUE)
    right.axvline(0.5, color=RED, ls=":", lw=1)
    labels = [f"{row['site']} / {row['index']}  {row['label'][:48]}" for row in shown]
    right.set_yticks(range(len(shown)), labels, fontsize=7)
    right.set(xlim=(0, 1), title="the worst and the best")
    _save(figure, "interpret")


def draw_export() -> None:
    """A weight and what it is the sum of, from the files of an export alone."""
    from safetensors.numpy import load_file

    folder = _there(EXPORT)
    arrays, target = (load_file(folder / f"{n}.safetensors") for n in ("decomposition", "target"))
    V, U, W = (
        arrays["components/V/linear1"],
        arrays["components/U/linear1"],
        target["weights/linear1"],
    )
    size = np.linalg.norm(V, axis=0) * np.linalg.norm(U, axis=1)
    alive = np.sort(np.argsort(-size)[: W.shape[0]])
    parts = [("W", W), *((f"component {c}", np.outer(V[:, c], U[c])) for c in alive)]
    rest = W - sum(part for _, part in parts[1:])
    parts.append((f"the other {len(size) - alive.size}\nand the delta", rest))
    figure, axes = plt.subplots(1, len(parts), figsize=(10, 2.6))
    most = np.abs(W).max()
    for place, (axis, (name, part)) in enumerate(zip(axes, parts, strict=True)):
        axis.imshow(part, cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set_title(name, fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
        sign = {0: "=", len(parts) - 1: ""}.get(place, "+")
        axis.text(1.12, 0.5, sign, transform=axis.transAxes, fontsize=14, va="center")
    axes[0].set(ylabel="feature", xlabel="hidden")
    _save(figure, "export")


def draw_imported() -> None:
    """The importances of a decomposition that was trained elsewhere."""
    import pd_eqx

    run = pd_eqx.open_run(_there(IMPORTED))
    count = run.target.weights()["linear1"].shape[0]
    found = run.causal_importances(0.75 * np.eye(count, dtype=np.float32)).lower
    figure, axes = plt.subplots(1, len(found), figsize=(9, 2.6))
    for axis, (site, importances) in zip(axes, found.items(), strict=True):
        image = axis.imshow(np.asarray(importances), cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axis.set(xlabel="component", ylabel="the feature that is fed", title=site)
        axis.set_yticks(range(count))
    figure.colorbar(image, ax=axes)
    _save(figure, "import-spd", tight=False)


PICTURES: dict[str, Callable[[], None]] = {
    "open": draw_open,
    "harvest": draw_harvest,
    "cluster": draw_cluster,
    "interpret": draw_interpret,
    "export": draw_export,
    "import-spd": draw_imported,
}


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    return path


def _save(figure: Any, name: str, *, tight: bool = True) -> None:
    if tight:
        figure.tight_layout()
    INTO.mkdir(exist_ok=True)
    figure.savefig(INTO / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    print(f"saved  {INTO / name}.png ({(INTO / f'{name}.png').stat().st_size >> 10} KiB)")


def main() -> None:
    """Draws those that were named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], default=[])
    for name in parser.parse_args().names or PICTURES:
        try:
            PICTURES[name]()
        except FileNotFoundError as missing:
            print(f"left   {name}: {missing}")


if __name__ == "__main__":
    main()
