"""Files that `torch.save` wrote, read without torch and without running anything that is in them.

Such a file is a zip archive: a pickle that says which tensor is a view of which storage, and each storage as raw bytes.
A pickle is a program, and loading one from a stranger runs it. This reader gives the pickle machine a world in
which there are four things that it can name: an ordered dictionary, a storage type, and the two functions that torch
rebuilds tensors and parameters with, each of them a stand-in of ours that cannot be altered. Whatever else a file names is
refused before it is called, and so is a view that reaches outside its storage.

Source: the layout as PyTorch 1.6 to 2.13 write it (`torch.serialization`, zip format).
"""

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pd_eqx.targets.weights.source import TensorSource, WeightsError

_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(jnp.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
# The program of a state dict of a thousand tensors has a fifth of a megabyte.
_LONGEST_PROGRAM = 1 << 26


class _View(NamedTuple):
    """A tensor: a view of the storage under `key`."""

    dtype: np.dtype[Any]
    key: str
    numel: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile(TensorSource):
    """A state dict in the zip format of `torch.save`.

    **Errors:** `WeightsError` where it is no such file, names anything but tensors, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._prefix = self._checked(archive)
                loaded = self._load(archive)
        except zipfile.BadZipFile:
            raise WeightsError(
                f"{path}: no zip archive; it was written by PyTorch before 1.6, or is no PyTorch file. Load it "
                "there and save it again"
            ) from None
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror or error}") from None
        self._views = self._state_dict(loaded)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {name: view.shape for name, view in self._views.items()}

    def read(self, name: str) -> np.ndarray:
        """See `TensorSource`; a copy in C order."""
        if name not in self._views:
            raise WeightsError(f"{self.where}: there is no tensor {name!r}")
        view = self._views[name]
        if view.dtype.kind not in "fV":
            raise WeightsError(f"{self.where}: tensor {name!r} is {view.dtype}, expected floating")
        try:
            with zipfile.ZipFile(self._path) as archive:
                content = archive.read(f"{self._prefix}/data/{view.key}")
        except (KeyError, zipfile.BadZipFile, OSError) as error:
            raise WeightsError(f"{self.where}: tensor {name!r} cannot be read: {error}") from None
        storage = np.frombuffer(content, view.dtype)
        last = view.offset + sum(
            (size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)
        )
        numel = math.prod(view.shape)
        if storage.size != view.numel or (numel and last >= storage.size) or numel > storage.size:
            raise WeightsError(
                f"{self.where}: tensor {name!r} of shape {list(view.shape)} reaches outside its storage of "
                f"{storage.size} entries; the file is damaged"
            )
        if not numel:
            return np.zeros(view.shape, view.dtype)
        strides = tuple(stride * view.dtype.itemsize for stride in view.strides)
        shown = np.lib.stride_tricks.as_strided(
            storage[view.offset :], view.shape, strides, writeable=False
        )
        return np.array(shown, order="C")

    def files(self) -> tuple[Path, ...]:
        """See `TensorSource`."""
        return (self._path,)

    def told(self) -> str:
        """See `TensorSource`."""
        dtypes = {view.dtype.name for view in self._views.values()}
        return f"stored as {' and '.join(sorted(dtypes))}"

    def _checked(self, archive: zipfile.ZipFile) -> str:
        """The folder that everything in the archive is in."""
        programs = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(programs) != 1 or programs[0].count("/") != 1:
            raise WeightsError(
                f"{self.where}: a zip archive, but not one of torch.save: it holds {len(programs)} data.pkl"
            )
        packed = [each.filename for each in archive.infolist() if each.compress_type]
        if packed:
            raise WeightsError(
                f"{self.where}: {packed[0]} is compressed, as torch.save never does; repack it without compression"
            )
        prefix = programs[0].partition("/")[0]
        order = f"{prefix}/byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise WeightsError(
                f"{self.where}: written on a big-endian machine; save it again elsewhere"
            )
        return prefix

    def _load(self, archive: zipfile.ZipFile) -> Any:
        name = f"{self._prefix}/data.pkl"
        if archive.getinfo(name).file_size > _LONGEST_PROGRAM:
            raise WeightsError(f"{self.where}: data.pkl is too long to be that of a state dict")
        try:
            return _Reader(io.BytesIO(archive.read(name)), self.where).load()
        except WeightsError:
            raise
        # A hostile program can fail in any way there is.
        except Exception as error:  # noqa: BLE001
            raise WeightsError(
                f"{self.where}: data.pkl is not that of a state dict: {error}"
            ) from None

    def _state_dict(self, loaded: Any) -> dict[str, _View]:
        if not isinstance(loaded, dict):
            raise WeightsError(
                f"{self.where}: holds a {type(loaded).__name__}, expected a state dict: names and tensors"
            )
        others = [name for name, view in loaded.items() if not isinstance(view, _View)]
        if others or not all(isinstance(name, str) for name in loaded):
            raise WeightsError(
                f"{self.where}: {others[0] if others else 'a key'!r} is no named tensor; expected a state dict"
            )
        return dict(loaded)


class _StateDict(dict[Any, Any]):
    """Stands for an ordered dictionary; what torch notes on it beside its items is dropped."""

    def __setstate__(self, state: Any) -> None:
        pass


class _StandIn:
    """What a pickle may call. It has no attributes, so the pickle cannot set any on it."""

    __slots__ = ("__call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_StandIn__call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self.__call(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"it sets {name!r} on what it was lent")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it alters what it was lent")


class _Reader(pickle.Unpickler):
    """The pickle machine in a world of four names."""

    def __init__(self, file: io.BytesIO, where: str) -> None:
        super().__init__(file)
        self._where = where

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        match module_name, global_name:
            case "collections", "OrderedDict":
                return _StandIn(_StateDict)
            case "torch._utils", "_rebuild_tensor_v2":
                return _StandIn(_rebuilt)
            case "torch._utils", "_rebuild_parameter":
                return _StandIn(lambda view, *_: view)
            case "torch", name if name in _DTYPES:
                return name
            case _:
                raise WeightsError(
                    f"{self._where}: refused: it asks to run {module_name}.{global_name}, and a file of weights has "
                    "no need of that. Nothing in it was run. If you trust who made it, load it with PyTorch and save "
                    "its state dict alone"
                )

    def persistent_load(self, pid: Any, /) -> Any:
        kind, storage_type, key, _, numel = pid
        if kind != "storage" or not isinstance(key, str) or not key.isalnum():
            raise pickle.UnpicklingError(f"it refers to {kind!r} {key!r}")
        return _Storage(_DTYPES[storage_type], key, int(numel))


class _Storage(NamedTuple):
    dtype: np.dtype[Any]
    key: str
    numel: int


def _rebuilt(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor has no storage")
    numbers = [offset, *shape, *strides]
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise pickle.UnpicklingError(f"a tensor of shape {shape}, strides {strides}")
    return _View(storage.dtype, storage.key, storage.numel, offset, tuple(shape), tuple(strides))
