"""What a run reads that lies elsewhere is found again, and is what it began with, or is refused in a line."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import Array

from pd_eqx.data.corpus import CorpusError
from pd_eqx.runs.assembly import assemble
from pd_eqx.runs.config import Config
from pd_eqx.runs.config.language_models import PretrainedTarget
from pd_eqx.runs.config_file import ConfigError, parse_config
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError
from pd_eqx.runs.inputs import located, pin_data, recorded
from pd_eqx.runs.stored_target import load_target, stored_target
from pd_eqx.sites import UnknownSiteError
from pd_eqx.step import BatchSource
from pd_eqx.targets.transformer import Transformer
from pd_eqx.targets.weights.load import load_model
from pd_eqx.targets.weights.source import WeightsError

MODEL = Path(__file__).parents[1] / "golden" / "hf" / "tiny" / "qwen3"
CONFIG = """
name: pretrained
seed: 1
steps: 5
target: {kind: pretrained, model: MODEL}
sites: {"layers.*.mlp.*": 6, "layers.1.mlp.up": 4}
ci_fn: {kind: shared_mlp, hidden: [5]}
data: {kind: corpus, path: IDS, length: 8, batch_size: 2, held_out: 3}
objective:
  - {kind: importance_minimality, coefficient: 1e-3}
  - {kind: reconstruction, name: stochastic, distance: kl, source: {kind: stochastic}}
optimizers:
  components: {kind: adamw, lr: {kind: constant, value: 1e-3}}
  ci_fn: {kind: adamw, lr: {kind: constant, value: 1e-3}}
"""


def config(folder: Path, *overrides: str) -> Config:
    text = CONFIG.replace("MODEL", str(folder / "model")).replace("IDS", str(folder / "ids.npy"))
    return parse_config(text, "pretrained", overrides)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(MODEL, tmp_path / "model")
    np.save(tmp_path / "ids.npy", np.arange(160) % 50)
    return tmp_path


def begun(folder: Path) -> RunDirectory:
    """A run that has pinned what it reads."""
    directory = RunDirectory(folder / "run")
    directory.prepare()
    assembly = assemble(config(folder))
    pin_data(directory, assembly.config)
    stored_target(directory, assembly, lambda said: None, resumed=False)
    return directory


@jax.jit
def draw(batches: BatchSource, step: Array) -> Array:
    return batches(jax.random.key(0), step)


def test_a_published_model_is_referred_to_and_its_sites_are_chosen_by_patterns(
    folder: Path,
) -> None:
    directory = begun(folder)
    assembly = assemble(config(folder))
    assert assembly.counts == {
        f"layers.{i}.mlp.{kind}": 4 if (i, kind) == (1, "up") else 6
        for i in range(2)
        for kind in ("gate", "up", "down")
    }
    assert not directory.target.exists()
    target = load_target(directory, assembly)
    assert isinstance(target, Transformer)
    whole = load_model(folder / "model")
    same = jax.tree.map(lambda a, b: bool((a == b).all()), target.layers, whole.layers)
    assert all(jax.tree.leaves(same))
    assert {leaf.sharding for leaf in jax.tree.leaves(target)} == {assembly.layout.replicated}
    described = assembly.abstract_target()
    assert jax.tree.structure(described) == jax.tree.structure(target)
    for like, leaf in zip(jax.tree.leaves(described), jax.tree.leaves(target), strict=True):
        assert (like.shape, like.dtype, like.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)
    assert recorded(directory)["target"]["told"].endswith("stored as F32")


def test_evaluation_sees_what_was_held_out(folder: Path) -> None:
    assembly = assemble(config(folder))
    trained = [draw(assembly.batches, step) for step in range(20)]
    evaluated = [draw(assembly.evaluation_batches, step) for step in range(4)]
    rows = {tuple(row) for batch in trained for row in np.asarray(batch).tolist()}
    held = {tuple(row) for batch in evaluated for row in np.asarray(batch).tolist()}
    last = (np.arange(160) % 50).reshape(20, 8)[-3:]
    assert held == {tuple(row) for row in last.tolist()}
    assert len(rows) == 17
    assert not rows & held


def test_resident_and_streamed_read_the_same(folder: Path) -> None:
    sources = [
        assemble(config(folder, f"data.reading={how}")).batches for how in ("resident", "streamed")
    ]
    batches = [np.asarray(draw(source, 7)) for source in sources]
    assert (batches[0] == batches[1]).all()


def test_what_has_changed_is_refused_and_what_has_moved_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begun(folder)
    monkeypatch.chdir(folder)
    relative = config(folder, "target.model=model", "data.path=ids.npy")
    (other := folder / "elsewhere").mkdir()
    # A relative path means what it meant where the run began.
    directory.inputs.write_text(
        directory.inputs.read_text()
        .replace(f'"asked": "{folder / "model"}"', '"asked": "model"')
        .replace(f'"asked": "{folder / "ids.npy"}"', '"asked": "ids.npy"')
    )
    monkeypatch.chdir(other)
    found = located(relative, directory)
    assert isinstance(found.target, PretrainedTarget)
    assert found.target.model == str(folder / "model")
    load_target(directory, assemble(found))
    weights = folder / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(RunDirectoryError, match=r"target: .* does not hold what"):
        load_target(directory, assemble(found))
    np.save(folder / "ids.npy", np.arange(161) % 50)
    with pytest.raises(RunDirectoryError, match=r"data: .* does not hold what"):
        pin_data(directory, found)


def begin(folder: Path, *overrides: str) -> None:
    assembly = assemble(config(folder, *overrides))
    assembly.config.data.check(load_model(folder / "model"))


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises((ConfigError, CorpusError, UnknownSiteError, WeightsError)) as refused:
        begin(folder, *overrides)
    said = str(refused.value)
    assert "\n" not in said
    return said


def test_mistakes_are_one_line(folder: Path) -> None:
    assert "nearest is 'model'" in refusal(folder, "target.modle=a")
    assert "expected a model's folder, or a hub name" in refusal(folder, "target.model=nowhere")
    assert "nearest site is 'layers.0.mlp.up'" in refusal(folder, "sites.layers.0.mlp.pu=3")
    said = refusal(folder, "data.path=nowhere")
    assert said.startswith("data.path: nowhere: ")
    assert "pd-eqx prepare" in said
    assert "do not fill a batch of 4" in refusal(folder, "data.batch_size=4")
    assert "40 are to be held out" in refusal(folder, "data.held_out=40")
    np.save(folder / "ids.npy", np.arange(160) + 10**6 - 159)
    assert "are below 1000001, but the target knows" in refusal(folder)
    toy = "{kind: sparse_features, batch_size: 3, probability: 0.1}"
    assert "a target of kind 'pretrained' reads corpus" in refusal(folder, f"data={toy}")


def test_a_product_can_be_had_without_its_data(folder: Path) -> None:
    directory = begun(folder)
    (folder / "ids.npy").unlink()
    assembly = assemble(config(folder), needs_data=False)
    product = assembly.abstract_product(load_target(directory, assembly))
    assert product.components.V["layers.0.mlp.up"].shape[1] == 6
    with pytest.raises(CorpusError, match=r"not found|no array"):
        assembly.evaluation_batches(jax.random.key(0), jax.numpy.int32(0))
