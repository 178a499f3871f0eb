"""A corpus: one long row of token ids on disk, mapped into memory, and a record of what it was made of.

A prepared corpus is a folder with `tokens.bin`, the ids and nothing else, `tokenizer.json`, by which they are text, and `corpus.json`, which is written last: a
folder without it is an unfinished preparation. Such a folder also holds `progress.json`, written after the tokens that it counts are
on disk; what lies beyond them in `tokens.bin` is cut off when the preparation goes on. The result is the same bytes, interrupted or
not.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pd_eqx.data.text import Source
from pd_eqx.data.tokenizer import Tokenizer, load_tokenizer, named

TOKENS, RECORD, PROGRESS = "tokens.bin", "corpus.json", "progress.json"
TOKENIZER = "tokenizer.json"

# Called with the name of the source, and how many documents and tokens there are so far.
Progress = Callable[[str, int, int], None]


@runtime_checkable
class Encoder(Protocol):
    """What makes documents token ids: a `Tokenizer`, or `ReadyTokens` where they are ids already."""

    @property
    def vocabulary(self) -> int:
        """Every id is below it."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that it does."""
        ...

    @property
    def end(self) -> int | None:
        """The id that separates documents."""
        ...

    def encode(self, document: Any, /) -> Sequence[int] | np.ndarray:
        """The ids of a document."""
        ...

    def save(self, folder: Path, /) -> None:
        """Writes what it takes to turn ids into text again."""
        ...


class CorpusError(ValueError):
    """A corpus that cannot be opened or prepared; one line that says what was found and what to do."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Token ids on disk; hashable, and cheap to hold: the tokens are mapped, not read.

    - `path`: of the file with the ids; `offset`: where they begin in it, in bytes.
    - `dtype`: of an id; `size`: how many there are; `vocabulary`: every id is below it.
    - `fingerprint`: SHA-256 of the record that it was made with, or of the file's name and size where there is none.
    """

    path: str = dataclasses.field(repr=False)  # what is elsewhere is the same corpus
    dtype: str
    size: int
    vocabulary: int
    fingerprint: str
    offset: int = 0

    def tokens(self) -> np.ndarray:
        """The ids, mapped: reading a part of them reads no other."""
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.size,))


def open_corpus(path: str | Path) -> Corpus:
    """A prepared corpus, or the ids of a `.npy` file, of any shape.

    **Errors:** `CorpusError` where there is none, where its preparation is unfinished, where the file with the tokens is
    not as long as the record says, and for an array that holds no ids.
    """
    path = Path(path).expanduser()
    if path.suffix == ".npy":
        return _open_array(path)
    if not (path / RECORD).is_file():
        hint = (
            "its preparation is unfinished; prepare it again to go on"
            if (path / PROGRESS).is_file()
            else ("expected what `pd-eqx prepare` makes, or a .npy file")
        )
        raise CorpusError(f"{path}: {RECORD} not found; {hint}")
    text = (path / RECORD).read_bytes()
    try:
        record = json.loads(text)
        dtype, size, vocabulary = record["dtype"], record["tokens"], record["vocabulary"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path / RECORD}: no record of a corpus ({error!r})") from error
    tokens = path / TOKENS
    found = tokens.stat().st_size if tokens.exists() else 0
    expected = size * np.dtype(dtype).itemsize
    if found != expected:
        raise CorpusError(
            f"{tokens}: found {found} bytes, {RECORD} says {expected}; prepare it again"
        )
    return Corpus(str(tokens), dtype, size, vocabulary, hashlib.sha256(text).hexdigest())


def _open_array(path: Path) -> Corpus:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path}: no array ({error})") from error
    if not isinstance(array, np.memmap) or array.dtype.kind not in "iu" or not array.size:
        raise CorpusError(f"{path}: found {array.dtype}{list(array.shape)}, expected token ids")
    low, high = int(array.min()), int(array.max())
    if low < 0:
        raise CorpusError(f"{path}: the lowest id is {low}, expected 0 or more")
    made_of = f"{path.name} {array.dtype} {array.shape} {low} {high}"
    return Corpus(
        str(path),
        array.dtype.str,
        array.size,
        high + 1,
        hashlib.sha256(made_of.encode()).hexdigest(),
        array.offset,
    )


def corpus_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that a prepared corpus was made with; None for ids that nobody knows the text of."""
    folder = Path(path).expanduser()
    if not (folder / TOKENIZER).is_file() or not (folder / RECORD).is_file():
        return None
    end = json.loads((folder / RECORD).read_bytes())["end"]
    return named(load_tokenizer(folder).library, end)


def prepare_corpus(
    folder: str | Path,
    sources: Sequence[Source[Any]],
    tokenizer: Encoder,
    *,
    progress: Progress | None = None,
    tokens_a_save: int = 1_000_000,
) -> Corpus:
    """Turns text into a corpus, going on where an earlier preparation of the same stopped.

    Documents follow each other in the order of the sources, each followed by the tokenizer's `end`, if it has one. A folder that is
    finished already is opened and left as it is.

    **Arguments:**

    - `folder`: made if it is not there.
    - `progress`: called after each document.
    - `tokens_a_save`: how many tokens may have to be made again after an interruption.

    **Errors:** `CorpusError` for a folder that holds a corpus of other text or another tokenizer, and for text without tokens.
    """
    folder = Path(folder).expanduser()
    request = _request(sources, tokenizer)
    if (folder / RECORD).is_file():
        _check_same(folder / RECORD, request)
        return open_corpus(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    start = _Position()
    if (folder / PROGRESS).is_file():
        start = _Position(**_check_same(folder / PROGRESS, request)["position"])
    reached = _write_tokens(folder, sources, tokenizer, request, start, progress, tokens_a_save)
    if not reached.tokens:
        raise CorpusError(f"{folder}: the text has no tokens")
    record = {
        **request,
        "tokens": reached.tokens,
        "documents": reached.documents,
        "sha256": _sha256(folder / TOKENS),
    }
    _write_json(folder / RECORD, record)
    (folder / PROGRESS).unlink(missing_ok=True)
    return open_corpus(folder)


@dataclasses.dataclass(frozen=True)
class _Position:
    """How far a preparation has come: whole sources, documents of the next one, and all documents and tokens."""

    source: int = 0
    document: int = 0
    documents: int = 0
    tokens: int = 0


def _request(sources: Sequence[Source[Any]], tokenizer: Encoder) -> dict[str, Any]:
    """All that decides what the corpus will hold."""
    return {
        "format": 1,
        "sources": [{"name": source.name(), "sha256": source.fingerprint()} for source in sources],
        "tokenizer": tokenizer.fingerprint,
        "end": tokenizer.end,
        "vocabulary": tokenizer.vocabulary,
        "dtype": "<u2" if tokenizer.vocabulary <= 1 << 16 else "<u4",
    }


def _check_same(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
        differing = [key for key, value in request.items() if record[key] != value]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{path}: no record of a corpus ({error!r}); choose another folder"
        ) from error
    if differing:
        raise CorpusError(
            f"{path}: made of something else, {', '.join(differing)} differ; choose another folder"
        )
    return record


def _write_tokens(
    folder: Path,
    sources: Sequence[Source[Any]],
    tokenizer: Encoder,
    request: dict[str, Any],
    start: _Position,
    progress: Progress | None,
    tokens_a_save: int,
) -> _Position:
    dtype = np.dtype(request["dtype"])
    end = [] if tokenizer.end is None else [tokenizer.end]
    reached = saved = start
    (folder / TOKENS).touch()
    with (folder / TOKENS).open("r+b") as file:
        file.truncate(start.tokens * dtype.itemsize)
        file.seek(0, os.SEEK_END)
        for index, source in enumerate(sources[start.source :], start.source):
            seen = start.document if index == start.source else 0
            for document, text in enumerate(source.documents()):
                if document < seen:
                    continue
                ids = np.asarray([*tokenizer.encode(text), *end], np.int64).astype(dtype)
                file.write(ids.tobytes())
                reached = _Position(
                    index, document + 1, reached.documents + 1, reached.tokens + len(ids)
                )
                if progress is not None:
                    progress(source.name(), reached.documents, reached.tokens)
                if reached.tokens - saved.tokens >= tokens_a_save:
                    file.flush()
                    os.fsync(file.fileno())
                    _write_json(
                        folder / PROGRESS, {**request, "position": dataclasses.asdict(reached)}
                    )
                    saved = reached
        file.flush()
        os.fsync(file.fileno())
    return reached


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(functools.partial(file.read, 1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
