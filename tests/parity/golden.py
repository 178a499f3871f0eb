"""Golden arrays: reading them, comparing against them, and keeping account of every one.

A golden file is worth as much as the part of it that is compared. So each array has to be an input that a
test read, a result that a test checked, or be left out for a stated reason; `test_account.py` fails for any
other, and the counts and the reasons are printed at the end of a run.

A test module names its file and takes the `golden` fixture, which runs its tests in x64 and in float32:

    GOLDEN = "01_sigmoids"
    LEFT_OUT = {"swish/*": "not a squashing of this library"}     # glob → reason; optional

    def test_forward(golden: Golden) -> None:
        golden.check("lower/fwd", LeakyHard().lower(golden["x"]), "A")

    @pytest.mark.parametrize("precision", ["x64"], indirect=True)     # for class D, or where asked for
    def test_trajectory(golden: Golden) -> None: ...

The module's name begins with the file's number (`test_01_sigmoids.py`); a file may have several modules.
Tolerance classes are those of the golden README (`TOLERANCES`).
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

FOLDER = Path(__file__).parents[1] / "golden" / "method"

Precision = Literal["x64", "float32"]
Tolerance = Literal["A", "B", "C", "D", "E", "S"]


@dataclasses.dataclass(frozen=True)
class Bounds:
    """`|found − golden| ≤ rtol · |golden| + atol + atol_of_max · max|golden|`."""

    rtol: float = 0.0
    atol: float = 0.0
    atol_of_max: float = 0.0


# By class: in x64, and in float32 (None: not to be compared there).
TOLERANCES: Mapping[Tolerance, tuple[Bounds, Bounds | None]] = {
    "A": (Bounds(1e-10, 1e-12), Bounds(1e-5, 0.0, 1e-6)),
    "B": (Bounds(1e-5, 1e-6), Bounds(1e-5, 1e-6)),
    "C": (Bounds(1e-8, 1e-12), Bounds(0.0, 0.0, 1e-4)),
    "D": (Bounds(1e-6, 1e-7), None),
    "E": (Bounds(1e-5, 1e-6), Bounds(1e-4, 0.0, 1e-6)),
    "S": (Bounds(0.0, 0.0, 0.03), Bounds(0.0, 0.0, 0.03)),
}


def golden_keys(name: str, pattern: str = "*") -> list[str]:
    """The names of a file's arrays that match a glob, for parametrising tests; reads no array."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return [key for key in file.files if fnmatch.fnmatchcase(key, pattern)]


def golden_cases(name: str, pattern: str) -> list[str]:
    """What stands for the first `*` of `pattern` in the names that match it, without repeats.

    `golden_cases("08_optim_schedules", "sched/*/value")` gives the cases of the schedules.
    """
    before, _, _ = pattern.partition("*")
    rest = [key[len(before) :] for key in golden_keys(name, pattern)]
    return list(dict.fromkeys(key.partition("/")[0] for key in rest))


class Account:
    """What has become of each array of one file in this test session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrays = frozenset(golden_keys(name))
        self.read: set[str] = set()
        self.checked: dict[Precision, set[str]] = {"x64": set(), "float32": set()}
        self.left_out: dict[str, str] = {}
        self.in_part: dict[Precision, dict[str, str]] = {"x64": {}, "float32": {}}

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Names the arrays that no test checks, by glob; a glob that matches nothing is an error."""
        for pattern, reason in reasons.items():
            matching = fnmatch.filter(self.arrays, pattern)
            if not matching:
                raise ValueError(f"{self.name}: {pattern!r} is left out but matches no array")
            self.left_out.update(dict.fromkeys(matching, reason))

    @property
    def all_checked(self) -> set[str]:
        """Arrays that were compared, in whichever precision."""
        return self.checked["x64"] | self.checked["float32"]

    @property
    def forgotten(self) -> list[str]:
        """Arrays that are no input, no result and not left out."""
        return sorted(self.arrays - self.read - self.all_checked - set(self.left_out))

    @property
    def stale(self) -> list[str]:
        """Arrays that are left out for a reason and yet checked."""
        return sorted(self.all_checked & set(self.left_out))


class Golden:
    """One golden file as one test sees it; arrays come in the precision that the test runs in."""

    def __init__(self, account: Account, arrays: Mapping[str, np.ndarray], precision: Precision):
        self.precision: Precision = precision
        self._account = account
        self._arrays = arrays

    def __getitem__(self, key: str) -> Array:
        """An input: float64 in x64, float32 otherwise; integers and booleans as they are."""
        return jnp.asarray(self.numpy(key))

    def numpy(self, key: str) -> np.ndarray[Any, Any]:
        """An input as it is stored, in float64."""
        self._account.read.add(key)
        return self._arrays[key]

    def scalar(self, key: str) -> float:
        """An input of one entry, as a Python number."""
        return self.numpy(key).item()

    def keys(self, pattern: str = "*") -> list[str]:
        """The names that match a glob, in the file's order."""
        return [key for key in self._arrays if fnmatch.fnmatchcase(key, pattern)]

    def under(self, prefix: str) -> dict[str, Array]:
        """The inputs `prefix/…` by the rest of their names."""
        keys = [key for key in self._arrays if key.startswith(f"{prefix}/")]
        if not keys:
            raise KeyError(f"{self._account.name} has no array under {prefix!r}")
        return {key[len(prefix) + 1 :]: self[key] for key in keys}

    def check(
        self,
        key: str,
        found: Any,
        tolerance: Tolerance,
        *,
        where: Any = None,
        why: str = "",
    ) -> None:
        """Compares an array computed here with the golden one.

        **Arguments:**

        - `key`: the golden array.
        - `found`: of the same shape; floating arrays must be in the precision of the test, so that a
          silent detour through float32 does not go unnoticed in x64.
        - `tolerance`: its class. Integer and boolean arrays are compared exactly whatever the class.
        - `where`, `why`: compare these entries only, for this reason.
        """
        expected = self._arrays[key]
        name = f"{self._account.name}:{key}"
        found = np.asarray(found)
        assert found.shape == expected.shape, f"{name}: shape {found.shape}, not {expected.shape}"
        if np.issubdtype(expected.dtype, np.floating):
            wanted = np.float64 if self.precision == "x64" else np.float32
            if expected.dtype == np.float64:
                assert found.dtype == wanted, f"{name}: found {found.dtype} in a {wanted} test"
            bounds = TOLERANCES[tolerance][0 if self.precision == "x64" else 1]
            assert bounds is not None, f"{name}: class {tolerance} is for x64 tests alone"
            scale = np.max(np.abs(expected), initial=0.0)
            allowed = bounds.rtol * np.abs(expected) + bounds.atol + bounds.atol_of_max * scale
            wrong = ~(np.abs(found - expected) <= allowed)
        else:
            wrong = found != expected
        if where is not None:
            assert why, f"{name}: say why only a part is compared"
            where = np.asarray(where)
            assert where.any(), f"{name}: no entry is compared"
            wrong &= where
            if not where.all():
                self._account.in_part[self.precision][key] = why
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{name}: {int(wrong.sum())} of {wrong.size} entries are outside class {tolerance} in "
                f"{self.precision}; the first is at {index}: found {found[index]!r}, golden "
                f"{expected[index]!r}"
            )
        self._account.checked[self.precision].add(key)

    def check_under(self, prefix: str, found: Mapping[str, Any], tolerance: Tolerance) -> None:
        """Compares all arrays `prefix/…`; `found`, by the rest of their names, must hold just these."""
        names = {key[len(prefix) + 1 :] for key in self._arrays if key.startswith(f"{prefix}/")}
        assert names == set(found), f"{prefix}: golden {sorted(names)}, found {sorted(found)}"
        for name, value in found.items():
            self.check(f"{prefix}/{name}", value, tolerance)


class Ledger:
    """The accounts of a test session."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.whole = True
        self._arrays: dict[str, dict[str, np.ndarray]] = {}

    def open(self, name: str, left_out: Mapping[str, str], precision: Precision) -> Golden:
        """The file `name`, read at most once a session."""
        if name not in self.accounts:
            account = Account(name)
            with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
                self._arrays[name] = {key: file[key] for key in file.files}
            self.accounts[name] = account
        self.accounts[name].leave_out(left_out)
        return Golden(self.accounts[name], self._arrays[name], precision)

    def lines(self) -> list[str]:
        """The account as a table, then what was left out, and why."""
        rows = [("file", "arrays", "inputs", "checked", "in x64", "in float32", "left out")]
        accounts = [self.accounts[name] for name in sorted(self.accounts)]
        counts = [
            (
                len(a.arrays),
                len(a.read - a.all_checked),
                len(a.all_checked),
                len(a.checked["x64"]),
                len(a.checked["float32"]),
                len(a.left_out),
            )
            for a in accounts
        ]
        rows += [(a.name, *map(str, row)) for a, row in zip(accounts, counts, strict=True)]
        rows.append(("all", *(str(sum(column)) for column in zip(*counts, strict=True))))
        width = max(len(row[0]) for row in rows)
        lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]
        for account in accounts:
            lines += _reasons(f"{account.name}, left out", account.left_out)
            for precision, in_part in account.in_part.items():
                lines += _reasons(f"{account.name}, compared in part in {precision}", in_part)
        return lines


def _reasons(title: str, by_key: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for reason in dict.fromkeys(by_key.values()):
        keys = sorted(key for key, why in by_key.items() if why == reason)
        lines.append(f"{title}, {len(keys)} arrays: {reason}")
        lines.extend(_wrap(keys))
    return lines


def _wrap(keys: Sequence[str]) -> list[str]:
    lines = [" "]
    for key in keys:
        if len(lines[-1]) + len(key) > 118:
            lines.append(" ")
        lines[-1] += f" {key}"
    return lines
