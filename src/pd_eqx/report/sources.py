"""Where a report's windows and companions are from: a harvest that somebody made, or a few batches looked at now.

So every report has them, if fewer. A harvest of another step is never mixed in: one that was asked for is refused, and
one that merely lies in the run's folder is passed over with a word.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from pd_eqx.harvest.settings import HarvestSettings
from pd_eqx.harvest.store import (
    Harvest,
    HarvestError,
    holds_harvest,
    read_harvest,
    read_vocabulary,
)
from pd_eqx.interpret.labels import read_labels
from pd_eqx.report.harvested import WINDOWS, harvested
from pd_eqx.report.model import Harvested, Label
from pd_eqx.runs.harvest import source_of, tally_batch
from pd_eqx.runs.open import OpenedRun
from pd_eqx.runs.words import run_tokenizer


@dataclasses.dataclass(frozen=True)
class Found:
    """What a page shows of a harvest, and the words for its tokens."""

    harvested: Harvested
    words: Mapping[int, str]


def find(
    run: OpenedRun, directory: Path | None, batches: int | None, say: Callable[[str], None]
) -> Found:
    """A harvest of an opened run.

    **Arguments:**

    - `directory`: where to read it; by default `harvest` in the run's folder, if that is of the opened step.
    - `batches`: how many to look at where there is none; by default as many as an evaluation does.
    - `say`: told when a harvest is passed over.

    **Errors:** `HarvestError` for a directory that was asked for and holds none of this decomposition.
    """
    own, words = run.directory.root / "harvest", _words_of_run(run)
    if directory is not None:
        return _found(_read(run, directory), directory, words)
    if holds_harvest(own):
        try:
            return _found(_read(run, own), own, words)
        except HarvestError as error:
            say(f"warning: {error}; the report looks at a few batches itself")
    count = batches or run.assembly.config.evaluation.batches
    return Found(harvested(_look(run, count), "none; looked at for this report"), words)


def _found(harvest: Harvest, directory: Path, words: Mapping[int, str]) -> Found:
    labels = _labels(directory, harvest)
    words = words or {t: text for t, text in read_vocabulary(directory).items() if text is not None}
    return Found(harvested(harvest, str(directory), labels), words)


def _labels(directory: Path, harvest: Harvest) -> dict[int, Label]:
    """What a language model says of the components, where one was asked."""
    found, author = read_labels(directory, harvest.source.product)
    return {each.component: Label(each.label, each.score, author) for each in found if each.label}


def _read(run: OpenedRun, directory: Path) -> Harvest:
    try:
        import pyarrow.parquet  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError:
        raise HarvestError(
            f"{directory} is read with pyarrow, which is not installed: pip install 'pd_eqx[cli,harvest]'"
        ) from None
    found = read_harvest(directory)
    source_of(run).refuse_other(found.source)
    return found


def _look(run: OpenedRun, batches: int) -> Harvest:
    source = source_of(run)
    above = run.assembly.config.evaluation.alive_importance
    settings = HarvestSettings(threshold=above, top=WINDOWS, sample=WINDOWS)
    total = tally_batch(run, 0, settings, source)
    for index in range(1, batches):
        total = total + tally_batch(run, index, settings, source)
    return Harvest(source, total)


def _words_of_run(run: OpenedRun) -> dict[int, str]:
    """The text of every token by id, where the run reads a corpus that was made with a tokenizer."""
    tokenizer = run_tokenizer(run.assembly.config)
    if tokenizer is None:
        return {}
    return {token: tokenizer.decode([token]) for token in range(tokenizer.vocabulary)}
