"""Seconds to save a state and to restore it, against what else could be used.

    python benchmarks/checkpoint_io.py --mib 1024

Every save is durable when it returns (fsync), every restore ends with arrays on their device. `pd_eqx` computes and
checks fingerprints; `not checked` restores with `verify=False`; nothing else here can notice a flipped bit. `orbax, our
files` writes the very files that `pd_eqx` writes, by orbax alone: it is the floor under `pd_eqx`. `save` is the first in a
fresh process, compilation included; `again` the second. `warm` and `cold` are restores, in fresh processes.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from harness import forget, parse, print_table, run_arm, scratch, timed

WAYS = (
    "pd_eqx",
    "pd_eqx, not checked",
    "orbax, our files",
    "orbax, default",
    "equinox",
    "safetensors",
    "npy",
)
COLUMNS = ("save", "again", "warm", "cold")


def _flush(path: Path) -> None:
    for place in (path, *path.rglob("*")):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _save(way: str, path: Path, step: int, state: Any) -> None:
    import equinox as eqx
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    import safetensors.numpy

    import states
    from pd_eqx.checkpoint import CheckpointStore, items

    place = path / str(step)
    named = {f"{index}": leaf for index, leaf in enumerate(jax.tree.leaves(state))}
    match way:
        case "pd_eqx" | "pd_eqx, not checked":
            with CheckpointStore(path) as store:
                store.save(step, state)
        case "orbax, our files":
            items.write(place, {name: getattr(state, name) for name in states.ITEMS})
            _flush(place)
        case "orbax, default":
            with ocp.CheckpointManager(path) as manager:
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
            _flush(place)
        case "equinox":
            place.mkdir()
            eqx.tree_serialise_leaves(place / "state.eqx", state)
            _flush(place)
        case "safetensors":
            place.mkdir()
            arrays = {name: np.asarray(leaf) for name, leaf in named.items()}
            safetensors.numpy.save_file(arrays, place / "state.safetensors")
            _flush(place)
        case _:
            place.mkdir()
            for name, leaf in named.items():
                np.save(place / f"{name}.npy", np.asarray(leaf))
            _flush(place)


def _restore(way: str, path: Path, like: Any) -> Any:
    import equinox as eqx
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    import safetensors.numpy

    import states
    from pd_eqx.checkpoint import CheckpointStore

    place = path / "2"
    where = like.product[0].sharding
    count = len(jax.tree.leaves(like))

    def placed(arrays: list[np.ndarray]) -> Any:
        return jax.device_put(arrays, where)

    match way:
        case "pd_eqx" | "pd_eqx, not checked":
            with CheckpointStore(path, read_only=True) as store:
                return store.restore(like, 2, verify=way == "pd_eqx")
        case "orbax, our files":
            return states.plain_restore(place, like)
        case "orbax, default":
            with ocp.CheckpointManager(path) as manager:
                return manager.restore(2, args=ocp.args.StandardRestore(like))
        case "equinox":
            return eqx.tree_deserialise_leaves(place / "state.eqx", like)
        case "safetensors":
            arrays = safetensors.numpy.load_file(place / "state.safetensors")
            return placed([arrays[f"{index}"] for index in range(count)])
        case _:
            return placed([np.load(place / f"{index}.npy") for index in range(count)])


def save(mib: int, leaves: int, path: str, way: str) -> dict[str, Any]:
    """The first and the second save of a process."""
    import states

    state = states.fresh(states.abstract(mib, leaves))
    first, again = (timed(lambda step=step: _save(way, Path(path), step, state)) for step in (1, 2))
    return {"save": first[0], "again": again[0]}


def restore(mib: int, leaves: int, path: str, way: str, cold: bool) -> dict[str, Any]:
    """The first restore of a process."""
    import jax

    import states

    like = states.abstract(mib, leaves)
    if cold:
        forget(Path(path))
    seconds, _ = timed(lambda: jax.block_until_ready(_restore(way, Path(path), like)))
    return {"seconds": seconds}


def measure(mib: int, leaves: int, way: str) -> dict[str, float]:
    """One row, once."""
    with scratch() as folder:
        store = folder / "store"
        store.mkdir()
        common: dict[str, Any] = {"mib": mib, "leaves": leaves, "path": str(store), "way": way}
        found = run_arm(__file__, "save", **common)
        for name in ("warm", "cold"):
            ended = run_arm(__file__, "restore", **common, cold=name == "cold")
            found[name] = ended["seconds"]
    return found


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mib", type=int, default=1024, help="size of the state")
        parser.add_argument("--leaves", type=int, nargs="+", default=[16, 160])
        parser.add_argument("--repeats", type=int, default=3)

    arguments = parse(__doc__, {"save": save, "restore": restore}, add)
    rows: list[dict[str, Any]] = []
    for leaves in arguments.leaves:
        # One repeat of every way after another, so that a busy minute of the machine hits all alike.
        repeats = [
            {way: measure(arguments.mib, leaves, way) for way in WAYS}
            for _ in range(arguments.repeats)
        ]
        for way in WAYS:
            row: dict[str, Any] = {"leaves": leaves, "way": way}
            for column in COLUMNS:
                row[column] = [repeat[way][column] for repeat in repeats]
            rows.append(row)
    if arguments.json:
        print(json.dumps({"mib": arguments.mib, "rows": rows}, indent=2))
        return
    for leaves in arguments.leaves:
        print(f"{arguments.mib} MiB in {leaves} leaves; seconds, medians of {arguments.repeats}")
        told = [
            [row["way"], *(statistics.median(row[column]) for column in COLUMNS)]
            for row in rows
            if row["leaves"] == leaves
        ]
        print_table(["way", *COLUMNS], told)


if __name__ == "__main__":
    main()
