"""Model folders become targets, or one line says why not."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from pd_eqx.targets.weights.assemble import leave_to_jax
from pd_eqx.targets.weights.huggingface import find_folder, load_huggingface, read_config
from pd_eqx.targets.weights.load import load_model
from pd_eqx.targets.weights.safetensors import SafetensorsFile
from pd_eqx.targets.weights.source import WeightsError

TINY = Path(__file__).parents[2] / "golden" / "hf" / "tiny"
MODELS = ("llama_gqa", "llama_tied_bias", "gpt2", "gpt_neox", "qwen2", "qwen3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of one model, to be damaged."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(TINY / "llama_gqa" / name, tmp_path / name)
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


@pytest.mark.parametrize("model", MODELS)
def test_both_spellings_of_a_configuration_say_the_same(model: str) -> None:
    family, config = read_config(TINY / model / "config.json")
    assert read_config(TINY / model / "config_legacy.json") == (family, config)


def test_leaves_hold_the_files_own_numbers_and_dtype() -> None:
    target = load_model(TINY / "llama_gqa_bf16")
    tensors = safetensors.numpy.load_file(TINY / "llama_gqa" / "model.safetensors")
    found = target.layers.weights["attn.k"]
    assert found.dtype == jnp.bfloat16
    assert found.shape == (3, 48, 24)
    expected = tensors["model.layers.1.self_attn.k_proj.weight"].T.astype(jnp.bfloat16)
    assert np.asarray(found[1]).tobytes() == np.ascontiguousarray(expected).tobytes()
    with np.load(TINY / "llama_gqa_bf16" / "golden.npz") as golden:
        upcast = golden["weights_f32_upcast/model.layers.1.self_attn.k_proj.weight"]
        assert np.array_equal(np.asarray(found[1], np.float32), upcast.T)
        upcast_target = dataclasses.replace(target, dtype="float32")
        logits = upcast_target(jnp.asarray(golden["A/input_ids"]))
        assert np.abs(logits - golden["A/f64/logits"]).max() <= 1e-4


@pytest.mark.parametrize(
    ("spelling", "plain"), [("llama_gqa_sharded", "llama_gqa"), ("gpt2_bare_names", "gpt2")]
)
def test_shards_and_bare_names_hold_the_same_model(spelling: str, plain: str) -> None:
    found, expected = load_huggingface(TINY / spelling), load_huggingface(TINY / plain)
    assert found.config == expected.config
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(leaf, wanted)


@pytest.mark.devices(4)
def test_leaves_go_where_the_placement_says() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    asked: dict[str, tuple[int, ...]] = {}

    def place(name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        asked[name] = shape
        return split if name == "layers.mlp.up.weight" else whole

    target = load_huggingface(TINY / "llama_gqa", placement=place)
    assert target.layers.weights["mlp.up"].sharding.is_equivalent_to(split, 3)
    assert target.embedding.sharding.is_equivalent_to(whole, 2)
    assert asked["layers.mlp.up.weight"] == target.layers.weights["mlp.up"].shape
    expected = load_huggingface(TINY / "llama_gqa", placement=leave_to_jax)
    assert np.array_equal(target.layers.weights["mlp.up"], expected.layers.weights["mlp.up"])


def test_tensors_are_views_of_the_file_until_a_device_takes_them() -> None:
    file = SafetensorsFile(TINY / "llama_gqa" / "model.safetensors")
    tensor = file.read("model.embed_tokens.weight")
    assert not tensor.flags.owndata
    assert not tensor.flags.writeable


def loading(folder: Path) -> str:
    """What is said of a folder that cannot be loaded, in one line."""
    with pytest.raises(WeightsError) as caught:
        load_huggingface(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


UP = "model.layers.2.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "mamba"}, r"'model_type' is 'mamba', expected one of llama, qwen2"),
        ({"hidden_size": None}, r"key 'hidden_size' is missing"),
        ({"hidden_size": "48"}, r"key 'hidden_size' is '48', expected a whole number"),
        ({"hidden_act": "quick"}, r"key 'hidden_act' is 'quick', expected one of silu"),
        ({"tie_word_embeddings": 1}, r"key 'tie_word_embeddings' is 1, expected true or false"),
        ({"num_key_value_heads": 3}, r"4 query heads cannot share 3"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters: key 'rope_type' is 'yarn'"),
        ({"rope_parameters": 3}, r"key 'rope_parameters' is 3, expected a mapping"),
        ({"num_hidden_layers": 4}, r"9 of the 39 .* missing, the first is 'model.layers.3"),
        (
            {"num_hidden_layers": 2},
            r"9 tensors that .* does not ask for, the first is 'model.layers",
        ),
        ({"attention_bias": True}, r"12 of the .* missing, the first is .*q_proj.bias"),
        (
            {"intermediate_size": 97},
            r"gate_proj.weight' has shape \[\d+, 48\], expected \[97, 48\]",
        ),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    folder: Path, changes: dict[str, Any], complaint: str
) -> None:
    edit_config(folder, **changes)
    message = loading(folder)
    assert re.search(complaint, message), message
    assert str(folder) in message


@pytest.mark.parametrize(
    ("model_type", "changes", "key"),
    [
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ],
)
def test_arithmetic_that_the_target_does_not_do_is_refused(
    tmp_path: Path, model_type: str, changes: dict[str, Any], key: str
) -> None:
    shutil.copyfile(TINY / model_type / "config.json", tmp_path / "config.json")
    edit_config(tmp_path, **changes)
    with pytest.raises(WeightsError, match=key):
        read_config(tmp_path / "config.json")


def test_damaged_tensors_are_refused(folder: Path) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[UP] = tensors[UP].copy()
        tensors[UP][3, 5] = np.nan

    edit_tensors(folder, lambda tensors: tensors.update({UP: tensors[UP].astype(np.int32)}))
    assert f"tensor {UP!r} is stored as I32, expected one of F64" in loading(folder)
    shutil.copyfile(TINY / "llama_gqa" / "model.safetensors", folder / "model.safetensors")
    edit_tensors(folder, lambda tensors: tensors.update({UP: tensors[UP].astype(np.float16)}))
    assert f"tensor {UP!r} is float16" in loading(folder)
    shutil.copyfile(TINY / "llama_gqa" / "model.safetensors", folder / "model.safetensors")
    edit_tensors(folder, spoil)
    assert f"tensor {UP!r} holds NaN or infinity" in loading(folder)
    edit_tensors(folder, lambda tensors: tensors.pop(UP))
    assert re.search(rf"1 of the \d+ tensors .* missing, the first is {UP!r} \[", loading(folder))


def test_files_that_broke_off_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "truncated" in loading(folder)
    path.write_bytes(whole + b"\0")
    assert "too long" in loading(folder)
    path.write_bytes((16).to_bytes(8, "little") + b"this is no json!")
    assert "no safetensors header" in loading(folder)


def test_files_that_are_not_there_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "found no *.safetensors file; convert pytorch_model.bin first" in loading(folder)
    (folder / "config.json").unlink()
    assert "config.json: not found" in loading(folder)
    assert "expected a model's folder, or a hub name" in loading(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="hub did not give it"):
        find_folder("nobody/no-model")


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY / "llama_gqa_sharded", folder)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(weight_map.values()))
    swapped = dict.fromkeys(weight_map, first)
    index.write_text(json.dumps({"weight_map": swapped}))
    assert "is not there, as model.safetensors.index.json says" in loading(folder)
    index.write_text(json.dumps({"weight_map": weight_map}))
    (folder / second).unlink()
    assert f"1 of its files are missing, the first is {second}" in loading(folder)
    index.write_text("{}")
    assert "no index of tensors by file" in loading(folder)
    index.unlink()
    shutil.copyfile(folder / first, folder / "other.safetensors")
    assert "found 2 safetensors files without" in loading(folder)
