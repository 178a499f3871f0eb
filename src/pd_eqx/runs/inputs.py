"""What a run reads that lies outside of it: published weights and a corpus, pinned by what they hold.

A model of many gigabytes is not copied into every run that takes it apart, and a corpus is not either. But a
path may come to hold something else, and a run that went on with other weights or other text would be a run that
never was. So `inputs.json` says, from before the first update, where each was and what it held; who resumes the run or
opens it gets the same or an error. What has moved is found again where it was last seen, or where the
configuration now says.
"""

from pathlib import Path
from typing import Any

from pd_eqx.data.corpus import CorpusError
from pd_eqx.runs.config import Config
from pd_eqx.runs.config.data import CorpusConfig
from pd_eqx.runs.config.language_models import PretrainedTarget
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError, read_json, write_json
from pd_eqx.targets.weights.source import WeightsError

TARGET, DATA = "target", "data"
# What an input can be wrong in, told in one line for who can put it right.
INPUT_ERRORS = (CorpusError, WeightsError)


def recorded(directory: RunDirectory) -> dict[str, Any]:
    """What the run has recorded, by `target` and `data`."""
    return read_json(directory.inputs) if directory.inputs.exists() else {}


def located(config: Config, directory: RunDirectory) -> Config:
    """The configuration with each input where it was last seen, so that a relative path means what it meant.

    An input that is configured anew, or is no longer where it was, stays as configured.
    """
    found = recorded(directory)
    changed: dict[str, Any] = {}
    target, data = config.target, config.data
    if isinstance(target, PretrainedTarget):
        place = _last_seen(found.get(TARGET), target.model)
        changed |= {TARGET: target.model_copy(update={"model": place})} if place else {}
    if isinstance(data, CorpusConfig):
        place = _last_seen(found.get(DATA), data.path)
        changed |= {DATA: data.model_copy(update={"path": place})} if place else {}
    return config.model_copy(update=changed)


def pin_data(directory: RunDirectory, config: Config) -> None:
    """Records the corpus of a run that has none recorded; else checks it.

    **Errors:** `RunDirectoryError` for another one than the run began with; `CorpusError` where there is none.
    """
    if isinstance(config.data, CorpusConfig):
        corpus = config.data.open()
        told = f"{corpus.size} tokens below {corpus.vocabulary}"
        pin(directory, DATA, config.data.path, Path(config.data.path), corpus.fingerprint, told)


def pin(
    directory: RunDirectory, name: str, asked: str, path: Path, fingerprint: str, told: str = ""
) -> None:
    """Records an input of a run that has none recorded; else checks it as `check` does."""
    check(directory, name, path, fingerprint)
    entry = {"asked": asked, "path": str(path.absolute()), "fingerprint": fingerprint, "told": told}
    found = recorded(directory)
    if name not in found:
        write_json(directory.inputs, {**found, name: entry})


def check(directory: RunDirectory, name: str, path: Path, fingerprint: str) -> None:
    """Compares an input with what the run has recorded; writes nothing.

    **Errors:** `RunDirectoryError` for another one than the run began with.
    """
    entry = recorded(directory).get(name)
    if entry is not None and entry["fingerprint"] != fingerprint:
        raise RunDirectoryError(
            f"{name}: {path} does not hold what {directory.root} began with, which was at {entry['path']} "
            f"(fingerprint {entry['fingerprint'][:12]}, found {fingerprint[:12]}); put it back, or start a new run"
        )


def _last_seen(entry: dict[str, Any] | None, asked: str) -> str | None:
    if entry is None or entry["asked"] != asked or not Path(entry["path"]).exists():
        return None
    return entry["path"]
