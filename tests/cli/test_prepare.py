"""`pd-eqx prepare` makes a corpus of whatever holds text or tokens, and says in a line what keeps it from it."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pd_eqx.cli.prepare import prepare
from pd_eqx.data.corpus import corpus_tokenizer, open_corpus

TEXT = "the cat sat on the mat and the dog sat on the log. " * 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT + "über")
    return path


def refused(capsys: pytest.CaptureFixture[str], *where: object, **options: object) -> str:
    with pytest.raises(SystemExit) as ended:
        prepare([str(place) for place in where], **options)  # pyright: ignore[reportArgumentType]
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("pd-eqx: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:270"])
def test_a_corpus_is_the_text_again(text: Path, tmp_path: Path, tokenizer: str) -> None:
    into = tmp_path / "corpus"
    prepare([str(text)], into, tokenizer)
    corpus, known = open_corpus(into), corpus_tokenizer(into)
    assert known is not None
    assert known.vocabulary == corpus.vocabulary == (257 if tokenizer == "bytes" else 270)
    *ids, last = corpus.tokens().tolist()
    assert last == known.end
    assert known.decode(ids) == text.read_text()
    if tokenizer != "bytes":
        assert len(ids) < len(text.read_bytes()) / 2


def test_the_same_command_goes_on_and_another_is_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "corpus"
    prepare([str(text)], into, "bpe:270")
    before = {path: path.stat().st_mtime_ns for path in into.glob("*.bin")}
    prepare([str(text)], into, "bpe:270")
    assert {path: path.stat().st_mtime_ns for path in into.glob("*.bin")} == before
    capsys.readouterr()
    assert "270 tokens, not 280" in refused(capsys, text, into=into, tokenizer="bpe:280")
    assert "tokenizer, end, vocabulary differ" in refused(
        capsys, text, into=into, tokenizer="bytes"
    )
    text.write_text(TEXT)
    assert "sources differ" in refused(capsys, text, into=into, tokenizer="bpe:270")


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.int64).reshape(3, 4)
    np.save(tmp_path / "ids.npy", rows)
    table = pa.table({"input_ids": pa.array([[1, 2], [], [3]], pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "ids.parquet")
    prepare([str(tmp_path / "ids.npy")], tmp_path / "of-array")
    prepare([str(tmp_path / "ids.parquet")], tmp_path / "of-table", column="input_ids")
    array, table = open_corpus(tmp_path / "of-array"), open_corpus(tmp_path / "of-table")
    assert array.tokens().tolist() == list(range(12))
    assert (array.vocabulary, table.vocabulary) == (12, 4)
    assert table.tokens().tolist() == [1, 2, 3]
    assert corpus_tokenizer(tmp_path / "of-array") is None
    record = json.loads((tmp_path / "of-table" / "corpus.json").read_text())
    assert record["sources"][0]["name"].endswith("ids.parquet[input_ids]")


def test_what_cannot_be_prepared_is_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "corpus"
    assert "say how it becomes tokens" in refused(capsys, text, into=into)
    assert "not found" in refused(capsys, tmp_path / "no.txt", into=into, tokenizer="bytes")
    assert "expected a number" in refused(capsys, text, into=into, tokenizer="bpe:many")
    assert "does not hold the 256 bytes" in refused(capsys, text, into=into, tokenizer="bpe:9")
    assert "the text gives" in refused(capsys, text, into=into, tokenizer="bpe:9999")
    assert "no.json: not found" in refused(
        capsys, text, into=into, tokenizer=str(tmp_path / "no.json")
    )
    np.save(tmp_path / "floats.npy", np.ones(3))
    assert "expected token ids" in refused(capsys, tmp_path / "floats.npy", into=into)
    np.save(tmp_path / "negative.npy", np.array([-1, 3]))
    assert "ids from -1 to 3" in refused(capsys, tmp_path / "negative.npy", into=into)
    np.save(tmp_path / "ids.npy", np.ones(3, int))
    assert "prepare them apart" in refused(capsys, text, tmp_path / "ids.npy", into=into)
    assert "leave --tokenizer out" in refused(
        capsys, tmp_path / "ids.npy", into=into, tokenizer="bytes"
    )
