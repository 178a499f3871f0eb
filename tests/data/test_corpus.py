"""A prepared corpus holds the tokens of its text, whatever interrupted its preparation."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pd_eqx.data.corpus import CorpusError, open_corpus, prepare_corpus
from pd_eqx.data.text import (
    PYDOC,
    ParquetFile,
    PydocTopics,
    TextError,
    TextFile,
    TextSource,
    find_text,
)
from pd_eqx.data.tokenizer import Tokenizer, TokenizerError, load_tokenizer


class Letters:
    """A tokenizer of lower-case letters, in the shape of the library's."""

    def encode(self, text: str, add_special_tokens: bool) -> "Letters":
        self.ids = [ord(letter) - ord("a") for letter in text if letter.islower()]
        return self

    def to_str(self) -> str:
        return "{}"


TOKENIZER = Tokenizer(Letters(), vocabulary=27, fingerprint="letters", end=26)


class PlugPulledError(Exception):
    """The plug was pulled."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    (folder / "deeper").mkdir(parents=True)
    (folder / "b.txt").write_text("second")
    (folder / "a.md").write_text("first")
    (folder / "deeper" / "c.txt").write_text("third")
    (folder / "ignored.bin").write_bytes(b"\xff")
    return folder


def ids(*words: str) -> list[int]:
    return [token for word in words for token in (*(ord(c) - ord("a") for c in word), 26)]


def test_documents_follow_each_other_in_the_order_of_their_paths(
    text: Path, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    corpus = prepare_corpus(
        tmp_path / "corpus", find_text(text), TOKENIZER, progress=lambda *at: seen.append(at)
    )
    assert corpus.tokens().tolist() == ids("first", "second", "third")
    assert corpus.dtype == "<u2"
    assert corpus.vocabulary == 27
    assert [Path(name).name for name, _, _ in seen] == ["a.md", "b.txt", "c.txt"]
    assert [counts[1:] for counts in seen] == [(1, 6), (2, 13), (3, 19)]
    record = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert (record["documents"], record["tokens"], record["tokenizer"]) == (3, 19, "letters")
    assert [Path(source["name"]).name for source in record["sources"]] == ["a.md", "b.txt", "c.txt"]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
@pytest.mark.parametrize("tokens_a_save", [1, 8])
def test_an_interrupted_preparation_goes_on_and_ends_in_the_same_bytes(
    text: Path, tmp_path: Path, stop_after: int, tokens_a_save: int
) -> None:
    whole = prepare_corpus(tmp_path / "whole", find_text(text), TOKENIZER)
    folder = tmp_path / "corpus"

    def pull_the_plug(name: str, documents: int, tokens: int) -> None:
        if documents == stop_after:
            raise PlugPulledError

    with pytest.raises(PlugPulledError):
        prepare_corpus(
            folder, find_text(text), TOKENIZER, progress=pull_the_plug, tokens_a_save=tokens_a_save
        )
    # Half of a document may be on disk, and nothing says that it is.
    with (folder / "tokens.bin").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(CorpusError, match=r"corpus.json not found"):
        open_corpus(folder)
    again: list[int] = []
    found = prepare_corpus(
        folder,
        find_text(text),
        TOKENIZER,
        progress=lambda _, documents, __: again.append(documents),
        tokens_a_save=tokens_a_save,
    )
    assert found.tokens().tobytes() == whole.tokens().tobytes()
    assert found.fingerprint == whole.fingerprint
    assert again[-1] == 3
    if tokens_a_save == 1:
        assert again == list(range(stop_after, 4))


def test_a_finished_corpus_is_left_as_it_is_and_another_is_not_mixed_in(
    text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    first = prepare_corpus(folder, find_text(text), TOKENIZER)
    before = (folder / "tokens.bin").stat().st_mtime_ns
    assert prepare_corpus(folder, find_text(text), TOKENIZER) == first
    assert (folder / "tokens.bin").stat().st_mtime_ns == before
    (text / "b.txt").write_text("altered")
    with pytest.raises(CorpusError, match="made of something else, sources differ"):
        prepare_corpus(folder, find_text(text), TOKENIZER)
    other = Tokenizer(Letters(), 27, "others", 26)
    with pytest.raises(CorpusError, match="tokenizer differ"):
        prepare_corpus(folder, find_text(text), other)


def test_tokens_that_are_not_all_there_are_noticed(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    prepare_corpus(folder, find_text(text), TOKENIZER)
    tokens = folder / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(CorpusError, match=r"found 36 bytes, corpus.json says 38"):
        open_corpus(folder)
    (folder / "corpus.json").write_text("[]")
    with pytest.raises(CorpusError, match="no record of a corpus"):
        open_corpus(folder)


def test_an_array_of_ids_is_a_corpus_and_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.array([[3, 1, 4], [1, 5, 9]], np.int64))
    corpus = open_corpus(path)
    tokens = corpus.tokens()
    assert isinstance(tokens, np.memmap)
    assert tokens.tolist() == [3, 1, 4, 1, 5, 9]
    assert (corpus.size, corpus.vocabulary) == (6, 10)
    for wrong in (np.array([0.5]), np.array([-1, 2]), np.array([], np.int32)):
        np.save(path, wrong)
        with pytest.raises(CorpusError, match=r"expected token ids|expected 0 or more|no array"):
            open_corpus(path)
    path.write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="no array"):
        open_corpus(path)


def test_a_table_gives_a_document_a_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    rows = ["one", None, "", "two", "three"]
    parquet.write_table(pyarrow.table({"text": rows, "n": range(5)}), path, row_group_size=2)
    (source,) = find_text(path)
    assert list(source.documents()) == ["one", "two", "three"]
    with pytest.raises(TextError, match="no column 'body', it has text, n"):
        list(ParquetFile(path, "body").documents())
    with pytest.raises(TextError, match="column 'n' holds int, expected text"):
        list(ParquetFile(path, "n").documents())
    path.write_bytes(b"nothing")
    with pytest.raises(TextError, match="no parquet table"):
        list(source.documents())


def test_pythons_own_reference_is_a_text() -> None:
    (source,) = find_text(PYDOC)
    assert source == PydocTopics()
    (document,) = source.documents()
    assert document.startswith('The "assert" statement')
    assert len(source.fingerprint()) == 64


def test_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="not found"):
        find_text(tmp_path / "nowhere")
    with pytest.raises(TextError, match="holds no file that ends in"):
        find_text(tmp_path)
    path = tmp_path / "latin.txt"
    path.write_bytes("é".encode("latin-1"))
    with pytest.raises(TextError, match="no UTF-8 text, byte 0"):
        list(TextFile(path).documents())
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(CorpusError, match="has no tokens"):
        prepare_corpus(
            tmp_path / "corpus", [TextFile(tmp_path / "empty.txt")], Tokenizer(Letters(), 26, "x")
        )


class Counted(TextSource):
    """Documents that say how many of them were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def name(self) -> str:
        return "counted"

    def documents(self) -> Iterator[str]:
        for word in ("a", "b", "c", "d"):
            self.asked += 1
            yield word

    def fingerprint(self) -> str:
        return "counted"


def test_documents_are_read_one_at_a_time(tmp_path: Path) -> None:
    source = Counted()
    asked: list[int] = []
    prepare_corpus(
        tmp_path / "c", [source], TOKENIZER, progress=lambda *_: asked.append(source.asked)
    )
    assert asked == [1, 2, 3, 4]


def test_a_tokenizer_is_read_from_its_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")])
    )
    library.add_special_tokens(["<end>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, end="<end>")
    assert tokenizer.encode("abba") == [2, 1, 0]
    assert (tokenizer.vocabulary, tokenizer.end) == (4, 3)
    assert load_tokenizer(tmp_path).end is None
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint == tokenizer.fingerprint
    with pytest.raises(TokenizerError, match="'<stop>' is none of its tokens"):
        load_tokenizer(tmp_path, end="<stop>")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="not found"):
        load_tokenizer(tmp_path / "nowhere")
