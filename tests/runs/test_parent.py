"""A fine-tuning run starts from its parent's product and target, and from nothing else of it."""

import json
import re
from pathlib import Path

import pytest

from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.runs.config_file import ConfigError
from pd_eqx.runs.inherit import product_fingerprint
from pd_eqx.runs.parent import parent_directory
from runs.small import Blow, Runner, leaves_of, saved_steps, small_config

NO_WARMUP = "faithfulness_warmup=null"


def test_the_product_is_the_parent_s_and_the_process_is_new(
    runner: Runner, uninterrupted: Path, run_dir: Path
) -> None:
    overrides = (f"parent={{run: {uninterrupted}, step: 110}}", NO_WARMUP, "seed=8")
    ended = runner.train(run_dir, *overrides, blow=Blow("save", 2))
    assert ended.status == 75, ended.stderr
    assert saved_steps(run_dir)[0] == 0
    pinned = json.loads((run_dir / "run.json").read_text())["parent"]
    assert (pinned["run"], pinned["step"]) == (str(uninterrupted), 110)
    assert pinned["fingerprint"] == product_fingerprint(uninterrupted / "checkpoints", 110)
    assert pinned["fingerprint"] != product_fingerprint(uninterrupted / "checkpoints", 120)
    start, parent = leaves_of(run_dir, 0), leaves_of(uninterrupted, 110)
    product = {path for path in start if path.startswith("decomposition")}
    assert len(product) > 5
    assert {path: start[path] for path in product} == {path: parent[path] for path in product}
    moments = [path for path in start if re.search(r"opt_state.*\.(mu|nu)", path)]
    assert len(moments) > 5
    assert all(set(start[path][2]) == {0} for path in moments)
    assert any(start[path] != parent[path] for path in moments)
    with (
        CheckpointStore(run_dir / "target", read_only=True) as ours,
        CheckpointStore(uninterrupted / "target", read_only=True) as theirs,
    ):
        of_ours, of_theirs = (
            {node.path: array.tobytes() for node, array in store.read_item("target")}
            for store in (ours, theirs)
        )
    assert of_ours == of_theirs


def test_a_parent_of_another_target_is_refused(uninterrupted: Path) -> None:
    named = f"parent={{run: {uninterrupted}, step: 110}}"
    assert parent_directory(small_config(named, NO_WARMUP)) is not None
    with pytest.raises(ConfigError, match=r"target\.training\.steps: 300, but the parent .* 400"):
        parent_directory(small_config(named, NO_WARMUP, "target.training.steps=300"))


def test_a_parent_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parent\.run: .* is not a run"):
        parent_directory(small_config(f"parent={{run: {tmp_path}, step: 0}}", NO_WARMUP))


def test_a_run_with_a_parent_has_no_warm_up() -> None:
    with pytest.raises(ConfigError, match="parent: a run that starts from a parent"):
        small_config("parent={run: somewhere, step: 0}")
