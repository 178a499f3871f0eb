"""The text of a run's tokens, where anything knows it: the tokenizer that its corpus was prepared with."""

from collections.abc import Callable

from pd_eqx.data.corpus import corpus_tokenizer
from pd_eqx.data.tokenizer import Tokenizer
from pd_eqx.runs.config import Config
from pd_eqx.runs.config.data import CorpusConfig


def run_tokenizer(config: Config) -> Tokenizer | None:
    """The tokenizer of the run's corpus; None where it reads none, or one that was made without."""
    return corpus_tokenizer(config.data.path) if isinstance(config.data, CorpusConfig) else None


def token_text(config: Config) -> Callable[[int], str] | None:
    """What a token looks like by itself; None where nobody knows.

    A token that is a part of a character has the sign for what cannot be shown.
    """
    tokenizer = run_tokenizer(config)
    return None if tokenizer is None else lambda token: tokenizer.decode([token])
