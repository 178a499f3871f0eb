"""Adversaries: mask sources that climb the reconstruction loss they are fed to.

A persistent adversary lives in the training item, because its sources are carried from step to step.
"""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float


class AdversaryState(eqx.Module):
    """What one adversarial term carries between steps.

    - `sources`: raw sources by site, `[*scope, C]` or `[*scope, C + 1]` with the delta's last.
    - `opt_state`: the optimizer that ascends them.
    """

    sources: dict[str, Float[Array, "..."]]
    opt_state: Any
