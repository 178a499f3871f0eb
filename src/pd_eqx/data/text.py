"""Where a corpus comes from: files, folders of files, columns of parquet tables, and CPython's own documentation.

A source is a name, a fingerprint of what it holds, and documents in one fixed order, so that a preparation that was
interrupted can go on where it stopped and know that it reads the same text.
"""

import abc
import dataclasses
import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

_TEXT_SUFFIXES = (".txt", ".md", ".rst")
PYDOC = "pydoc:topics"

DocumentT = TypeVar("DocumentT")


class TextError(ValueError):
    """A source of text that is missing or cannot be read; one line that says what was found."""


class Source(abc.ABC, Generic[DocumentT]):
    """Documents in a fixed order: text, or what was made tokens elsewhere (`pd_eqx.data.token_arrays`)."""

    @abc.abstractmethod
    def name(self) -> str:
        """What records and messages call it."""

    @abc.abstractmethod
    def documents(self) -> Iterator[DocumentT]:
        """Each document, one at a time."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of what the source holds."""


class TextSource(Source[str]):
    """Documents that are text."""


@dataclasses.dataclass(frozen=True)
class TextFile(TextSource):
    """A file of UTF-8 text: one document, read whole."""

    path: Path

    def name(self) -> str:
        """See `TextSource`."""
        return str(self.path)

    def documents(self) -> Iterator[str]:
        """See `TextSource`."""
        try:
            yield self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{self.path}: no UTF-8 text, byte {error.start} begins no character"
            ) from error

    def fingerprint(self) -> str:
        """See `TextSource`."""
        return file_sha256(self.path)


@dataclasses.dataclass(frozen=True)
class ParquetFile(TextSource):
    """One column of a parquet table: a document a row; read group by group. Needs the `lm` extra."""

    path: Path
    column: str

    def name(self) -> str:
        """See `TextSource`."""
        return f"{self.path}[{self.column}]"

    def documents(self) -> Iterator[str]:
        """See `TextSource`; rows without text are left out."""
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(self.path)
        except (pyarrow.ArrowException, OSError) as error:
            raise TextError(f"{self.path}: no parquet table ({error})") from error
        with table:
            if self.column not in table.schema_arrow.names:
                raise TextError(
                    f"{self.path}: no column {self.column!r}, it has {', '.join(table.schema_arrow.names)}"
                )
            for batch in table.iter_batches(columns=[self.column]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str | None):
                        raise TextError(
                            f"{self.path}: column {self.column!r} holds {type(text).__name__}, expected text"
                        )
                    if text:
                        yield text

    def fingerprint(self) -> str:
        """See `TextSource`."""
        return file_sha256(self.path)


@dataclasses.dataclass(frozen=True)
class PydocTopics(TextSource):
    """The language reference that CPython ships for its `help()`: one document; each release has its own."""

    def name(self) -> str:
        """See `TextSource`."""
        return f"{PYDOC} of Python {platform.python_version()}"

    def documents(self) -> Iterator[str]:
        """See `TextSource`."""
        from pydoc_data.topics import topics

        yield "\n\n".join(topics[key] for key in sorted(topics))

    def fingerprint(self) -> str:
        """See `TextSource`."""
        return hashlib.sha256("".join(self.documents()).encode()).hexdigest()


def find_text(where: str | Path, column: str = "text") -> tuple[TextSource, ...]:
    """The sources at a place, in the order of their paths.

    **Arguments:**

    - `where`: a text file, a `.parquet` file, a folder with files of either sort at any depth, or `pydoc:topics`.
    - `column`: of parquet tables.

    **Errors:** `TextError` where nothing is there, or a folder holds no text.
    """
    if str(where) == PYDOC:
        return (PydocTopics(),)
    path = Path(where).expanduser()
    if path.is_file():
        return (_source(path, column),)
    if not path.is_dir():
        raise TextError(
            f"{path}: not found; expected a text file, a parquet file, a folder or {PYDOC}"
        )
    suffixes = (*_TEXT_SUFFIXES, ".parquet")
    files = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
    if not files:
        raise TextError(f"{path}: holds no file that ends in {', '.join(suffixes)}")
    return tuple(_source(file, column) for file in files)


def _source(path: Path, column: str) -> TextSource:
    return ParquetFile(path, column) if path.suffix == ".parquet" else TextFile(path)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
