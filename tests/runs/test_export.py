"""An export is the run's arrays to the bit, and needs nothing of this project to be read."""

import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import pd_eqx
from pd_eqx.checkpoint import CheckpointStore
from pd_eqx.cli.export import export
from pd_eqx.runs.assembly import assemble
from pd_eqx.runs.config.language_models import PretrainedTarget
from pd_eqx.runs.config_file import dump_config, parse_config
from pd_eqx.runs.deposit import Product
from pd_eqx.runs.directory import RunDirectory
from pd_eqx.runs.export import ExportError, export_run
from pd_eqx.runs.inputs import TARGET, pin
from pd_eqx.runs.open import OpenedRun
from pd_eqx.runs.stored_target import load_published
from runs.deposited import deposit_features

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenedRun:
    return pd_eqx.open_run(deposit_features(tmp_path_factory.mktemp("export") / "run"))


@pytest.fixture(scope="module")
def exported(run: OpenedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "to"
    export(run.directory.root, folder)
    return folder


def bits(tree: Any) -> list[tuple[str, bytes]]:
    return [(str(leaf.dtype), np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


def test_every_bit_comes_back(run: OpenedRun, exported: Path) -> None:
    for place in (None, "host", jax.devices()[2]):
        loaded = pd_eqx.load_export(exported, mesh=place)
        assert bits(loaded.target) == bits(run.target)
        assert bits(loaded.decomposition) == bits(run.decomposition)
        assert jax.tree.structure(loaded.decomposition) == jax.tree.structure(run.decomposition)
    assert (loaded.step, loaded.config) == (run.step, run.config)
    inputs = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(
        loaded.ablate(inputs, {"linear2": [1]}), run.ablate(inputs, {"linear2": [1]}), rtol=1e-6
    )


def test_the_order_of_the_memory_does_not_matter(run: OpenedRun, tmp_path: Path) -> None:
    def other_order(leaf: Any) -> Any:
        array = np.asarray(leaf)
        every_other = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
        every_other[...] = array
        return np.asfortranarray(array) if array.ndim > 1 else every_other

    V = run.decomposition.components.V["linear2"]
    assert not other_order(V).flags.c_contiguous
    twisted = dataclasses.replace(
        run,
        target=jax.tree.map(other_order, run.target),
        decomposition=jax.tree.map(other_order, run.decomposition),
    )
    export_run(twisted, tmp_path / "to")
    loaded = pd_eqx.load_export(tmp_path / "to")
    assert bits(loaded.decomposition) == bits(run.decomposition)
    assert bits(loaded.target) == bits(run.target)


def test_it_says_what_it_is(run: OpenedRun, exported: Path) -> None:
    described = json.loads((exported / "config.json").read_text())
    assert described["config"] == run.config.model_dump(mode="json")
    assert described["sites"] == [
        {"name": "linear1", "d_in": 3, "d_out": 3, "components": 4},
        {"name": "linear2", "d_in": 3, "d_out": 3, "components": 5},
    ]
    for name in ("decomposition", "target"):
        with safe_open(exported / f"{name}.safetensors", "np") as file:
            alone = json.loads(file.metadata()["pd_eqx"])
        assert alone == {key: value for key, value in described.items() if key != "sha256"}
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pd_eqx\n")
    assert "| `linear2` | 3 × 3 | 5 |" in card
    arrays = load_file(exported / "target.safetensors")
    np.testing.assert_array_equal(arrays["weights/linear2"], run.target.weights()["linear2"])


def test_a_card_has_the_numbers_of_the_exported_step_alone(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = pd_eqx.open_run(uninterrupted)
    summary = json.loads(run.directory.summary.read_text())
    export_run(run, tmp_path / "last")
    card = (tmp_path / "last" / "README.md").read_text()
    assert f"- `faithfulness/total`: {summary['faithfulness']['total']:.6g}\n" in card
    (row,) = (line for line in card.splitlines() if line.startswith("| `linear2` | 0"))
    (head,) = (line for line in card.splitlines() if line.startswith("| site | `"))
    told = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert told["`faithfulness`"] == f"{summary['faithfulness']['linear2']:.4g}"
    export_run(pd_eqx.open_run(uninterrupted, step=110), tmp_path / "earlier")
    assert "## Measured" not in (tmp_path / "earlier" / "README.md").read_text()


def test_everybody_may_read_all_or_nothing(exported: Path) -> None:
    assert len({path.stat().st_mode for path in exported.iterdir()}) == 1


def snippet() -> str:
    text = (ROOT / "docs" / "export.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (found,) = [block for block in blocks if "import numpy" in block]
    assert len(found.strip().splitlines()) <= 10
    return found


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_snippet_of_the_docs_reads_it(library: str, exported: Path, run: OpenedRun) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    code = snippet().replace("numpy", library).replace("print(masked.shape)", "")
    code += "import json, sys; print(json.dumps([masked.tolist(), 'pd_eqx' in sys.modules]))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=exported, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    masked, ours = json.loads(ended.stdout)
    assert not ours
    components = run.decomposition.components
    V, U = (np.asarray(of["linear1"]) for of in (components.V, components.U))
    W = np.asarray(run.target.weights()["linear1"])
    expected = np.ones((3, 3)) @ (W - V[:, :1] @ U[:1])
    np.testing.assert_allclose(masked, expected, atol=1e-5)


def test_what_is_not_the_export_is_refused(
    run: OpenedRun, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match="no export of pd_eqx"):
        pd_eqx.load_export(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    path = copy / "decomposition.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExportError, match=r"decomposition\.safetensors is not the file"):
        pd_eqx.load_export(copy)
    with pytest.raises(SystemExit):
        export(run.directory.root, copy)
    assert capsys.readouterr().err == (
        f"pd-eqx: {copy} is not empty; name a folder that is empty or absent\n"
    )
    assert eqx.tree_equal(pd_eqx.load_export(exported).target, run.target)


LM = """
name: published
seed: 5
steps: 3
target: {kind: pretrained, model: MODEL}
sites: {"layers.*.mlp.up": 6}
ci_fn: {kind: shared_mlp, hidden: [4]}
data: {kind: corpus, path: nowhere, length: 8, batch_size: 2}
objective:
  - {kind: importance_minimality, coefficient: 3e-3}
optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
"""


@pytest.mark.slow
def test_a_published_model_is_referred_to_and_compared(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "golden" / "hf" / "tiny" / "llama_gqa", model)
    config = parse_config(LM.replace("MODEL", str(model)), "text")
    assert isinstance(config.target, PretrainedTarget)
    assembly = assemble(config, needs_data=False)
    target = load_published(assembly, config.target, config.target.open())
    like = assembly.abstract_product(target)
    decomposition = jax.tree.map(lambda leaf: jax.numpy.full(leaf.shape, 0.5, leaf.dtype), like)
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    directory.config.write_text(dump_config(config))
    with CheckpointStore(directory.checkpoints) as store:
        store.save(3, Product(decomposition))
    pin(directory, TARGET, config.target.model, model, config.target.open().fingerprint())
    run = pd_eqx.open_run(directory.root)
    export_run(run, tmp_path / "to")
    assert (tmp_path / "to" / "target.safetensors").stat().st_size < 2**18
    loaded = pd_eqx.load_export(tmp_path / "to")
    assert bits(loaded.target) == bits(target)
    assert bits(loaded.decomposition) == bits(decomposition)

    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    weight = np.asarray(load_file(path)["model.layers.0.mlp.up_proj.weight"]).tobytes()
    content[content.find(weight)] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExportError, match="is not the model that was taken apart: weights/layers"):
        pd_eqx.load_export(tmp_path / "to")
