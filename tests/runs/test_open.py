"""A run is opened by somebody who never trained it: the product alone, wherever they want it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pd_eqx
from pd_eqx.checkpoint import CheckpointNotFoundError, CheckpointStore
from pd_eqx.checkpoint.strip import strip
from pd_eqx.masks import SiteMask
from pd_eqx.runs.directory import RunDirectoryError
from pd_eqx.runs.open import OpenedRun
from pd_eqx.sites import UnknownSiteError
from runs.opened import opened_below


@pytest.fixture(scope="module")
def opened(uninterrupted: Path) -> OpenedRun:
    return pd_eqx.open_run(uninterrupted)


INPUTS = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(4, 3)


def test_what_is_asked_is_what_the_arrays_say(opened: OpenedRun) -> None:
    target, components = opened.target, opened.decomposition.components
    W1, W2 = (np.asarray(target.weights()[site]) for site in ("linear1", "linear2"))
    hidden = INPUTS @ W1
    activations = opened.component_activations(INPUTS)
    V2 = np.asarray(components.V["linear2"])
    np.testing.assert_allclose(activations["linear2"], hidden @ V2, atol=1e-5)
    importances = opened.causal_importances(INPUTS).lower
    assert {site: ci.shape for site, ci in importances.items()} == {
        "linear1": (4, 4),
        "linear2": (4, 5),
    }
    bias = np.asarray(jax.tree.leaves(target)[-1])
    assert bias.shape == (3,)

    def output(W2: Any) -> Any:
        return np.maximum(hidden @ W2 + bias, 0)

    U2 = np.asarray(components.U["linear2"])
    mask = np.linspace(0, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(
        opened.masked_output(INPUTS, {"linear2": mask}), output(V2 * mask @ U2), atol=1e-5
    )
    whole = SiteMask(None, delta=jnp.ones(4))
    np.testing.assert_allclose(
        opened.masked_output(INPUTS, {"linear2": whole}), output(W2), atol=1e-5
    )
    without = W2 - V2[:, [1, 4]] @ U2[[1, 4]]
    np.testing.assert_allclose(
        opened.ablate(INPUTS, {"linear2": [1, 4]}), output(without), atol=1e-5
    )
    np.testing.assert_array_equal(opened.ablate(INPUTS, {"linear1": []}), opened.output(INPUTS))


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda run: run.ablate(INPUTS, {"liner1": [0]}), UnknownSiteError, "nearest .* 'linear1'"),
        (lambda run: run.ablate(INPUTS, {"linear1": [4]}), ValueError, "0 to 3, and no component 4"),
        (lambda run: run.masked_output(INPUTS, {"linear2": np.ones(4)}), ValueError, "must be 5"),
        (lambda run: run.output(np.ones((4, 2))), ValueError, r"inputs of shape \[4, 2\] and type float32"),
        (lambda run: run.causal_importances(1.0), ValueError, r"inputs of shape \[\]"),
        (lambda run: run.component_activations(np.array(["a"])), ValueError, "no array of numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(
    opened: OpenedRun, ask: Callable[[OpenedRun], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        ask(opened)


def test_whole_numbers_are_features_too(opened: OpenedRun) -> None:
    ones = np.eye(3, dtype=np.int32)
    np.testing.assert_array_equal(opened.output(ones), opened.output(ones.astype(np.float32)))
    for site, found in opened.causal_importances(ones).lower.items():
        as_floats = opened.causal_importances(ones.astype(np.float32)).lower[site]
        np.testing.assert_array_equal(found, as_floats)


def test_it_lies_where_it_was_asked_for(opened: OpenedRun, uninterrupted: Path) -> None:
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices[2:6]).reshape(2, 2), ("a", "b"))
    expected = opened.causal_importances(INPUTS).lower["linear2"]
    for place, on in ((mesh, set(devices[2:6])), (devices[3], {devices[3]})):
        run = pd_eqx.open_run(uninterrupted, mesh=place)
        for leaf in jax.tree.leaves((run.target, run.decomposition)):
            assert leaf.devices() == on
        np.testing.assert_allclose(run.causal_importances(INPUTS).lower["linear2"], expected)
    run = pd_eqx.open_run(uninterrupted, mesh="host")
    leaves = jax.tree.leaves((run.target, run.decomposition))
    assert {type(leaf) for leaf in leaves} == {np.ndarray}
    np.testing.assert_allclose(run.causal_importances(INPUTS).lower["linear2"], expected)


def test_a_stripped_run_opens_and_nothing_of_its_process_is_touched(
    uninterrupted: Path, opened: OpenedRun, run_dir: Path
) -> None:
    shutil.copytree(uninterrupted, run_dir)
    with opened_below(run_dir) as found:
        pd_eqx.open_run(run_dir)
    assert any("decomposition" in name for name in found)
    assert not [name for name in found if "training" in name]
    strip(run_dir / "checkpoints", "training", apply=True)
    again = pd_eqx.open_run(str(run_dir))
    same = jax.tree.map(np.array_equal, again.decomposition, opened.decomposition)
    assert all(jax.tree.leaves(same))


def test_where_there_is_nothing_to_open(tmp_path: Path, uninterrupted: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is not a run"):
        pd_eqx.open_run(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="no step 3"):
        pd_eqx.open_run(uninterrupted, step=3)
    with CheckpointStore(uninterrupted / "checkpoints", read_only=True) as store:
        assert store.latest_step() == pd_eqx.open_run(uninterrupted).step
