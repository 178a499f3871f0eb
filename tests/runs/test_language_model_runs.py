"""A run on a language model: interrupted and resumed to the bit, opened and stripped, without what it needs no longer."""

import json
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from pd_eqx.data.corpus import CorpusError
from pd_eqx.runs.open import open_run
from runs.small import Blow, Runner, leaves_of, metrics_of, saved_steps, summary_of
from runs.small_lm import small_corpus, small_lm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
STEPS = 40
KILL = (signal.SIGKILL,)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def lm_runner(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("lm-runner"), small_lm(corpus), timeout=1500)


@pytest.fixture(scope="module")
def whole(lm_runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    ended = lm_runner.train(run_dir)
    assert ended.status == 0, ended.stderr
    assert "KL " in ended.stdout
    return run_dir


def test_all_of_the_recipe_is_in_the_state(whole: Path) -> None:
    leaves = leaves_of(whole, STEPS)
    assert any("adversaries['adversarial']" in path for path in leaves)
    assert any("averages['importance_minimality']" in path for path in leaves)
    sites = [f"layers.{i}.{kind}" for i in range(2) for kind in ("attn.q", "attn.v", "mlp.up")]
    assert all(any(site in path for path in leaves) for site in sites)
    summary = summary_of(whole)
    assert {"ci_masked", "stochastic", "unmasked", "pgd_2"} <= set(summary["reconstruction"])
    assert summary["components"]["layers.1.mlp.down"] == 7


def test_kills_and_terminations_change_no_bit(
    lm_runner: Runner, whole: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    for count, signals in ((7, KILL), (4, (signal.SIGTERM,)), (6, KILL)):
        before = max(saved_steps(run_dir), default=0)
        ended = lm_runner.train(run_dir, blow=Blow("dispatch", count, signals))
        assert ended.status == (75 if signals != KILL else -signal.SIGKILL), ended.stderr
        print(f"{signals} after step {before}: {saved_steps(run_dir)}")
    assert 0 < saved_steps(run_dir)[-1] < STEPS
    ended = lm_runner.train(run_dir)
    assert ended.status == 0, ended.stderr
    assert leaves_of(run_dir, STEPS) == leaves_of(whole, STEPS)
    assert metrics_of(run_dir) == metrics_of(whole)
    assert summary_of(run_dir) == summary_of(whole)
    assert json.loads((run_dir / "summary.json").read_text())["resumes"] == 3


def test_the_product_alone_is_opened_without_process_and_without_text(
    lm_runner: Runner, whole: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    process = sum(f.stat().st_size for f in (run_dir / f"checkpoints/{STEPS}/training").rglob("*"))
    ended = lm_runner("strip", str(run_dir), "--apply", "--json")
    assert ended.status == 0, ended.stderr
    assert json.loads(ended.stdout)["freed_bytes"] >= process / 2
    # What the run read is elsewhere now, and nothing says where.
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("/corpus", "/gone"))
    (run_dir / "inputs.json").unlink()
    opened = open_run(run_dir)
    (V,) = (
        leaf
        for path, leaf in leaves_of(whole, STEPS).items()
        if path.startswith("decomposition") and path.endswith("V['layers.0.mlp.up']")
    )
    assert np.asarray(opened.decomposition.components.V["layers.0.mlp.up"]).tobytes() == V[2]
    tokens = jax.numpy.arange(24).reshape(2, 12)
    assert opened.causal_importances(tokens).lower["layers.1.attn.v"].shape == (2, 12, 5)
    with pytest.raises(CorpusError, match="not found"):
        opened.assembly.batches(jax.random.key(0), jax.numpy.int32(0))


def test_other_text_at_the_same_place_is_refused(
    lm_runner: Runner, whole: Path, corpus: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    ended = lm_runner.train(run_dir, blow=Blow("dispatch", 7, KILL))
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    record = json.loads((other / "corpus.json").read_text())
    (other / "corpus.json").write_text(json.dumps({**record, "documents": 2}))
    ended = lm_runner.train(run_dir, f"data.path={other}")
    assert ended.status == 2
    assert "does not hold what" in ended.stderr
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved)
    ended = lm_runner.train(run_dir, f"data.path={moved}")
    assert ended.status == 0, ended.stderr
    assert leaves_of(run_dir, STEPS) == leaves_of(whole, STEPS)
