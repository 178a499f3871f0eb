"""Safetensors files, memory-mapped.

A file is eight bytes of length, a JSON header and raw data, so it is read here without a copy: a tensor is a view
of the mapped file until a device takes it. Offsets are checked against the file's size when it is opened, because a
download that broke off would otherwise show only at the tensor that lies beyond its end.

Source: the format's own description (huggingface/safetensors, README, "Format").
"""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from pd_eqx.targets.weights.source import TensorSource, WeightsError

_FLOATING = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
_LENGTH_BYTES = 8
INDEX = "model.safetensors.index.json"


class SafetensorsFile(TensorSource):
    """One file.

    **Errors:** `WeightsError` where it is no safetensors file, or is shorter than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._start, self._entries = _read_header(path)
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {name: tuple(entry["shape"]) for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """See `TensorSource`."""
        entry = self._entries[name]
        dtype = _FLOATING.get(entry["dtype"])
        if dtype is None:
            raise WeightsError(
                f"{self.where}: tensor {name!r} is stored as {entry['dtype']}, "
                f"expected one of {', '.join(_FLOATING)}"
            )
        offset = self._start + entry["data_offsets"][0]
        flat = np.frombuffer(self._bytes, dtype, math.prod(entry["shape"]), offset)
        return flat.reshape(entry["shape"])

    def files(self) -> tuple[Path, ...]:
        """See `TensorSource`."""
        return (self._path,)

    def told(self) -> str:
        """See `TensorSource`."""
        return f"stored as {' and '.join(sorted(self.dtypes()))}"

    def dtypes(self) -> set[str]:
        """In what its tensors are stored, as the format spells it."""
        return {str(entry["dtype"]) for entry in self._entries.values()}


class SafetensorsFolder(TensorSource):
    """The files of a model's folder: one, or several with an index of which tensor lies where.

    **Errors:** `WeightsError` where there are none, where a file of the index is missing, and where a file lacks a
    tensor that the index puts there.
    """

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._files = _open_files(folder)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        by_file = {id(file): file.shapes() for file in self._files.values()}
        return {name: by_file[id(file)][name] for name, file in self._files.items()}

    def read(self, name: str) -> np.ndarray:
        """See `TensorSource`."""
        return self._files[name].read(name)

    def files(self) -> tuple[Path, ...]:
        """See `TensorSource`."""
        return tuple(dict.fromkeys(path for file in self._files.values() for path in file.files()))

    def told(self) -> str:
        """See `TensorSource`."""
        dtypes: set[str] = set()
        for file in {id(file): file for file in self._files.values()}.values():
            dtypes |= file.dtypes()
        return f"stored as {' and '.join(sorted(dtypes))}"


def _open_files(folder: Path) -> dict[str, SafetensorsFile]:
    """The file of each tensor."""
    index = folder / INDEX
    if index.exists():
        return _open_indexed(index)
    paths = sorted(folder.glob("*.safetensors"))
    whole = folder / "model.safetensors"
    if whole in paths:
        paths = [whole]
    if not paths:
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; convert {others[0]} first" if others else ""
        raise WeightsError(f"{folder}: found no *.safetensors file{hint}")
    if len(paths) > 1:
        raise WeightsError(
            f"{folder}: found {len(paths)} safetensors files without {INDEX}, expected one file or an index"
        )
    file = SafetensorsFile(paths[0])
    return dict.fromkeys(file.shapes(), file)


def _open_indexed(index: Path) -> dict[str, SafetensorsFile]:
    try:
        file_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{index}: no index of tensors by file ({error!r})") from error
    missing = sorted({file for file in file_of.values() if not (index.parent / file).exists()})
    if missing:
        raise WeightsError(
            f"{index}: {len(missing)} of its files are missing, the first is {missing[0]}"
        )
    files = {file: SafetensorsFile(index.parent / file) for file in sorted(set(file_of.values()))}
    for name, file in file_of.items():
        if name not in files[file].shapes():
            raise WeightsError(
                f"{files[file].where}: tensor {name!r} is not there, as {INDEX} says"
            )
    return {name: files[file] for name, file in file_of.items()}


def _read_header(path: Path) -> tuple[int, Mapping[str, Any]]:
    """Where the data starts, and each tensor's entry; checked against the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + length
        if start > size:
            raise WeightsError(
                f"{path}: truncated or no safetensors file: it has {size} bytes, its header alone needs {start}"
            )
        try:
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            ends = [_checked_end(path, name, entry) for name, entry in entries.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{path}: no safetensors header ({error!r})") from error
    expected = start + max(ends, default=0)
    if size != expected:
        raise WeightsError(
            f"{path}: {'truncated' if size < expected else 'too long'}: found {size} bytes, "
            f"its header says {expected}; download it again"
        )
    return start, entries


def _checked_end(path: Path, name: str, entry: Mapping[str, Any]) -> int:
    begin, end = entry["data_offsets"]
    dtype = _FLOATING.get(entry["dtype"])
    if dtype is not None and end - begin != math.prod(entry["shape"]) * dtype.itemsize:
        raise WeightsError(
            f"{path}: tensor {name!r} of shape {entry['shape']} and type {entry['dtype']} has {end - begin} bytes"
        )
    return end
