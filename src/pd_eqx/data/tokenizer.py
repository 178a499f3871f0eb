"""Text to token ids and back, by the tokenizer that a model was trained with.

A tokenizer is read from `tokenizer.json`, or rebuilt from the vocabulary and merges that a GGUF file carries. How a
GGUF file's text is split before merging is known by a name alone; a name that is not known is refused, because
a tokenizer that splits otherwise gives ids that look right and are not what the model has read.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class TokenizerError(ValueError):
    """A file that holds no tokenizer, or one that cannot be rebuilt; one line that says what to do."""


# Whether each ASCII or other digit is split off by itself, by the pre-tokenizer's name; the rest is split as for GPT-2.
_SPLITS_DIGITS = {"smollm": True, "gpt-2": False}
_CONTROL = 3
END = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A `tokenizers.Tokenizer` with the names that this library uses. No token is ever added at an end.

    - `library`: the tokenizer itself; `vocabulary`: every id is below it.
    - `fingerprint`: SHA-256 of all that it does; prepared corpora record it.
    - `end`: the id that separates documents, or None where the file names none.
    """

    library: Any
    vocabulary: int
    fingerprint: str
    end: int | None = None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.library.encode(text, add_special_tokens=False).ids

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json`, from which `load_tokenizer` makes the same."""
        partial = folder / ".tokenizer.tmp"
        partial.write_text(self.library.to_str(), encoding="utf-8")
        partial.replace(folder / "tokenizer.json")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self.library.decode(list(ids), skip_special_tokens=False)


def load_tokenizer(path: str | Path, end: str | None = None) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, a model's folder that holds one, or a GGUF file. Needs the `lm` extra.

    **Arguments:**

    - `end`: the token that separates documents; None for what the file itself says.

    **Errors:** `TokenizerError` where the file is missing or holds no tokenizer, and where `end` is no token.
    """
    path = Path(path).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise TokenizerError(f"{path}: not found; a tokenizer is a tokenizer.json or a .gguf file")
    library, own_end = _from_gguf(path) if path.suffix == ".gguf" else (_from_json(path), None)
    if end is not None:
        own_end = library.token_to_id(end)
        if own_end is None:
            raise TokenizerError(f"{path}: {end!r} is none of its tokens")
    return named(library, own_end)


def byte_tokenizer() -> Tokenizer:
    """A token for each byte, and one that separates documents: 257, whatever the text. Needs the `lm` extra."""
    library = _bytes_and_merges()
    library.add_special_tokens([END])
    return named(library, library.token_to_id(END))


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte pairs merged as often as it takes for `vocabulary` tokens; the same text gives the same. Needs the `lm` extra.

    **Errors:** `TokenizerError` for a vocabulary that does not hold the bytes, or that the text is too short for.
    """
    from tokenizers import pre_tokenizers, trainers

    least = 257
    if vocabulary < least:
        raise TokenizerError(
            f"a vocabulary of {vocabulary} does not hold the 256 bytes and an end; ask for {least} or more"
        )
    library = _bytes_and_merges()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    made = named(library, library.token_to_id(END))
    if made.vocabulary < vocabulary:
        raise TokenizerError(
            f"the text gives {made.vocabulary} tokens, and not {vocabulary}; ask for fewer, or give more text"
        )
    return made


def named(library: Any, end: int | None) -> Tokenizer:
    """A `tokenizers.Tokenizer` with this library's names."""
    fingerprint = hashlib.sha256(library.to_str().encode()).hexdigest()
    vocabulary = 1 + max(library.get_vocab(with_added_tokens=True).values())
    return Tokenizer(library, vocabulary, fingerprint, end)


def _bytes_and_merges() -> Any:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _from_json(path: Path) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path}: no tokenizer ({error})") from error


def _from_gguf(path: Path) -> tuple[Any, int | None]:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    from pd_eqx.targets.weights.gguf import GGUFFile

    file = GGUFFile(path)
    kind, split = file.field("tokenizer.ggml.model"), file.field("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS_DIGITS:
        raise TokenizerError(
            f"{path}: its tokenizer is {kind!r} with pre-tokenizer {split!r}; those known are 'gpt2' with "
            f"{' or '.join(map(repr, _SPLITS_DIGITS))}; give the model's tokenizer.json instead"
        )
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    merges: list[str] = file.field("tokenizer.ggml.merges")
    types: list[int] = file.field("tokenizer.ggml.token_type", [])
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    library = tokenizers.Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs)
    )
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if _SPLITS_DIGITS[split] else []
    library.pre_tokenizer = pre_tokenizers.Sequence([*digits, by_bytes])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=False)
            if kind == _CONTROL
        ]
    )
    return library, library.token_to_id(END)
