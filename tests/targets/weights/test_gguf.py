"""A GGUF file and a folder that hold the same numbers become the same target."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from pd_eqx.targets.weights.gguf import load_gguf
from pd_eqx.targets.weights.huggingface import load_huggingface
from pd_eqx.targets.weights.load import load_model
from pd_eqx.targets.weights.source import WeightsError

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS, HEAD, WIDTH, MLP, DEPTH, VOCABULARY = 4, 2, 8, 32, 64, 2, 24
MODULES = {
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD, WIDTH)),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD, WIDTH)),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD, WIDTH)),
    "attn_output": ("self_attn.o_proj", (WIDTH, HEADS * HEAD)),
    "ffn_gate": ("mlp.gate_proj", (MLP, WIDTH)),
    "ffn_up": ("mlp.up_proj", (MLP, WIDTH)),
    "ffn_down": ("mlp.down_proj", (WIDTH, MLP)),
    "attn_norm": ("input_layernorm", (WIDTH,)),
    "ffn_norm": ("post_attention_layernorm", (WIDTH,)),
}


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of interleaved rotary pairs: row 2j + s of a head is its row j + half · s."""
    half = values.shape[0] // heads // 2
    order = [
        head * 2 * half + j + half * s for head in range(heads) for j in range(half) for s in (0, 1)
    ]
    return values[order]


def write_both(
    folder: Path, *, arch: str = "llama", leave_out: str = "", biases: bool = False
) -> Path:
    """The same model twice: `model.gguf`, its matrices quantised, and `hf/` with what they stand for."""
    rng = np.random.default_rng(4)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    writer.add_block_count(DEPTH)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, published: str, values: np.ndarray) -> None:
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        permuted = arch == "llama" and heads is not None
        stored = interleave(values, heads or 1) if permuted else values
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quants.quantize(stored, kind)
            # Blocks lie within a row, so quantising and reordering rows commute.
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
            if name != leave_out:
                writer.add_tensor(name, data, raw_dtype=kind)
        elif name != leave_out:
            writer.add_tensor(name, stored)
        tensors[published] = values.astype(np.float32)

    def random(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    add("token_embd.weight", "model.embed_tokens.weight", random(VOCABULARY, WIDTH))
    add("output_norm.weight", "model.norm.weight", random(WIDTH))
    for layer in range(DEPTH):
        for name, (module, shape) in MODULES.items():
            prefix = f"model.layers.{layer}.{module}"
            add(f"blk.{layer}.{name}.weight", f"{prefix}.weight", random(*shape))
            if biases and name in ("attn_q", "attn_k", "attn_v"):
                add(f"blk.{layer}.{name}.bias", f"{prefix}.bias", random(shape[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config: dict[str, Any] = {
        "model_type": arch,
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 5000.0,
        "tie_word_embeddings": True,
    }
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "hf" / "model.safetensors")
    return folder / "model.gguf"


@pytest.mark.parametrize(("arch", "biases"), [("llama", False), ("qwen2", True)])
def test_the_same_numbers_give_the_same_target(tmp_path: Path, arch: str, biases: bool) -> None:
    path = write_both(tmp_path, arch=arch, biases=biases)
    found, expected = load_model(path), load_huggingface(tmp_path / "hf")
    assert found.config == expected.config
    for (where, leaf), wanted in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        assert np.array_equal(leaf, wanted), jax.tree_util.keystr(where)


def test_a_file_that_is_not_the_model_it_says_is_refused(tmp_path: Path) -> None:
    missing = "blk.1.ffn_up.weight"
    path = write_both(tmp_path, leave_out=missing)
    with pytest.raises(WeightsError, match=rf"1 of the \d+ tensors .* the first is '{missing}'"):
        load_gguf(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="truncated or no GGUF file"):
        load_gguf(path)
    path.write_bytes(b"nothing of the sort")
    with pytest.raises(WeightsError, match="truncated or no GGUF file"):
        load_gguf(path)
    with pytest.raises(WeightsError, match="not found"):
        load_gguf(tmp_path / "nowhere.gguf")


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = write_both(tmp_path, arch="mamba")
    with pytest.raises(WeightsError, match="architecture is 'mamba', expected one of llama, qwen2"):
        load_gguf(path)
