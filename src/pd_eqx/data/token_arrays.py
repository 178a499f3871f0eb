"""Documents that are token ids already: numpy arrays, and columns of parquet tables (`input_ids` in most data sets).

Whoever made them knows which tokenizer it was; here they are checked for being ids, and nothing is added to them.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pd_eqx.data.text import Source, TextError, file_sha256

TokenSource = Source[np.ndarray]


@dataclasses.dataclass(frozen=True)
class TokenFile(TokenSource):
    """A `.npy` file of integers, of any shape, mapped into memory; a document a row."""

    path: Path

    def name(self) -> str:
        """See `Source`."""
        return str(self.path)

    def documents(self) -> Iterator[np.ndarray]:
        """See `Source`."""
        try:
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise TextError(f"{self.path}: no array ({error})") from error
        if array.dtype.kind not in "iu":
            raise TextError(
                f"{self.path}: found {array.dtype}{list(array.shape)}, expected token ids"
            )
        rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
        yield from rows

    def fingerprint(self) -> str:
        """See `Source`."""
        return file_sha256(self.path)


@dataclasses.dataclass(frozen=True)
class TokenColumn(TokenSource):
    """A column of a parquet table whose rows are lists of integers; read group by group. Needs the `lm` extra."""

    path: Path
    column: str

    def name(self) -> str:
        """See `Source`."""
        return f"{self.path}[{self.column}]"

    def documents(self) -> Iterator[np.ndarray]:
        """See `Source`; empty rows are left out."""
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self.path) as table:
            for batch in table.iter_batches(columns=[self.column]):
                for row in batch.column(0):
                    if row.is_valid and len(row):
                        yield row.values.to_numpy(zero_copy_only=False)

    def fingerprint(self) -> str:
        """See `Source`."""
        return file_sha256(self.path)


@dataclasses.dataclass(frozen=True)
class ReadyTokens:
    """What stands in a tokenizer's place where there is nothing to tokenize.

    - `vocabulary`: every id is below it.
    """

    vocabulary: int
    fingerprint: str = "none: the source holds token ids"
    end: int | None = None

    def encode(self, document: np.ndarray) -> np.ndarray:
        """The document itself.

        **Errors:** `TextError` for an id that is negative or not below the vocabulary.
        """
        low, high = (int(document.min()), int(document.max())) if document.size else (0, 0)
        if low < 0 or high >= self.vocabulary:
            raise TextError(
                f"a document holds ids from {low} to {high}, expected 0 to {self.vocabulary - 1}"
            )
        return document

    def save(self, folder: Path) -> None:
        """Nothing is known of how the ids are text."""
        del folder


def holds_tokens(path: Path, column: str) -> bool:
    """Whether a file holds ids and not text: a `.npy` file, or a parquet table with lists of integers in the column."""
    if path.suffix == ".npy":
        return True
    if path.suffix != ".parquet" or not path.is_file():
        return False
    import pyarrow
    import pyarrow.parquet
    import pyarrow.types

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError):
        return False  # whoever reads it says why
    if column not in schema.names:
        return False
    kind: Any = schema.field(column).type
    listed = (
        pyarrow.types.is_list(kind)
        or pyarrow.types.is_large_list(kind)
        or pyarrow.types.is_fixed_size_list(kind)
    )
    return listed and pyarrow.types.is_integer(kind.value_type)


def token_source(path: Path, column: str) -> TokenSource:
    """The documents of a file that `holds_tokens`."""
    return TokenFile(path) if path.suffix == ".npy" else TokenColumn(path, column)


def highest_token(sources: Sequence[TokenSource]) -> int:
    """The highest id in all of the documents; reads them once."""
    return max(
        (int(ids.max()) for source in sources for ids in source.documents() if ids.size), default=0
    )
