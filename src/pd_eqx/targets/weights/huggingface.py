"""Models in the Hugging Face format: a folder with `config.json` and safetensors, here or on the hub."""

import json
from pathlib import Path

import jax

from pd_eqx.targets.transformer import Transformer, TransformerConfig
from pd_eqx.targets.weights.assemble import Placement, assemble, leave_to_jax
from pd_eqx.targets.weights.families import Family, find_family
from pd_eqx.targets.weights.reader import ConfigReader
from pd_eqx.targets.weights.safetensors import SafetensorsFolder
from pd_eqx.targets.weights.source import WeightsError


def load_huggingface(
    model: str | Path,
    *,
    revision: str | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    placement: Placement = leave_to_jax,
) -> Transformer:
    """A published model as a target.

    **Arguments:**

    - `model`: a folder, or a name on the hub (`HuggingFaceTB/SmolLM2-135M`), which needs the `lm` extra and, unless
      it was downloaded before, a network.
    - `revision`: of the hub's model.
    - `dtype`: what to store the weights in; None for the file's own.
    - `placement`: the sharding of each leaf.

    **Errors:** `WeightsError`, one line, for anything that keeps the files from being the model they say they are.
    """
    folder = find_folder(model, revision)
    family, config = read_config(folder / "config.json")
    return assemble(SafetensorsFolder(folder), family, config, dtype, placement)


def read_config(path: Path) -> tuple[Family, TransformerConfig]:
    """The family and sizes that a `config.json` names.

    **Errors:** `WeightsError` where it is missing, no JSON, of an unknown family, or asks for what no target does.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: not found; a model's folder holds config.json") from error
    except ValueError as error:
        raise WeightsError(f"{path}: no JSON ({error})") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{path}: found a {type(values).__name__}, expected a mapping")
    reader = ConfigReader(values, str(path))
    family = find_family(reader)
    try:
        return family, family.config(reader)
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


def read_dtype(path: Path) -> str:
    """The dtype in which a `config.json` says that the weights are stored; float32 if it does not."""
    values = json.loads(path.read_text())
    return str(values.get("dtype") or values.get("torch_dtype") or "float32")


def find_folder(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model, downloaded from the hub where `model` is no folder here.

    **Errors:** `WeightsError` where it is neither.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    name = str(model)
    if folder.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise WeightsError(
            f"{folder}: expected a model's folder, or a hub name such as owner/model"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise WeightsError(
            f"{name}: no such folder, and names on the hub need `pip install 'pd_eqx[lm]'`"
        ) from error
    patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(
            f"{name}: no such folder, and the hub did not give it: {reason}"
        ) from error
