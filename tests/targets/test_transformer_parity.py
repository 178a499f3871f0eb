"""The transformer computes what the published families compute: golden numbers `hf`, every model, every matrix."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.linear import frozen, recording
from pd_eqx.targets.transformer import Transformer
from pd_eqx.targets.weights.families import FAMILIES
from pd_eqx.targets.weights.huggingface import load_huggingface, read_config

TINY = Path(__file__).parents[1] / "golden" / "hf" / "tiny"
MODELS = ("llama_gqa", "llama_tied_bias", "gpt2", "gpt_neox", "qwen2", "qwen3")

# Matrices that read the same input, which is stored once, under the first one's name.
_SAME_INPUT = {"attn.k": "attn.q", "attn.v": "attn.q", "mlp.up": "mlp.gate"}


@functools.cache
def load(model: str) -> Transformer:
    """In float64, which holds the stored float32 exactly."""
    with jax.enable_x64(True):
        return load_huggingface(TINY / model, dtype=jnp.float64)


@functools.cache
def golden(model: str) -> Mapping[str, np.ndarray]:
    with np.load(TINY / model / "golden.npz", allow_pickle=False) as file:
        return dict(file)


def cast(target: Transformer, dtype: str) -> Transformer:
    as_dtype = jax.tree.map(lambda leaf: leaf.astype(dtype), target)
    return dataclasses.replace(as_dtype, dtype=dtype)


# Compiled in a hurry: the numbers are held to tolerances, and the time goes into compiling.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})


@quick_jit
def everything(target: Transformer, ids: jax.Array) -> dict[str, Any]:
    site_inputs: dict[str, jax.Array] = {}
    site_outputs: dict[str, jax.Array] = {}
    stream = target.residual_stream(ids, recording(frozen, site_inputs, site_outputs))
    patterns = [
        target.attention_pattern(index, site_outputs) for index in range(target.config.depth)
    ]
    return {
        "logits": target(ids),
        "embed": stream[0],
        "resid": stream[1:],
        "in": site_inputs,
        "out": site_outputs,
        "attn": patterns,
    }


@quick_jit
def ends(target: Transformer, ids: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the head reads, what it says, and the loss of each next token."""
    hidden = target.hidden(ids)
    logits = target.unembed(hidden)
    log_probabilities = jax.nn.log_softmax(logits[:, :-1])
    nll = -jnp.take_along_axis(log_probabilities, ids[:, 1:, None], axis=-1)[..., 0]
    return hidden, logits, nll


def module_names(model: str, target: Transformer) -> dict[str, str]:
    """The golden's name of each site."""
    family, _ = read_config(TINY / model / "config.json")
    return {
        name: f"{family.prefix}{family.layer.format(index)}{family.matrices[kind]}"
        for index, layer in enumerate(target.site_names())
        for kind, name in layer.items()
    }


def compare(found: jax.Array, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert found.shape == expected.shape, what
    assert np.max(np.abs(np.asarray(found) - expected)) <= tolerance, what


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_every_activation_is_the_familys(model: str, dtype: str) -> None:
    numbers = golden(model)
    exact = dtype == "float64"
    tolerance = 1e-10 if exact else 5e-5
    with jax.enable_x64(exact):
        target = cast(load(model), dtype)
        found = everything(target, jnp.asarray(numbers["A/input_ids"]))
        assert found["logits"].dtype == dtype
        compare(found["logits"], numbers["A/f64/logits"], 1e-10 if exact else 1e-4, "logits")
        relative = (
            np.abs(found["logits"] - numbers["A/f32/logits"])
            / np.abs(numbers["A/f32/logits"]).max()
        )
        assert relative.max() <= 1e-4
        compare(found["embed"], numbers["A/f64/embed"], tolerance, "embed")
        for index, after in enumerate(found["resid"]):
            compare(after, numbers[f"A/f64/resid/{index}"], tolerance, f"resid/{index}")
        for index, pattern in enumerate(found["attn"]):
            compare(pattern, numbers[f"A/f64/attn/{index}"], tolerance, f"attn/{index}")
        assert len(module_names(model, target)) == len(target.sites())
        for index, layer in enumerate(target.site_names()):
            for kind, site in layer.items():
                module = module_names(model, target)[layer[_same_input(kind, layer)]]
                compare(found["in"][site], numbers[f"A/f64/in/{module}"], tolerance, f"in/{site}")
                bias = target.layers.biases.get(kind)
                outputs = found["out"][site] + (0.0 if bias is None else bias[index])
                module = module_names(model, target)[site]
                compare(outputs, numbers[f"A/f64/out/{module}"], tolerance, f"out/{site}")


def _same_input(kind: str, layer: Mapping[str, str]) -> str:
    first = _SAME_INPUT.get(kind, kind)
    return first if first in layer else kind


@pytest.mark.parametrize("model", MODELS)
def test_a_longer_batch_of_one_gives_the_familys_numbers(model: str) -> None:
    numbers = golden(model)
    target = cast(load(model), "float32")
    hidden, logits, nll = ends(target, jnp.asarray(numbers["B/input_ids"]))
    compare(logits, numbers["B/f64/logits"], 1e-4, "logits")
    compare(hidden, numbers["B/f64/final_norm"], 5e-5, "final_norm")
    assert abs(nll.mean() - numbers["B/f64/nll"].mean()) <= 1e-5


def test_a_sequential_neox_is_another_model() -> None:
    numbers = golden("gpt_neox")
    target = cast(load("gpt_neox"), "float32")
    config = dataclasses.replace(target.config, parallel=False)
    logits = quick_jit(Transformer.__call__)(
        dataclasses.replace(target, config=config), jnp.asarray(numbers["A/input_ids"])
    )
    compare(logits, numbers["A/f64/logits_sequential_residual"], 1e-4, "logits")


@pytest.mark.parametrize("model", [model for model in MODELS if model != "gpt2"])
def test_rotary_frequencies_are_the_familys(model: str) -> None:
    rotary = load(model).config.rotary
    assert rotary is not None
    expected = golden(model)["rope/inv_freq_f64"]
    np.testing.assert_allclose(rotary.frequencies(), expected, rtol=1e-14)


def test_every_family_has_its_parity() -> None:
    compared = {read_config(TINY / model / "config.json")[0].config for model in MODELS}
    left = {name for name, family in FAMILIES.items() if family.config not in compared}
    # Nobody publishes the simple-MLP family's numbers: tests/targets/test_transformer.py computes them.
    assert left == {"llama_simple_mlp"}
