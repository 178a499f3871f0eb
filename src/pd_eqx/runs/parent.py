"""Fine-tuning: a run that starts from the product of another, and from nothing else of it.

The parent's optimizers and adversaries are of no use to a run with other losses or schedules, and nine tenths of its
bytes; so only its decomposition is read (see `pd_eqx.runs.inherit`). The target is the parent's too, the very arrays:
a decomposition of another network would be no start.
"""

from pathlib import Path

from pd_eqx.runs.config import Config, trajectory
from pd_eqx.runs.config_file import ConfigError, load_config
from pd_eqx.runs.directory import RunDirectory, RunDirectoryError


def parent_directory(config: Config) -> RunDirectory | None:
    """Where the parent's run lives, if the configuration names one.

    **Errors:** `ConfigError` for a place that is no run, or a run that took another network apart.
    """
    if config.parent is None:
        return None
    directory = RunDirectory(Path(config.parent.run))
    try:
        directory.require()
    except RunDirectoryError as error:
        raise ConfigError(f"parent.run: {error}") from None
    theirs = dict(trajectory(load_config(directory.config).target))
    ours = dict(trajectory(config.target))
    differing = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    if differing:
        raise ConfigError(
            "\n".join(
                f"target.{key}: {ours.get(key)!r}, but the parent {directory.root} took apart a target with "
                f"{theirs.get(key)!r}; a run starts from a decomposition of its own target"
                for key in differing
            )
        )
    return directory
