"""The number of devices changes no number, and the command that says so notices when it does."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pd_eqx.runs.invariance import BOUND, Comparison, compared
from scale.configs import write
from scale.fleet import COMMAND, Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PLANTED = Path(__file__).parent / "planted.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("invariance")


BY_BATCH = "{replica: null}"
# Along all three axes, and along each of the two that split matrices.
MESHES = {
    "2x2x2": "{replica: 2, fsdp: 2, tensor: 2}",
    "1x2x1": "{replica: 1, fsdp: 2, tensor: 1}",
    "1x1x4": "{replica: 1, fsdp: 1, tensor: 4}",
}


def on(
    folder: Path,
    kind: str,
    devices: int,
    command: Sequence[str] = COMMAND,
    name: str = "",
    mesh: str = BY_BATCH,
) -> Path:
    """The run of a kind on so many devices, made once."""
    run_dir = folder / f"{kind}-{devices}{name}"
    if not (run_dir / "summary.json").exists():
        run = Fleet(write(kind, folder, mesh), run_dir, folder / "cache", 1, devices, command)
        try:
            assert run.wait() == [0], run.said()
        finally:
            run.end()
    return run_dir


def told(comparison: Comparison) -> str:
    return f"{comparison.metrics[0]}, {comparison.kinds[0]}, {comparison.leaves[0]}"


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("kind", ["tms", "resid_mlp", "lm"])
def test_the_number_of_devices_changes_no_number(folder: Path, kind: str, devices: int) -> None:
    comparison = compared(devices, on(folder, kind, 1), on(folder, kind, devices))
    print(f"{kind} on {devices} devices: {told(comparison)}")
    scopes = {"c", "bc", "sc", "bsc"} if kind == "lm" else {"c", "bc", "repeated"}
    assert {f"grad_norm/{scope}" for scope in scopes} <= {d.name for d in comparison.metrics}
    assert comparison.worst.relative <= BOUND, told(comparison)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kind", ["tms", "resid_mlp", "lm"])
def test_no_axis_of_the_mesh_changes_a_number(folder: Path, kind: str, mesh: str) -> None:
    devices = math.prod(map(int, mesh.split("x")))
    spread = on(folder, kind, devices, name=f"-{mesh}", mesh=MESHES[mesh])
    comparison = compared(devices, on(folder, kind, 1), spread)
    print(f"{kind} on {mesh}: {told(comparison)}")
    assert comparison.worst.relative <= BOUND, told(comparison)


@pytest.mark.parametrize(
    ("bug", "noticed"),
    [
        ("sum_for_mean", "grad_norm/bc"),
        ("frequencies_by_shard", "loss/plain_frequency"),
    ],
)
def test_a_planted_bug_is_noticed(folder: Path, bug: str, noticed: str) -> None:
    command = [sys.executable, str(PLANTED), bug]
    comparison = compared(2, on(folder, "tms", 1), on(folder, "tms", 2, command, f"-{bug}"))
    of_metric = {found.name: found.relative for found in comparison.metrics}
    assert of_metric[noticed] > 10 * BOUND, told(comparison)
    assert comparison.kinds[0].relative > BOUND
    assert comparison.leaves[0].relative > BOUND
