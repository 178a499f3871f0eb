"""A model from wherever it lies: a folder, a GGUF file, or the hub."""

from pathlib import Path

import jax

from pd_eqx.targets.transformer import Transformer
from pd_eqx.targets.weights.assemble import Placement, leave_to_jax
from pd_eqx.targets.weights.gguf import load_gguf
from pd_eqx.targets.weights.huggingface import load_huggingface


def load_model(
    model: str | Path,
    *,
    dtype: jax.typing.DTypeLike | None = None,
    placement: Placement = leave_to_jax,
) -> Transformer:
    """A published language model as a target.

    **Arguments:**

    - `model`: a `.gguf` file, a folder in the Hugging Face format, or a name on the hub.
    - `dtype`: what to store the weights in; None for the file's own.
    - `placement`: the sharding of each leaf.

    **Errors:** `WeightsError`, one line, for anything that keeps the files from being the model they say they are.
    """
    if str(model).endswith(".gguf"):
        return load_gguf(model, dtype=dtype, placement=placement)
    return load_huggingface(model, dtype=dtype, placement=placement)
