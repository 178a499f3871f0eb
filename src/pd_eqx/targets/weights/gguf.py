"""Models in GGUF files, which are mostly quantised: the target is the model that the quantised numbers stand for.

Weights are dequantised tensor by tensor to float32. Files of architecture `llama` hold the rows of queries and keys in the
order of interleaved rotary pairs; they are put back here, or attention would turn the wrong pairs and the model would still
speak, only worse.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pd_eqx.targets.rotary import FactorScaling, LinearScaling, Rotary, Scaling, Unscaled
from pd_eqx.targets.transformer import GatedMLP, RMSNorm, Transformer, TransformerConfig
from pd_eqx.targets.weights.assemble import Placement, assemble, leave_to_jax
from pd_eqx.targets.weights.families import Family
from pd_eqx.targets.weights.reader import ConfigReader
from pd_eqx.targets.weights.source import TensorSource, WeightsError


@dataclasses.dataclass(frozen=True)
class _Architecture:
    """What the name of an architecture means.

    - `permuted`: queries and keys are stored in the order of interleaved pairs.
    - `qk_norm`: see `TransformerConfig`.
    """

    permuted: bool = False
    qk_norm: bool = False


_ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture(permuted=True),
    "qwen2": _Architecture(),
    "qwen3": _Architecture(qk_norm=True),
}

_MATRICES = {
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_ROTARY_FACTORS = "rope_freqs.weight"


class GGUFFile(TensorSource):
    """One file: its tensors, dequantised, and its metadata. Needs the `lm` extra.

    **Errors:** `WeightsError` where it is no GGUF file, or is truncated.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._reader = _open(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self.field("general.architecture"))

    def field(self, key: str, default: Any = None) -> Any:
        """One value of the metadata."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def config(self) -> ConfigReader:
        """The metadata of the file's architecture, without its prefix; long lists are left out."""
        prefix = f"{self.architecture}."
        keys = [key for key in self._reader.fields if key.startswith(prefix)]
        return ConfigReader({key[len(prefix) :]: self.field(key) for key in keys}, self.where)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`; GGUF itself lists dimensions in the reverse order."""
        return {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> np.ndarray:
        """See `TensorSource`; in float32."""
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise WeightsError(
                f"{self.where}: tensor {name!r} is stored as {tensor.tensor_type.name}, "
                "which cannot be dequantised"
            ) from error
        return self._in_order(name, values.reshape(self.shapes()[name]))

    def files(self) -> tuple[Path, ...]:
        """See `TensorSource`."""
        return (self._path,)

    def told(self) -> str:
        """See `TensorSource`; norms and biases, which are vectors, are not named."""
        kinds = [t.tensor_type.name for t in self._tensors.values() if len(t.shape) > 1]
        names = sorted(set(kinds), key=kinds.count, reverse=True)
        exact = all(name in ("F32", "F16", "BF16") for name in names)
        return f"{'stored as' if exact else 'dequantised from'} {' and '.join(names)}"

    def _in_order(self, name: str, values: np.ndarray) -> np.ndarray:
        if not _ARCHITECTURES[self.architecture].permuted:
            return values
        reader, part = self.config(), name.split(".")[-2]
        heads = reader.integer("attention.head_count")
        if part == "attn_k":
            heads = reader.integer("attention.head_count_kv", heads)
        elif part != "attn_q":
            return values
        pairs = values.reshape(heads, -1, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)


def open_gguf(path: Path) -> tuple[GGUFFile, Family, TransformerConfig]:
    """A file, what its tensors are called, and the model's sizes; reads no weights.

    **Errors:** `WeightsError`, one line, for an architecture that is not known and a file that is truncated.
    """
    file = GGUFFile(path)
    if file.architecture not in _ARCHITECTURES:
        raise WeightsError(
            f"{path}: architecture is {file.architecture!r}, expected one of {', '.join(_ARCHITECTURES)}"
        )
    family = Family(
        config=lambda reader: _read_config(file, reader),
        prefix="",
        embedding="token_embd",
        norm="output_norm",
        head="output",
        layer="blk.{}.",
        matrices=_MATRICES,
        norms={"attn": "attn_norm", "mlp": "ffn_norm", "q": "attn_q_norm", "k": "attn_k_norm"},
        buffers=(_ROTARY_FACTORS,),
    )
    try:
        return file, family, family.config(file.config())
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


def load_gguf(
    path: str | Path,
    *,
    dtype: jax.typing.DTypeLike | None = None,
    placement: Placement = leave_to_jax,
) -> Transformer:
    """The model of a GGUF file as a target, dequantised.

    **Arguments:**

    - `dtype`: what to store the weights in; None for float32.
    - `placement`: the sharding of each leaf.

    **Errors:** those of `open_gguf`, and `WeightsError` for tensors that are missing or do not fit, and types that
    cannot be dequantised.
    """
    return assemble(*open_gguf(Path(path).expanduser()), dtype, placement)


def _read_config(file: GGUFFile, reader: ConfigReader) -> TransformerConfig:
    reader.require("expert_count", 0)
    shapes = file.shapes()
    if "token_embd.weight" not in shapes:
        raise WeightsError(f"{file.where}: tensor 'token_embd.weight' is missing")
    width, heads = reader.integer("embedding_length"), reader.integer("attention.head_count")
    head_width = reader.integer("attention.key_length", width // heads)
    return TransformerConfig(
        vocabulary=shapes["token_embd.weight"][0],
        width=width,
        depth=reader.integer("block_count"),
        heads=heads,
        kv_heads=reader.integer("attention.head_count_kv", heads),
        head_width=head_width,
        mlp_width=reader.integer("feed_forward_length"),
        norm=RMSNorm(reader.number("attention.layer_norm_rms_epsilon")),
        mlp=GatedMLP("silu"),
        biased=frozenset(
            kind for kind, module in _MATRICES.items() if f"blk.0.{module}.bias" in shapes
        ),
        rotary=Rotary(
            reader.integer("rope.dimension_count", head_width),
            reader.number("rope.freq_base", 10000.0),
            _scaling(file, reader),
        ),
        qk_norm=_ARCHITECTURES[file.architecture].qk_norm,
        tied="output.weight" not in shapes,
    )


def _scaling(file: GGUFFile, reader: ConfigReader) -> Scaling:
    if _ROTARY_FACTORS in file.shapes():
        return FactorScaling(tuple(float(factor) for factor in file.read(_ROTARY_FACTORS)))
    reader.require("rope.scaling.type", "none", "linear")
    if reader.values.get("rope.scaling.type") == "linear":
        return LinearScaling(reader.number("rope.scaling.factor"))
    return Unscaled()


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise WeightsError(f"{path}: GGUF files need `pip install 'pd_eqx[lm]'`") from error
    if not path.is_file():
        raise WeightsError(f"{path}: not found")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, TypeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{path}: truncated or no GGUF file ({reason})") from error
