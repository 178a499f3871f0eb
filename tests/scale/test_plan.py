"""What a plan says is what a run then takes, on every configuration that runs here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pd_eqx.donation import buffer_bytes
from pd_eqx.runs.assembly import assemble
from pd_eqx.runs.config_file import load_config
from pd_eqx.runs.plan import plan
from pd_eqx.sharding import MeshShape
from scale.configs import write
from scale.fleet import COMMAND, environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.devices(8)
@pytest.mark.parametrize(
    ("kind", "mesh"), [("tms", (2, 1, 2)), ("resid_mlp", (1, 4, 2)), ("lm", (2, 2, 2))]
)
def test_the_prediction_is_what_is_measured(
    kind: str, mesh: tuple[int, int, int], tmp_path: Path
) -> None:
    config = load_config(write(kind, tmp_path))
    shape = MeshShape(*mesh)
    planned = plan(config, shape)
    assembly = assemble(config, mesh=shape)

    abstract = assembly.abstract_target()
    drawn = np.random.default_rng(0)
    target = jax.tree.map(
        lambda leaf: jax.device_put(
            drawn.normal(size=leaf.shape).astype(leaf.dtype), leaf.sharding
        ),
        abstract,
    )
    state = assembly.fresh(target)
    devices = int(np.prod(mesh))
    assert buffer_bytes(target) == planned.target * devices
    assert buffer_bytes(state) == planned.state_bytes * devices
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == planned.checkpoint

    compiled = assembly.compile(target)
    memory: Any = compiled.memory_analysis()
    batches = sum(leaf.nbytes for leaf in jax.tree.leaves(assembly.batches))
    held = planned.target + planned.state_bytes + batches
    # What comes on top are a key and a counter; padding to 16 bytes a leaf makes the rest.
    assert memory.argument_size_in_bytes == pytest.approx(held, rel=0.05)
    for said, is_so in (
        (planned.arguments, memory.argument_size_in_bytes),
        (planned.temporaries, memory.temp_size_in_bytes),
        (planned.aliased, memory.alias_size_in_bytes),
    ):
        assert said == pytest.approx(is_so, rel=0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_eight_billion_is_planned_without_a_weight(tmp_path: Path) -> None:
    arguments = [
        *("plan", str(EXAMPLES / "llama8b_layer18.yaml"), "--mesh", "1x8x8", "--json"),
        f"target.model={EXAMPLES / 'llama8b'}",
    ]
    said = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        check=False,
        env=environment(tmp_path),
    )
    assert said.returncode == 0, said.stderr.decode()
    found = json.loads(said.stdout)
    entries = 3 * 24576 * (4096 + 14336)  # of V and U of three matrices
    assert found["state"]["decomposition.components"] == entries * 4 // 64
    assert found["state"]["training.components_opt_state"] == pytest.approx(
        entries * 8 // 64, abs=99
    )
    sources = 3 * 512 * 2048 * 24576 * (2 + 2 + 4)  # raw, first and second moment
    assert found["state"]["training.adversaries['bsc']"] == pytest.approx(sources / 64, rel=0.01)
    assert found["checkpoint"] > sources
    assert {"all-gather", "all-reduce"} <= set(found["work"]["collectives"])
    # Each of the forwards alone costs two operations for each weight and token; they are split over the batch.
    assert found["work"]["flops"] > 2 * 7.5e9 * 512 * 2048 / 8


def test_a_mesh_that_is_none_is_refused(tmp_path: Path) -> None:
    said = subprocess.run(
        [*COMMAND, "plan", str(EXAMPLES / "tms_5-2.yaml"), "--mesh", "4x8"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert said.returncode == 2
    assert b"expected three numbers like 4x8x2" in said.stderr
    assert b"Traceback" not in said.stderr
