"""Building this project's modules from parameters under the peer's names.

Gradients are then taken with respect to those parameters, and come out under the same names.
"""

import itertools
from collections.abc import Mapping

from jaxtyping import Array

from pd_eqx.ci.attention import Attention
from pd_eqx.ci.mlp import Dense


def dense(params: Mapping[str, Array], at: str) -> Dense:
    """One layer, `at.W` and `at.b`."""
    return Dense(params[f"{at}.W"], params[f"{at}.b"])


def mlp(params: Mapping[str, Array], at: str) -> tuple[Dense, ...]:
    """The layers `at.0`, `at.2` …; odd numbers are activations. A single layer may be `at` itself."""
    if f"{at}.W" in params:
        return (dense(params, at),)
    names = itertools.takewhile(
        lambda name: f"{name}.W" in params, (f"{at}.{i}" for i in itertools.count(0, 2))
    )
    return tuple(dense(params, name) for name in names)


def attention(params: Mapping[str, Array], at: str, n_heads: int, base: float) -> Attention:
    """Attention from torch's `[out, in]` weights."""
    query, key, value, output = (
        params[f"{at}.{name}_proj.weight"].T for name in ("q", "k", "v", "out")
    )
    return Attention(query, key, value, output, n_heads, base)
