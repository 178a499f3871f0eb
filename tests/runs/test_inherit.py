"""A fine-tune starts from the parent's product, bit for bit, and opens nothing else of the parent (S33)."""

import shutil
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import pd_eqx
from pd_eqx.checkpoint import CheckpointStore, StructureMismatchError, abstract_like
from pd_eqx.checkpoint.strip import strip
from pd_eqx.objective import Objective
from pd_eqx.runs.inherit import init_from_parent
from pd_eqx.state import TrainState
from runs.opened import opened_below
from toy import bits, fresh

STEP = 40


def parent_state() -> TrainState:
    """On eight devices, with an optimizer that no child knows."""
    state = fresh(Objective(()), seed=5)
    training = eqx.tree_at(
        lambda training: (training.components_opt_state, training.step),
        state.training,
        ({"unknown": jnp.arange(640.0)}, jnp.int32(STEP)),
    )
    mesh = jax.make_mesh((8,), ("d",))
    return jax.device_put(
        TrainState(state.decomposition, training), NamedSharding(mesh, PartitionSpec())
    )


def child_state() -> TrainState:
    sharding = SingleDeviceSharding(jax.devices()[1])
    return jax.device_put(jax.tree.map(jnp.copy, fresh(Objective(()), seed=1)), sharding)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parent")
    with CheckpointStore(path) as store:
        store.save(STEP, parent_state())
    return path


@pytest.fixture
def parent(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "checkpoints"))


def inherits(parent: Path, step: int | None = STEP) -> None:
    expected, product = bits(child_state().training), bits(parent_state().decomposition)
    assert bits(child_state().decomposition) != product
    child = init_from_parent(child_state(), parent, step)
    assert bits(child.decomposition) == product
    assert bits(child.training) == expected
    assert int(child.training.step) == 0
    assert {leaf.sharding for leaf in jax.tree.leaves(child)} == {
        SingleDeviceSharding(jax.devices()[1])
    }


def test_the_public_name() -> None:
    assert pd_eqx.init_from_parent is init_from_parent


@pytest.mark.devices(8)
def test_on_one_device_from_a_parent_on_eight_with_other_optimizers(parent: Path) -> None:
    inherits(parent)
    inherits(parent, None)


@pytest.mark.devices(8)
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel which files are opened")
def test_no_file_of_the_process_is_opened(parent: Path) -> None:
    process = parent / str(STEP) / "training"
    with opened_below(process) as opened:
        inherits(parent)
    assert opened == set()
    with opened_below(parent / str(STEP) / "decomposition") as opened:
        inherits(parent)
    assert any(name.startswith("d/") for name in opened)
    abstract = abstract_like(parent_state().training)
    with opened_below(process) as opened, CheckpointStore(parent, read_only=True) as store:
        store.restore_item("training", abstract, STEP)
    assert opened


@pytest.mark.devices(8)
def test_a_parent_whose_process_is_gone_or_stripped_will_do(parent: Path) -> None:
    strip(parent, "training", apply=True)
    inherits(parent, None)
    assert not (parent / str(STEP) / "training").exists()


@pytest.mark.devices(8)
def test_a_parent_whose_process_was_deleted_by_hand_will_do_when_named(parent: Path) -> None:
    shutil.rmtree(parent / str(STEP) / "training")
    inherits(parent)


@pytest.mark.devices(8)
def test_two_products_are_never_alive(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = child_state()
    alive: list[bool] = []
    restore = CheckpointStore.restore_item

    def watching(*args: Any, **kwargs: Any) -> Any:
        alive.extend(not leaf.is_deleted() for leaf in jax.tree.leaves(child.decomposition))
        return restore(*args, **kwargs)

    monkeypatch.setattr(CheckpointStore, "restore_item", watching)
    init_from_parent(child, parent)
    assert len(alive) > 5
    assert not any(alive)


@pytest.mark.devices(8)
def test_another_decomposition_is_refused_leaf_by_leaf(parent: Path) -> None:
    child = child_state()
    V = {**child.decomposition.components.V, "linear1": jnp.ones((5, 9))}
    other = eqx.tree_at(lambda state: state.decomposition.components.V, child, V)
    with pytest.raises(
        StructureMismatchError, match=r"V\['linear1'\] .*float32\[5,6\], asked float32\[5,9\]"
    ):
        init_from_parent(other, parent)


def test_a_state_that_is_under_way_is_refused(tmp_path: Path) -> None:
    begun = eqx.tree_at(lambda state: state.training.step, child_state(), jnp.int32(3))
    with pytest.raises(ValueError, match="has had 3 updates"):
        init_from_parent(begun, tmp_path)
