"""What a report's arrays become in JSON, and what they come back as."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from pd_eqx.report import packing
from pd_eqx.report.packing import finite, head, packed, part, script_safe
from report.reports import text_report, toy_report


def unpacked(value: packing.Json) -> np.ndarray:
    dtype = {"f": "<f4", "h": "<f2", "i": "<i4", "b": "u1"}[value["as"]]
    return np.frombuffer(base64.b64decode(value["data"]), dtype).reshape(value["shape"])


@pytest.mark.parametrize("how", ["f", "h", "i"])
def test_an_array_keeps_its_shape_order_and_numbers(how: str) -> None:
    array = np.arange(6.0).reshape(2, 3).T  # not contiguous
    found = unpacked(packed(array, how))
    assert np.array_equal(found, array)


def test_shares_are_rounded_to_a_byte_and_what_is_no_number_is_none_of_it() -> None:
    found = unpacked(packed(np.array([0.0, 0.5, 1.0, 7.0, np.nan], np.float32), "b"))
    assert found.tolist() == [0, 128, 255, 255, 0]


def test_json_has_no_number_that_is_not_finite() -> None:
    nested = {"a": [1.0, float("nan")], 2: {"b": float("inf")}}
    assert finite(nested) == {"a": [1.0, None], "2": {"b": None}}


def test_no_text_ends_the_script_that_holds_it() -> None:
    text = "</script><!-- \u2028 \ud83d"  # the last is half of a pair, as a byte-level token can be
    safe = script_safe({"text": text})
    assert "<" not in safe
    assert "\u2028" not in safe
    assert json.loads(safe)["text"].startswith("</script><!-- \u2028 ")
    safe.encode()  # can be written


def test_the_two_vectors_of_a_component_are_equally_long_and_their_product_is_the_component() -> (
    None
):
    report = toy_report()
    site, found = report.sites[0], part(report, 0)
    V, U = (unpacked(found[name]["all"]).astype(float) for name in ("V", "U"))
    for c in range(5):
        assert np.linalg.norm(V[c]) == pytest.approx(np.linalg.norm(U[c]), rel=1e-3)
        assert np.outer(V[c], U[c]) == pytest.approx(np.outer(site.V[:, c], site.U[c]), abs=2e-3)


def test_of_wide_vectors_the_largest_entries_are_kept_and_their_share_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "ALL_ENTRIES", 10)
    monkeypatch.setattr(packing, "LARGEST", 4)
    report = text_report()
    found = part(report, 1)["V"]
    assert "all" not in found
    where, largest = unpacked(found["where"]), unpacked(found["largest"])
    share = unpacked(found["share"])
    V = report.sites[1].V.T
    expected = np.argsort(-np.abs(V), axis=1)[:, :4]
    assert np.array_equal(where, expected)
    kept = np.sum(np.take_along_axis(V, expected, 1) ** 2, axis=1) / np.sum(V**2, axis=1)
    assert share == pytest.approx(kept, rel=1e-5)
    ratio = largest / np.take_along_axis(V, expected, 1)
    assert ratio == pytest.approx(np.repeat(ratio[:, :1], 4, axis=1), rel=2e-3)


def test_a_part_holds_the_components_of_its_site_alone() -> None:
    report = text_report(each=12)
    assert report.harvest is not None
    assert report.harvest.neighbours is not None
    found = unpacked(part(report, 1)["neighbours"]["items"])
    assert np.array_equal(found, report.harvest.neighbours.items[12:])
    counts = unpacked(part(report, 0)["top"]["count"])
    assert counts.tolist() == [0] + [3] * 11  # the first has no window


def test_a_component_is_told_by_the_features_that_it_answers_to_or_by_its_tokens() -> None:
    assert packing.gists(toy_report()) == {c: f"feature {c}" for c in range(5)}
    report = text_report()
    assert report.harvest is not None
    assert report.harvest.responds is not None
    first = [int(t) for t in report.harvest.responds.items[3]]
    words = [f"“{report.vocabulary[t]}”".replace("\n", "⏎") for t in first]
    assert packing.gists(report)[3] == ", ".join(words)


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    described = head(text_report())["sites"][0]
    assert described["unexplained"] is None
    assert head(toy_report())["harvest"] is None


def test_of_a_vocabulary_only_the_words_that_some_page_shows_are_written() -> None:
    report = text_report()
    many = {**report.vocabulary, 50_000: "nobody's"}
    assert head(dataclasses.replace(report, vocabulary=many))["vocabulary"] == {
        str(token): word for token, word in report.vocabulary.items()
    }
