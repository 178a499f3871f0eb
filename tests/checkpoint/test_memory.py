"""A resume holds one state and one leaf, never two states; an asynchronous save holds one state more."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

LEAVES, ROWS = 32, 2048  # 32 leaves of 8 MiB
LEAF, STATE = ROWS * 1024 * 4 / 2**20, LEAVES * ROWS * 1024 * 4 / 2**20

# Everything is done once on a small state, so that what is measured is not the loading of code.
MEASURE = textwrap.dedent("""
    import gc, json, re, sys
    from pathlib import Path
    from typing import Any
    import equinox as eqx, jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from pd_eqx.checkpoint import CheckpointStore, abstract_like
    from pd_eqx.donation import measure_reuse

    class State(eqx.Module):
        product: Any
        process: Any

    what, root, leaves, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    devices = jax.devices()
    sharding = NamedSharding(jax.make_mesh((len(devices),), ("d",)), PartitionSpec("d"))

    def kibibytes(name):
        return int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

    def base():
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        return kibibytes("VmRSS")

    def above(start):
        return (kibibytes("VmHWM") - start) / 1024

    def fresh(rows):
        make = jax.jit(lambda key: jax.random.normal(key, (rows, 1024)), out_shardings=sharding)
        made = [jax.block_until_ready(make(key)) for key in jax.random.split(jax.random.key(0), leaves)]
        return State(made[:3], made[3:])

    step = jax.jit(lambda state: jax.tree.map(lambda x: x * 1.5 + 1, state), donate_argnums=0)
    told = {}
    if what == "resume":
        with CheckpointStore(root) as store:
            store.save(0, fresh(8))
            store.save(1, fresh(rows))
            compiled = {n: step.lower(abstract_like(fresh(n))).compile() for n in (8, rows)}
            compiled[8](store.restore(abstract_like(fresh(8)), 0))
            abstract = jax.eval_shape(lambda: fresh(rows))
            abstract = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract
            )
            start = base()
            state = store.restore(abstract, 1)
            told["restore"] = above(start)
            base()
            state, report = measure_reuse(compiled[rows], state)
            told["first step"] = above(start)
            told["reused"] = report.fraction
            del state
            start = base()
            state = fresh(rows)
            base()
            state, report = measure_reuse(compiled[rows], state)
            told["fresh step"] = above(start)
    else:
        with CheckpointStore(root, asynchronous=True) as store:
            store.save(0, fresh(8))
            store.wait()
            state = step(fresh(rows))
            start = base()
            store.save(1, state)
            for _ in range(3):
                state, report = measure_reuse(step, state)
            told["reused"] = report.fraction
            store.wait()
            told["save"] = above(start)
            del state
            told["left"] = (base() - start) / 1024
    print(json.dumps(told))
""")


def _measured(what: str, root: Path, devices: int) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, what, str(root), str(LEAVES), str(ROWS)],
        stdout=subprocess.PIPE,
        check=True,
        env={
            "PYTHONPATH": ":".join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "MALLOC_MMAP_THRESHOLD_": "131072",
        },
    )
    return json.loads(ran.stdout)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc"),
]


@pytest.mark.parametrize("devices", [1, 4])
def test_a_resume_peaks_at_one_state_and_one_leaf(tmp_path: Path, devices: int) -> None:
    peaks = _measured("resume", tmp_path, devices)
    assert peaks["restore"] <= STATE + LEAF + 0.05 * STATE, peaks
    assert peaks["first step"] <= 1.02 * peaks["fresh step"] + 1, peaks
    assert peaks["reused"] == 1.0, peaks


@pytest.mark.parametrize("devices", [1, 4])
def test_an_asynchronous_save_costs_one_state_while_it_runs(tmp_path: Path, devices: int) -> None:
    peaks = _measured("save", tmp_path, devices)
    assert peaks["save"] <= 1.1 * STATE, peaks
    assert peaks["left"] <= -0.9 * STATE, peaks
    assert peaks["reused"] == 1.0, peaks
