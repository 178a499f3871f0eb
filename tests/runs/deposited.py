"""Runs that nobody trained: for tests of what is done with a run, and not of how it came about."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pd_eqx.runs.assembly import assemble
from pd_eqx.runs.config_file import parse_config
from pd_eqx.runs.deposit import deposit
from runs.small import SMALL

INDUCTION = """
name: words
seed: 3
steps: 10
target: {kind: induction, vocabulary: 11, length: 9, shortest: 2, longest: 4, width: 8, cache: false}
sites: {"layers.0.attn.*": 5, "layers.1.attn.o": 7}
ci_fn: {kind: shared_mlp, hidden: [6]}
data: {kind: repeated_prefix, batch_size: 6}
objective:
  - {kind: importance_minimality, coefficient: 3e-3}
optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
"""


def deposit_tokens(run_dir: Path) -> Path:
    """A run on tokens, with random weights."""
    return _deposit(run_dir, INDUCTION, 10)


def deposit_features(run_dir: Path) -> Path:
    """A run on features, with random weights."""
    return _deposit(run_dir, SMALL, 120)


def _deposit(run_dir: Path, text: str, step: int) -> Path:
    config = parse_config(text, "text")
    assembly = assemble(config)
    random = np.random.default_rng(7)

    def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        # Wide enough that importances are not all near 0; drawn by numpy, which compiles nothing.
        return jnp.asarray(random.normal(scale=0.6, size=leaf.shape), leaf.dtype)

    target = jax.tree.map(drawn, config.target.abstract())
    decomposition = jax.tree.map(drawn, assembly.abstract(target).decomposition)
    deposit(run_dir, config, target, decomposition, step, {"origin": "a test"})
    return run_dir
