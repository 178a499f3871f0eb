"""Harvesting a run: batch after batch, saved now and then, and gone on with where it was stopped.

Batches come from what the run was trained on, and batch `i` is a pure function of the run's seed and of `i`; so ranges of
batches can be harvested anywhere and merged into what one pass over all of them gives.
"""

import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from pd_eqx.evals.observation import decomposed_sites, draw_batch
from pd_eqx.harvest.measure import measure
from pd_eqx.harvest.settings import HarvestSettings
from pd_eqx.harvest.store import (
    Harvest,
    HarvestError,
    Source,
    finish,
    holds_harvest,
    read_harvest,
    read_vocabulary,
    refuse_foreign,
    write_harvest,
)
from pd_eqx.harvest.tally import Tally, tally_rows
from pd_eqx.runs.inherit import product_fingerprint
from pd_eqx.runs.open import OpenedRun
from pd_eqx.runs.words import token_text

_SECONDS_BETWEEN_SAVES = 60.0
# Importances and activations of the rows that are measured at once, in bytes.
_BYTES_AT_ONCE = 1 << 28


def harvest_run(
    run: OpenedRun,
    directory: Path,
    batches: range,
    settings: HarvestSettings | None = None,
    *,
    watch: Callable[[int, int], None] = lambda done, positions: None,
    clock: Callable[[], float] = time.monotonic,
) -> Harvest:
    """Harvests those of `batches` that the directory does not have yet, and saves it there.

    **Arguments:**

    - `run`: opened at the step to harvest.
    - `directory`: where the harvest lies; what is there already is gone on with.
    - `batches`: ascending and without gaps.
    - `settings`: what to collect; those of the directory by default, or the library's.
    - `watch`: called after each batch with its number and the positions seen by then.

    **Errors:** `HarvestError` where the directory holds a harvest of something else, or one that was collected
    differently; nothing is then changed.
    """
    source = source_of(run)
    harvest = _begun(directory, source, settings)
    text = token_text(run.config)
    settings = settings or (HarvestSettings() if harvest is None else harvest.tally.settings)
    saved_at = clock()
    unsaved = False
    for index in batches:
        if harvest is not None and any(a <= index < b for a, b in harvest.tally.batches):
            continue
        tally = tally_batch(run, index, settings, source)
        harvest = Harvest(source, tally if harvest is None else harvest.tally + tally)
        unsaved = True
        watch(index, harvest.tally.positions)
        if clock() - saved_at > _SECONDS_BETWEEN_SAVES:
            write_harvest(directory, harvest, text)
            saved_at, unsaved = clock(), False
    if harvest is None:
        raise HarvestError(f"no batch was asked for, and {directory} holds none")
    if unsaved:
        write_harvest(directory, harvest, text)
    return harvest


def source_of(run: OpenedRun) -> Source:
    """What a harvest of this run is of."""
    components = run.decomposition.components
    inputs = jax.eval_shape(run.assembly.batches, run.assembly.keys.evaluation, 0)
    is_text = np.issubdtype(inputs.dtype, np.integer)
    return Source(
        run=str(run.directory.root),
        name=run.config.name,
        step=run.step,
        product=product_fingerprint(run.directory.checkpoints, run.step),
        kind="tokens" if is_text else "features",
        sites=tuple(
            (site, components.counts[site])
            for site in decomposed_sites(run.decomposition, run.target)
        ),
    )


def tally_batch(run: OpenedRun, index: int, settings: HarvestSettings, source: Source) -> Tally:
    """The tally of one batch."""
    assembly = run.assembly
    drawn, _ = _draw(assembly.batches, assembly.keys.evaluation, np.int32(index))
    inputs = jax.device_get(drawn)
    tallies: list[Tally] = []
    positions = inputs.shape[1] if source.kind == "tokens" else 1
    at_once = _rows_at_once(inputs.shape[0], positions * sum(count for _, count in source.sites))
    for first in range(0, inputs.shape[0], at_once):
        rows = inputs[first : first + at_once]
        measured = measure(
            run.decomposition,
            run.target,
            rows,
            sites=tuple(site for site, _ in source.sites),
            bins=settings.bins,
            predictions=settings.predictions,
        )
        tallies.append(tally_rows(jax.device_get(measured), rows, settings, index, first))
    total = tallies[0]
    for tally in tallies[1:]:
        total = total + tally
    return total


def merge_harvests(parts: list[Path], into: Path) -> Harvest:
    """The harvest of the batches of all parts, written into a directory that holds none.

    **Errors:** `HarvestError` for parts of different decompositions, or that have a batch in common, and for a directory
    that holds something.
    """
    if holds_harvest(into):
        raise HarvestError(f"{into} already holds a harvest; name another directory")
    refuse_foreign(into)
    harvests = [read_harvest(part) for part in parts]
    total = harvests[0]
    for part, harvest in zip(parts[1:], harvests[1:], strict=True):
        total.source.refuse_other(harvest.source)
        try:
            total = Harvest(total.source, total.tally + harvest.tally)
        except ValueError as error:
            raise HarvestError(f"{part}: {error}") from None
    texts = {token: text for part in parts for token, text in read_vocabulary(part).items()}
    write_harvest(into, total, texts.__getitem__)
    return total


_draw = jax.jit(draw_batch)


def _begun(directory: Path, source: Source, settings: HarvestSettings | None) -> Harvest | None:
    """What the directory holds already."""
    finish(directory)
    refuse_foreign(directory)
    if not directory.is_dir() or not any(directory.iterdir()):
        return None
    try:
        begun = read_harvest(directory)
    except HarvestError:
        if holds_harvest(directory):
            raise
        return None  # its first write was cut off
    source.refuse_other(begun.source)
    if settings is not None and settings != begun.tally.settings:
        raise HarvestError(
            f"{directory} was collected with {begun.tally.settings}, and {settings} is asked for; choose another --out"
        )
    return begun


def _rows_at_once(rows: int, numbers: int) -> int:
    """The most rows whose importances and activations fit; it depends on sizes alone, as sums must be repeatable."""
    return max(1, min(rows, _BYTES_AT_ONCE // (8 * numbers)))
