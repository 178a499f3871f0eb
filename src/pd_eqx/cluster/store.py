"""The clusters of a harvest on disk; see docs/cluster.md.

The files belong together. All are written beside the old ones first; then `clusters.json` goes, the tables take their
places, and the new one comes last. So where it is, the others are of the same clustering; where a write was cut off it
is missing, or all is as it was.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pd_eqx.cluster.ensemble import Clustering, cluster
from pd_eqx.harvest.store import HarvestError, read_harvest

FORMAT = 1
ABOUT = "clusters.json"
_WRITING = ".writing"


def cluster_harvest(
    harvest: Path, to: Path, alpha: float, members: int, seed: int = 0
) -> dict[str, Any]:
    """Clusters the components of a harvest that fire in its sampled positions, and writes what came out.

    **Arguments:**

    - `harvest`: its directory. `to`: the folder of the clusters.
    - `alpha`, `members`, `seed`: see `pd_eqx.cluster.ensemble.cluster`.

    **Returns:** what `clusters.json` holds.

    **Errors:** `HarvestError` where there is no harvest, or nothing in it ever fired; `ValueError` for such an `alpha`;
    `OSError` where `to` cannot be written.
    """
    read = read_harvest(harvest)
    tally, names = read.tally, read.source.names()
    components, columns = np.unique(tally.patterns_firing["component"], return_inverse=True)
    if not components.size:
        raise HarvestError(
            f"{harvest}: no component fires at any of its {len(tally.patterns['priority'])} sampled positions; harvest "
            "more batches, or with a lower --threshold"
        )
    to.mkdir(parents=True, exist_ok=True)  # what cannot be written is told before the work
    places = np.searchsorted(tally.patterns["priority"], tally.patterns_firing["priority"])
    active = np.zeros((len(tally.patterns["priority"]), components.size), bool)
    active[places, columns] = True
    found = cluster(active, alpha, members, seed)
    cost = found.tree.cost
    about = {
        "format": FORMAT,
        "harvest": str(harvest),
        "product": read.source.product,
        "alpha": alpha,
        "members": members,
        "seed": seed,
        "positions": len(active),
        "components": components.tolist(),
        "clusters": int(found.clusters.max()) + 1,
        "stop": found.tree.stop,
        "cost_alone": cost[0],
        "cost": cost[found.tree.stop],
        "agreement": found.agreement,
    }
    _write(to, about, found, components, names)
    return about


def _write(
    to: Path,
    about: dict[str, Any],
    found: Clustering,
    components: np.ndarray,
    names: list[tuple[str, int]],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    staged = to / _WRITING
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    cluster_of = np.full(len(names), -1, np.int32)
    cluster_of[components] = found.clusters
    stability = np.full(len(names), np.nan)
    stability[components] = found.stability
    sizes = np.bincount(found.clusters)
    tables = {
        "clusters": {
            "component": np.arange(len(names), dtype=np.int32),
            "site": pa.array([site for site, _ in names], pa.string()),
            "index": np.array([index for _, index in names], np.int32),
            "cluster": cluster_of,
            "size": np.where(cluster_of < 0, 0, sizes[cluster_of]).astype(np.int32),
            "stability": stability,
        },
        "merges": {
            "first": found.tree.pairs[:, 0],
            "second": found.tree.pairs[:, 1],
            "size": found.tree.sizes,
            "change": found.tree.change,
            "cost": found.tree.cost[1:],
        },
    }
    for name, table in tables.items():
        pq.write_table(pa.table(table), staged / f"{name}.parquet", compression="zstd")
    np.save(staged / "linkage.npy", found.tree.linkage())
    (staged / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    (to / ABOUT).unlink(missing_ok=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == ABOUT):
        path.replace(to / path.name)
    staged.rmdir()
