"""`pd_eqx.runs.migrate`: both older layouts become today's, bit for bit, and anything else is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from checkpoint.small import files
from pd_eqx.adversary import AdversaryState
from pd_eqx.checkpoint import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointStore,
    StructureMismatchError,
    abstract_like,
)
from pd_eqx.ci.mlp import LayerwiseCI
from pd_eqx.ci.reverse import Passage
from pd_eqx.cli.checkpoints import migrate as command
from pd_eqx.masks import SiteSource
from pd_eqx.objective import Objective
from pd_eqx.optimizers import AdamW, Muon
from pd_eqx.runs.migrate import migrate
from pd_eqx.schedule import constant
from pd_eqx.state import Decomposition, TrainingItem, TrainState
from toy import bits, initial

STEP = 3


def state(optimizer: Any = None) -> TrainState:
    """With a persistent adversary of one site, and optimizers whose states have empty places."""
    fresh = initial(jax.random.key(0), Objective(()))
    optimizer = optimizer or AdamW(constant(1e-3), weight_decay=0.1)
    sources = {"linear1": SiteSource(jnp.linspace(0.1, 0.9, 6), None)}
    ascent: Any = optax.chain(optax.scale_by_adam(), optax.scale(2.0))
    training = TrainingItem(
        components_opt_state=optimizer.init(fresh.decomposition.components),
        ci_fn_opt_state=optimizer.init(fresh.decomposition.ci_fn),
        adversaries={
            "persistent": AdversaryState(sources, ascent.init(sources)),
            "plain": AdversaryState(
                {"linear2": SiteSource(jnp.ones(7), jnp.zeros(()))}, optax.EmptyState()
            ),
        },
        step=jnp.int32(STEP),
    )
    state = TrainState(fresh.decomposition, training)
    ramps = iter(range(1, 100))
    leaves = jax.tree.map(lambda leaf: leaf + jnp.asarray(next(ramps), leaf.dtype), state)
    return TrainState(
        leaves.decomposition, TrainingItem(**{**vars(leaves.training), "step": jnp.int32(STEP)})
    )


def newer(state: TrainState) -> dict[str, Any]:
    training = state.training
    return {
        "components": state.decomposition.components,
        "ci_fn": state.decomposition.ci_fn,
        "components_opt_state": training.components_opt_state,
        "ci_fn_opt_state": training.ci_fn_opt_state,
        "adversaries": training.adversaries,
        "step": training.step,
    }


def older(state: TrainState) -> dict[str, Any]:
    flat = newer(state)
    adversaries = flat.pop("adversaries")
    flat["sources"] = {term: bundle.sources for term, bundle in adversaries.items()}
    flat["sources_opt_state"] = {term: bundle.opt_state for term, bundle in adversaries.items()}
    return flat


def write(path: Path, flat: dict[str, Any], step: int = STEP) -> Path:
    with ocp.CheckpointManager(path) as manager:
        manager.save(step, args=ocp.args.StandardSave(flat))
        manager.wait_until_finished()
    return path


@pytest.mark.parametrize("layout", [newer, older])
@pytest.mark.parametrize(
    "optimizer", [AdamW(constant(1e-3), weight_decay=0.1), Muon(constant(1e-3))]
)
def test_every_bit_arrives_and_the_source_is_not_touched(
    tmp_path: Path, layout: Callable[[TrainState], dict[str, Any]], optimizer: Any
) -> None:
    whole = state(optimizer)
    old = write(tmp_path / "old", layout(whole))
    before = files(old)
    (told,) = migrate(old, tmp_path / "new")
    assert files(old) == before
    assert (told.step, told.layout) == (STEP, "adversaries" if layout is newer else "sources")
    with CheckpointStore(tmp_path / "new", read_only=True) as store:
        assert store.steps() == [STEP]
        store.verify(STEP)
        back = store.restore(abstract_like(whole), STEP)
    assert jax.tree.structure(back) == jax.tree.structure(whole)
    assert bits(back) == bits(whole)
    assert len({*bits(whole)}) > 20


def test_none_in_a_parameter_stays_none(tmp_path: Path) -> None:
    whole = state()
    dense = whole.decomposition.ci_fn
    assert isinstance(dense, LayerwiseCI)
    layers: Any = next(iter(dense.sites.values()))
    passage: Any = Passage(layers.layers, jnp.arange(3.0), None, None)
    product: Any = Decomposition(whole.decomposition.components, dense)
    object.__setattr__(product, "ci_fn", passage)
    adam = optax.scale_by_adam().init(passage)
    parts: dict[str, Any] = {**vars(whole.training), "ci_fn_opt_state": (adam, optax.EmptyState())}
    training = TrainingItem(**parts)
    changed = TrainState(product, training)
    migrate(write(tmp_path / "old", newer(changed)), tmp_path / "new")
    with CheckpointStore(tmp_path / "new", read_only=True) as store:
        back = store.restore(abstract_like(changed))
    assert back.decomposition.ci_fn.attention is None
    assert bits(back) == bits(changed)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ema": np.ones(3)}, "unknown ema"),
        ({"sources": np.ones(3)}, "unknown adversaries; missing sources_opt_state"),
        ({"ci_fn": ...}, "missing ci_fn"),
        (
            {"adversaries": {"term": {"sources": np.ones(2), "moments": np.ones(2)}}},
            "not sources and opt",
        ),
        ({"step": np.int32(4)}, "after 4 updates"),
    ],
)
def test_other_keys_fail(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    flat = {name: value for name, value in {**newer(state()), **change}.items() if value is not ...}
    old = write(tmp_path / "old", flat)
    with pytest.raises(StructureMismatchError, match=complaint):
        migrate(old, tmp_path / "new")
    assert files(tmp_path / "new") == {}


def test_sources_and_their_optimizers_belong_to_the_same_terms(tmp_path: Path) -> None:
    flat = older(state())
    del flat["sources_opt_state"]["plain"]
    with pytest.raises(StructureMismatchError, match="sources are those of persistent, plain"):
        migrate(write(tmp_path / "old", flat), tmp_path / "new")


def test_where_there_is_nothing_and_where_there_is_something(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="no step"):
        migrate(tmp_path / "empty", tmp_path / "new")
    with pytest.raises(CheckpointExistsError, match="not empty"):
        migrate(tmp_path / "empty", tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old", newer(state()))
    command(tmp_path / "old", tmp_path / "a", json=True)
    told = json.loads(capsys.readouterr().out)
    assert [(step["step"], step["layout"]) for step in told["steps"]] == [(STEP, "adversaries")]
    command(old, tmp_path / "b")
    assert "from the layout with adversaries" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command(old, tmp_path / "b")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("pd-eqx: ")
