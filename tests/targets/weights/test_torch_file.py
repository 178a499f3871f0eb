"""Weights that PyTorch wrote are read, and nothing in their file is ever run."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pd_eqx.targets.weights.source import WeightsError
from pd_eqx.targets.weights.torch_file import TorchFile

TMS = Path(__file__).parents[2] / "golden" / "spd_runs" / "tms_5-2" / "model_10000.pth"

STORAGE = b"(X\x07\x00\x00\x00storage%sX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK%ctQ"
FLOAT = b"ctorch\nFloatStorage\n"


def program(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, numel: int = 12
) -> bytes:
    """The pickle of `{"w": a view of storage 0}`, as PyTorch would write it."""

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    storage = STORAGE % (FLOAT, numel)
    view = storage + b"K%c" % offset + numbers(shape) + numbers(strides)
    view += b"\x89ccollections\nOrderedDict\n)R"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + view + b"tR"
    return b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00w" + tensor + b"u."


def written(path: Path, data: bytes, *, packed: bool = False, order: bytes = b"little") -> Path:
    ramp = np.arange(12, dtype="<f4").tobytes()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("w/data.pkl", data)
        archive.writestr("w/byteorder", order)
        archive.writestr("w/data/0", ramp)
    return path


RAMP = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "expected"),
    [
        ((3, 4), (4, 1), 0, RAMP.reshape(3, 4)),
        ((4, 3), (1, 4), 0, RAMP.reshape(3, 4).T),
        ((2, 2), (4, 1), 5, np.array([[5, 6], [9, 10]], np.float32)),
        ((), (), 7, np.float32(7)),
    ],
)
def test_a_view_is_what_it_shows(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, expected: Any, tmp_path: Path
) -> None:
    file = TorchFile(written(tmp_path / "w.pth", program(shape, strides, offset)))
    assert file.shapes() == {"w": shape}
    found = file.read("w")
    np.testing.assert_array_equal(found, expected)
    assert (found.shape, found.dtype) == (shape, np.float32)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "numel"),
    [
        ((3, 4), (4, 1), 1, 12),  # beyond the end
        ((3, 4), (4, 1), 0, 13),  # the storage is shorter than it says
        ((100, 100), (0, 0), 0, 12),  # within, and yet larger than what is there
    ],
)
def test_a_view_stays_in_its_storage(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, numel: int, tmp_path: Path
) -> None:
    file = TorchFile(written(tmp_path / "w.pth", program(shape, strides, offset, numel)))
    with pytest.raises(WeightsError, match="reaches outside its storage"):
        file.read("w")


class Executes:
    """What `pickle.load` of it would do: make a file."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how = path, how

    def __reduce__(self) -> Any:
        if self.how == "system":
            return getattr(os, "system"), (f"touch {self.path}",)  # noqa: B009
        if self.how == "eval":
            return eval, (f"open({str(self.path)!r}, 'w')",)
        return getattr, (self.path, "touch")


@pytest.mark.parametrize("how", ["system", "eval", "getattr"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_whatever_a_file_wants_to_run_is_refused(how: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "it_ran"
    data = pickle.dumps({"w": Executes(mark, how)}, protocol)
    with pytest.raises(WeightsError, match=r"refused: it asks to run .*Nothing in it was run"):
        TorchFile(written(tmp_path / "w.pth", data))
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        # Instantiates through the older opcodes, which have their own way to a class.
        b"(S'touch it_ran'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch it_ran'\no.",
        # A name of ours, reached through a dotted path from one that is allowed.
        b"\x80\x04\x8c\x0bcollections\x8c\x20OrderedDict.__init__.__globals__\x93.",
        # From the registry of extensions; through the loader itself; through a builtin that torch would allow.
        b"\x80\x02\x82\x01.",
        b"cpickle\nloads\n(S'x'\ntR.",
        b"ctorch.serialization\nload\n(S'x'\ntR.",
        # Alters what it was lent, so that the next one that is loaded would do something else.
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x04\x00\x00\x00callcbuiltins\neval\nsb.",
        b"\x80\x02ccollections\nOrderedDict\n}X\x0c\x00\x00\x00__setstate__K\x01sb.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        # A storage that is a path out of the archive.
        b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x06\x00\x00\x00../../X\x03\x00\x00\x00cpuK\x01tQ.",
        b"no pickle",
        b"",
    ],
)
def test_a_hostile_or_broken_program_is_refused(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError):
        TorchFile(written(tmp_path / "w.pth", data))
    assert [path.name for path in tmp_path.iterdir()] == ["w.pth"]
    intact = TorchFile(written(tmp_path / "v.pth", program((12,), (1,), 0)))
    np.testing.assert_array_equal(intact.read("w"), RAMP)


def test_what_is_no_state_dict_is_told(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    cases = [
        (lambda: written(path, pickle.dumps([1, 2])), "holds a list, expected a state dict"),
        (lambda: written(path, pickle.dumps({"a": 1})), "'a' is no named tensor"),
        (lambda: written(path, program((12,), (1,), 0), packed=True), "is compressed"),
        (lambda: written(path, program((12,), (1,), 0), order=b"big"), "big-endian"),
        (lambda: path.write_bytes(pickle.dumps({})), "no zip archive"),
        (lambda: path.write_bytes(TMS.read_bytes()[:-200]), "no zip archive"),
        (path.unlink, "No such file"),
    ]
    for make, said in cases:
        make()
        with pytest.raises(WeightsError, match=said):
            TorchFile(path)


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("notes.txt", "x")
    (tmp_path / "w.pth").write_bytes(content.getvalue())
    with pytest.raises(WeightsError, match=r"holds 0 data\.pkl"):
        TorchFile(tmp_path / "w.pth")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    content = bytearray(TMS.read_bytes())
    name = "_components.linear1.V"
    at = content.find(TorchFile(TMS).read(name).tobytes())
    content[at] ^= 1
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=f"tensor '{name}' cannot be read"):
        TorchFile(tmp_path / "w.pth").read(name)
