"""Parameter decomposition in Equinox: the public names, each loaded when it is first asked for.

Importing this package imports nothing else, so that a command can print its help without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pd_eqx.components import Components, init_components, weight_deltas
    from pd_eqx.linear import LinearMap, capture, frozen, masked
    from pd_eqx.objective import Objective
    from pd_eqx.optimizers import AdamW, Optimizers
    from pd_eqx.runs.export import load_export
    from pd_eqx.runs.inherit import init_from_parent
    from pd_eqx.runs.open import open_run
    from pd_eqx.sites import Site, select_sites
    from pd_eqx.state import Decomposition, TrainingItem, TrainState
    from pd_eqx.step import init_state, make_train_step
    from pd_eqx.targets.base import Target

__all__ = [
    "AdamW",
    "Components",
    "Decomposition",
    "LinearMap",
    "Objective",
    "Optimizers",
    "Site",
    "Target",
    "TrainState",
    "TrainingItem",
    "capture",
    "frozen",
    "init_components",
    "init_from_parent",
    "init_state",
    "load_export",
    "make_train_step",
    "masked",
    "open_run",
    "select_sites",
    "weight_deltas",
]

_HOMES = {
    "AdamW": "optimizers",
    "Components": "components",
    "Decomposition": "state",
    "LinearMap": "linear",
    "Objective": "objective",
    "Optimizers": "optimizers",
    "Site": "sites",
    "Target": "targets.base",
    "TrainState": "state",
    "TrainingItem": "state",
    "capture": "linear",
    "frozen": "linear",
    "init_components": "components",
    "init_from_parent": "runs.inherit",
    "init_state": "step",
    "load_export": "runs.export",
    "make_train_step": "step",
    "masked": "linear",
    "open_run": "runs.open",
    "select_sites": "sites",
    "weight_deltas": "components",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pd_eqx' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pd_eqx.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
