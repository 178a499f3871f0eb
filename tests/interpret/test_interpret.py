"""Labels come from what the harvest shows, are scored on what it did not show, and are asked for once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from interpret.server import Recorded, serving
from pd_eqx.cli.interpret import interpret
from pd_eqx.harvest.measure import Measured
from pd_eqx.harvest.settings import HarvestSettings
from pd_eqx.harvest.store import Harvest, Source, write_harvest
from pd_eqx.harvest.tally import tally_rows
from pd_eqx.interpret import prompts
from pd_eqx.interpret.endpoint import Endpoint, EndpointError
from pd_eqx.interpret.labels import InterpretSettings, questions, read_labels

ROWS, LENGTH, VOCABULARY = 60, 8, 6


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Component `c` of the first three fires at token `c`, the fourth at random, the last at nothing."""
    random = np.random.default_rng(4)
    # One token stands out of each sequence: windows without it are not rare.
    tokens = random.integers(3, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    tokens[np.arange(ROWS), random.integers(LENGTH, size=ROWS)] = np.arange(ROWS) % 3
    importances = np.zeros((ROWS, LENGTH, 5), np.float32)
    importances[..., :3] = (tokens[..., None] == np.arange(3)) * 0.9
    importances[..., 3] = random.random((ROWS, LENGTH)) < 0.15
    measured = Measured(
        importances,  # pyright: ignore[reportArgumentType]
        importances,  # pyright: ignore[reportArgumentType]
        importances.sum((0, 1)),
        np.zeros((20, 5), np.int32),  # pyright: ignore[reportArgumentType]
        None,
        None,
    )
    settings = HarvestSettings(before=4, after=3, top=8, sample=12)
    source = Source("run", "words", 3, "abc", "tokens", (("a", 2), ("b", 3)))
    directory = tmp_path_factory.mktemp("harvest")
    tally = tally_rows(measured, tokens, settings, 0, 0)
    write_harvest(directory, Harvest(source, tally), lambda token: f"w{token}")
    return directory


@pytest.fixture
def server() -> Iterator[Recorded]:
    with serving() as recorded:
        yield recorded


def endpoint(server: Recorded, tmp_path: Path, **more: float) -> Endpoint:
    rest = {"per_minute": 1e6, **more}
    return Endpoint(server.url, "small", tmp_path / "answers.jsonl", **rest)  # pyright: ignore[reportArgumentType]


def test_labels_are_found_scored_and_kept(
    harvest: Path, server: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MY_KEY", "secret")
    to = harvest / "labels"

    def run(**more: bool) -> str:
        interpret(harvest, server.url, "small", per_minute=1e6, key_variable="MY_KEY",
                  price_in=2.0, price_out=4.0, retries=2, threads=3, least=10, sample=None, out=None, **more)  # fmt: skip
        return capsys.readouterr().out

    said = run(yes=False)
    assert "4 components   8 requests to small" in said
    assert "at the given prices" in said
    assert said.endswith("nothing was asked; add --yes\n")
    assert not server.requests

    server.failures = [429, 500]  # passed over by the retries
    said = run(yes=True)
    assert len(server.requests) == 10
    assert set(server.keys) == {"Bearer secret"}
    rows = pq.read_table(to / "labels.parquet").to_pylist()
    assert [(row["site"], row["index"]) for row in rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for c, row in enumerate(rows[:3]):
        assert (row["component"], row["label"], row["score"]) == (c, f"the token w{c}", 1.0)
        assert row["scored"] == 12
    assert rows[3]["score"] < 0.9
    assert "4 labels, 4 scored" in said

    before = [path.read_bytes() for path in (to / "labels.parquet", to / "answers.jsonl")]
    assert "   0 requests" in run(yes=True)
    assert len(server.requests) == 10
    assert before == [path.read_bytes() for path in (to / "labels.parquet", to / "answers.jsonl")]
    labels, author = read_labels(harvest, "abc")
    assert (labels[1].label, author) == ("the token w1", "small")
    assert read_labels(harvest, "another") == ([], "")


def test_what_is_scored_was_never_shown(harvest: Path) -> None:
    asked = questions(harvest, InterpretSettings())
    assert [question.component for question in asked] == [0, 1, 2, 3]
    for question in asked[:3]:
        token = f"w{question.component}"
        assert f"«{token}»" in question.prompt
        assert f"often than chance, at: '{token}'" in question.prompt
        assert 0 < sum(question.active) < len(question.active)
        shown = question.prompt.replace("«", "").replace("»", "")
        for window, active in zip(question.windows, question.active, strict=True):
            assert "«" not in window
            assert window not in shown
            assert (token in window.split()) == active
    assert asked == questions(harvest, InterpretSettings())


def test_a_larger_sample_holds_the_smaller_and_both_ask_what_all_ask(harvest: Path) -> None:
    whole = questions(harvest, InterpretSettings())
    smaller: set[int] = set()
    for count in range(1, 6):
        asked = questions(harvest, InterpretSettings(sample=count))
        assert len(asked) == min(count, len(whole))
        assert asked == [question for question in whole if question in asked]
        assert smaller <= (smaller := {question.component for question in asked})
    drawn = {
        questions(harvest, InterpretSettings(sample=1, seed=s))[0].component for s in range(40)
    }
    assert drawn == {question.component for question in whole}, "each has its chance"


@pytest.mark.parametrize(
    ("url", "out", "said"),
    [
        ("localhost:8000", None, "the endpoint is 'localhost:8000'; it must be a URL such as http"),
        ("http://localhost:8000/v1", "harvest.json", "which is no directory"),
    ],
)
def test_what_cannot_be_asked_or_kept_is_told_before_anything_is_asked(
    harvest: Path, capsys: pytest.CaptureFixture[str], url: str, out: str | None, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        interpret(harvest, url, "m", yes=True, out=harvest / out if out else None, per_minute=1e6, threads=1,
                  price_in=0.0, price_out=0.0, key_variable="NO_KEY", retries=0, least=10, sample=None)  # fmt: skip
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("pd-eqx: ")
    assert said in error
    assert error.count("\n") == 1


def test_an_answer_that_was_cut_off_is_asked_for_again(server: Recorded, tmp_path: Path) -> None:
    asking = endpoint(server, tmp_path)
    assert asking.ask("s", "one", tokens=5).tokens_in == 11
    asking.ask("s", "two", tokens=5)
    path = tmp_path / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = endpoint(server, tmp_path)
    assert again.knows("s", "one")
    assert not again.knows("s", "two")
    again.ask("s", "two", tokens=5)
    assert len(path.read_text().splitlines()) == 2
    assert endpoint(server, tmp_path).knows("s", "two")
    assert len(server.requests) == 3


def test_another_model_is_asked_anew(server: Recorded, tmp_path: Path) -> None:
    endpoint(server, tmp_path).ask("s", "one", tokens=5)
    other = Endpoint(server.url, "large", tmp_path / "answers.jsonl")
    assert not other.knows("s", "one")


def test_requests_keep_their_distance(server: Recorded, tmp_path: Path) -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    asking = Endpoint(
        server.url, "m", tmp_path / "a", per_minute=30.0, clock=lambda: now, sleep=sleep
    )
    for number in range(3):
        asking.ask("s", str(number), tokens=1)
    asking.ask("s", "2", tokens=1)  # known, and so free
    assert slept == [2.0, 2.0]


def test_an_answer_that_cannot_be_read_is_asked_for_once_more(
    harvest: Path, server: Recorded, tmp_path: Path
) -> None:
    from pd_eqx.interpret.labels import interpret as label

    question = questions(harvest, InterpretSettings())[:1]
    server.texts = ["I cannot say", '{"label": "the token w0"}', '{"active": [99]}', "none"]
    (found,) = label(question, endpoint(server, tmp_path), threads=1)
    assert (found.label, found.score, found.scored) == ("the token w0", None, 0)
    assert [r["temperature"] for r in server.requests] == [0.0, 0.7, 0.0, 0.7]
    server.texts = ["?", "?"]
    (found,) = label(question, endpoint(server, tmp_path / "other"), threads=1)
    assert (found.label, found.score) == (None, None)


def test_an_endpoint_that_refuses_is_told_in_a_line(
    harvest: Path, server: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.failures = [404] * 20
    with pytest.raises(SystemExit) as ended:
        interpret(harvest, server.url, "m", yes=True, out=tmp_path, per_minute=1e6, threads=1,
                  price_in=0.0, price_out=0.0, key_variable="NO_KEY", retries=0, least=10, sample=None)  # fmt: skip
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said == f"pd-eqx: {server.url} answered 404: the model is not there\n"
    nobody = Endpoint("http://127.0.0.1:9/v1", "m", tmp_path / "a", retries=0)
    with pytest.raises(EndpointError, match="cannot be reached"):
        nobody.ask("s", "p", tokens=1)


def test_how_windows_are_written() -> None:
    assert prompts.marked_window([" the", " cat", "s"], [0.0, 0.5, 0.1], 0.1) == "the« cat»s"
    assert prompts.marked_window(["t1", "t2"], [0.3, 0.0], 0.1) == "«t1» t2"
    assert prompts.plain_window([" a", "\n", " b"]) == "a⏎ b"
    assert (
        prompts.features([0.0, -0.5, 0.02, 0.9])
        == "feature 3: 0.90, feature 1: -0.50, feature 2: 0.02"
    )
    assert prompts.features([0.0]) == "no feature"
    assert prompts.words_of({1: "x"}.get)([1, 2]) == ["x", "t2"]


def test_how_answers_are_read_and_scored() -> None:
    assert prompts.read_label('so {"label": " a\\nb "} ok') == "a⏎ b"
    for answer in ("", "{", '{"label": 3}', '{"label": ""}', '["label"]'):
        with pytest.raises(ValueError, match="the answer"):
            prompts.read_label(answer)
    assert prompts.read_detection('{"active": [1, 3]}', 3) == {0, 2}
    for answer in ('{"active": [0]}', '{"active": [4]}', '{"active": [true]}', '{"active": 1}'):
        with pytest.raises(ValueError, match="numbers from 1 to 3"):
            prompts.read_detection(answer, 3)
    assert prompts.balanced_accuracy(frozenset({0}), [True, True, False]) == 0.75
    assert prompts.balanced_accuracy(frozenset({0, 1, 2}), [True, True, False]) == 0.5
