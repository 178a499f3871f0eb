"""No golden array is forgotten. Runs after the parity tests, which its name sorts behind."""

from pathlib import Path

import numpy as np
import pytest

from parity.golden import FOLDER, Account, Golden, Ledger

FILES = sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("name", FILES)
def test_every_array_is_an_input_or_checked_or_left_out(
    name: str, ledger: Ledger, request: pytest.FixtureRequest
) -> None:
    number = name.partition("_")[0]
    modules = set(Path(__file__).parent.glob(f"test_{number}_*.py"))
    assert modules, f"{name}.npz has no parity/test_{number}_*.py"
    selected = any("::" in argument for argument in request.config.args)
    if selected or not ledger.whole or not modules <= {i.path for i in request.session.items}:
        pytest.skip("only a part of the parity tests was asked for")
    account = ledger.accounts.get(name)
    assert account is not None, f"{name}.npz was not opened by {sorted(m.name for m in modules)}"
    assert account.forgotten == []
    assert account.stale == []


def account() -> Account:
    return Account("01_sigmoids")


def test_an_array_that_no_test_touches_is_forgotten() -> None:
    untouched = account()
    untouched.leave_out({"[!x]*": "for this test"})
    assert untouched.forgotten == ["x"]


def test_an_array_that_is_left_out_and_checked_is_stale() -> None:
    checked = account()
    checked.leave_out({"x": "for this test"})
    Golden(checked, {"x": np.arange(3.0)}, "x64").check("x", np.arange(3.0), "A")
    assert checked.stale == ["x"]


def test_a_reason_for_no_array_is_an_error() -> None:
    with pytest.raises(ValueError, match="matches no array"):
        account().leave_out({"nowhere/*": "for this test"})


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (np.array([1.0, 2.0, 3.0 + 1e-9]), r"first is at \(2,\)"),
        (np.array([1.0, np.nan, 3.0]), r"first is at \(1,\)"),
        (np.array([1.0, 2.0, 3.0], np.float32), "found float32"),
        (np.array([1.0, 2.0]), "shape"),
    ],
)
def test_a_wrong_array_is_told_apart(found: np.ndarray, complaint: str) -> None:
    golden = Golden(account(), {"x": np.array([1.0, 2.0, 3.0])}, "x64")
    with pytest.raises(AssertionError, match=complaint):
        golden.check("x", found, "A")
    golden.check("x", np.array([1.0, 2.0, 3.0 + 1e-11]), "A")
