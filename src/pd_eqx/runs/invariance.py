"""Whether a run's numbers depend on how many devices it is on.

They should not: what is averaged over a batch is averaged over all of it, wherever its parts lie. A sum in place of a
mean, or a logarithm taken of each part, gives numbers that are each plausible and none the same. So the same run is made
on several numbers of devices, in fresh processes, and everything that it recorded and saved is compared with what it was
on the first of them.

Sums in another order differ in the last bits, so the comparison has a bound, and what turns a last bit into a whole
step has no business in it: signs of gradients, and moments divided by themselves where gradients are nearly zero.

The state is compared twice. Kind by kind (V of all sites, or an adversary's first moments), what is held is compared as
one vector, by its own size, and the bound is on this. Leaf by leaf, what is told is a difference by the size of what was
summed: a first moment is an average of gradients whose signs may alternate, so that a single number of it is nearly zero
by chance while its rounding is not, and it is measured by the root of its second moment, the size of those gradients,
where that is larger; it is by that that an update divides it.
"""

import dataclasses
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.directory import RunDirectory
from pd_eqx.runs.tracking import read_metrics

BOUND = 1e-4
# What differs between two runs that did the same.
_OF_THE_CLOCK = frozenset({"seconds"})
_MU = re.compile(r"\.mu(?=[.\[])")
# The command line of this interpreter, whose package may be another one than an installed command's.
_COMMAND = (sys.executable, "-c", "from pd_eqx.cli import main; main()")


class InvarianceError(RuntimeError):
    """A run that was to be compared did not come to its end; the message has its last words."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far a number is from the first run's: `|a − b| / |a|`, of an array by its norm.

    - `name`: the metric, or the leaf or the kind of leaves of the final state; `step`: where it is largest.
    """

    name: str
    step: int
    relative: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run on so many devices beside the first, the worst differences first.

    - `kinds`, `leaves`: of the final state.
    """

    devices: int
    metrics: tuple[Difference, ...]
    kinds: tuple[Difference, ...]
    leaves: tuple[Difference, ...]

    @property
    def worst(self) -> Difference:
        """The largest relative difference of a metric or of a kind of leaves."""
        return max((*self.metrics, *self.kinds), key=lambda found: found.relative)


def run_on(
    devices: int, config: Path, overrides: Sequence[str], run_dir: Path, command: Sequence[str]
) -> None:
    """Trains, in a process of its own, on so many simulated devices.

    **Errors:** `InvarianceError` unless the run was finished.
    """
    arguments = ["train", str(config), "--run-dir", str(run_dir), "--simulate", str(devices)]
    ended = subprocess.run(
        [*command, *arguments, *overrides], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        said = "\n".join(ended.stderr.strip().splitlines()[-12:])
        raise InvarianceError(
            f"the run on {devices} devices ended with status {ended.returncode}:\n{said}"
        )


def invariance(
    config: Path,
    overrides: Sequence[str],
    devices: Sequence[int],
    folder: Path,
    *,
    command: Sequence[str] = _COMMAND,
) -> list[Comparison]:
    """The run on each number of devices, compared with that on the first.

    **Arguments:**

    - `folder`: where the runs are kept.
    - `command`: what takes the arguments of `pd-eqx`.

    **Errors:** `InvarianceError`.
    """
    places = {count: folder / f"devices-{count}" for count in devices}
    for count, place in places.items():
        run_on(count, config, overrides, place, command)
    first, *others = places.items()
    return [compared(count, first[1], place) for count, place in others]


def compared(devices: int, first: Path, other: Path) -> Comparison:
    """A finished run beside another: every metric at every record, and all of the last state.

    **Errors:** `InvarianceError` where they have not recorded the same steps and names.
    """
    records = [read_metrics(RunDirectory(place).metrics) for place in (first, other)]
    if [(r["step"], sorted(r)) for r in records[0]] != [(r["step"], sorted(r)) for r in records[1]]:
        raise InvarianceError(f"{first} and {other} have not recorded the same steps and metrics")
    found: dict[str, Difference] = {}
    for here, there in zip(*records, strict=True):
        for name in here.keys() - _OF_THE_CLOCK - {"step"}:
            relative = _relative(np.asarray(here[name]), np.asarray(there[name]))
            if name not in found or relative > found[name].relative:
                found[name] = Difference(name, here["step"], relative)
    step, before = _last_state(first)
    _, after = _last_state(other)
    leaves = [
        Difference(path, step, _relative(here, after[path], _size_of_gradients(path, before)))
        for path, here in before.items()
    ]
    by_kind = [_by_kind(state) for state in (before, after)]
    kinds = [
        Difference(kind, step, _relative(by_kind[0][kind], by_kind[1][kind])) for kind in by_kind[0]
    ]
    return Comparison(devices, _sorted(found.values()), _sorted(kinds), _sorted(leaves))


def _sorted(found: Any) -> tuple[Difference, ...]:
    return tuple(sorted(found, key=lambda difference: -difference.relative))


def _last_state(run_dir: Path) -> tuple[int, dict[str, np.ndarray]]:
    with CheckpointStore(RunDirectory(run_dir).checkpoints, read_only=True) as store:
        step = store.latest_step()
        if step is None:
            raise InvarianceError(f"{run_dir} has no checkpoint")
        return step, {
            node.path: array.astype(np.float64)
            for item in ("decomposition", "training")
            for node, array in store.read_item(item, step)
        }


def _size_of_gradients(path: str, state: Mapping[str, np.ndarray]) -> float:
    """Of a first moment, the norm of the root of its second moment; of anything else nothing."""
    second = state.get(_MU.sub(".nu", path)) if _MU.search(path) else None
    return 0.0 if second is None else float(np.sqrt(np.sum(second)))


def _by_kind(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    kinds: dict[str, list[np.ndarray]] = defaultdict(list)
    for path, array in state.items():
        kinds[_kind(path)].append(array.reshape(-1))
    return {kind: np.concatenate(arrays) for kind, arrays in kinds.items()}


def _kind(path: str) -> str:
    """A leaf's path without its site and what is below that: `….opt_state.mu` of `….opt_state.mu['linear1'].delta`."""
    found = re.match(r"(.*)\['[^']*'\]", path)
    if found is None or found.group(1).endswith("adversaries"):
        return path
    return found.group(1)


def _relative(here: np.ndarray, there: np.ndarray, size: float = 0.0) -> float:
    here, there = here.astype(np.float64), there.astype(np.float64)
    difference = float(np.linalg.norm(here - there))
    # Numbers that are zero but for rounding have no relative difference.
    return difference / max(float(np.linalg.norm(here)), size, 1e-8) if difference else 0.0
