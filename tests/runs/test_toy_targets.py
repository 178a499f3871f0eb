"""Every toy that a run can be configured to train: what it refuses, and a whole short run of those that read tokens."""

import math
from pathlib import Path
from typing import Any

import pytest

from pd_eqx.evals.patterns import Dense, Identity
from pd_eqx.runs.config.toys import ResidMLPTarget
from pd_eqx.runs.config_file import ConfigError, parse_config
from pd_eqx.runs.loop import train

BASE = """
name: toy
seed: 3
steps: 4
ci_fn: {kind: shared_mlp, hidden: [5]}
objective:
  - {kind: importance_minimality, coefficient: 1e-3}
  - {kind: reconstruction, name: stochastic, distance: kl, source: {kind: stochastic}}
optimizers:
  components: {kind: adamw, lr: {kind: constant, value: 1e-3}}
  ci_fn: {kind: adamw, lr: {kind: constant, value: 1e-3}}
log_every: 2
evaluation: {batches: 1, pgd_steps: 2}
"""
SMALL: dict[str, str] = {
    "induction": """
sites: {layers.*.attn.*: 6}
target:
  kind: induction
  cache: false
  vocabulary: 7
  length: 7
  shortest: 3
  longest: 4
  width: 8
  training: {steps: 2, batch_size: 8, min_accuracy: 0.0}
data: {kind: repeated_prefix, batch_size: 6}
""",
    "modular_addition": """
sites: {layers.0.*: 6}
target:
  kind: modular_addition
  cache: false
  modulus: 5
  width: 8
  heads: 2
  mlp_width: 12
  training: {steps: 2, min_accuracy: 0.0, max_loss: 9.0}
data: {kind: modular_pairs, batch_size: 6}
""",
    "resid_mlp": """
sites: {layers.*: 9}
target:
  kind: resid_mlp
  cache: false
  n_features: 9
  d_embed: 11
  n_neurons: 6
  n_layers: 2
  training: {steps: 2, max_loss: 9.0, min_response: 0.0}
data: {kind: sparse_features, batch_size: 6, probability: 0.3}
""",
}


def config(kind: str, *overrides: str) -> Any:
    return parse_config(BASE + SMALL[kind], kind, overrides)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["induction", "modular_addition"])
def test_a_run_on_tokens_ends_with_its_summary_and_figures(kind: str, run_dir: Path) -> None:
    outcome = train(config(kind), run_dir)
    assert outcome.step == 4
    assert outcome.summary is not None
    distances = outcome.summary["reconstruction"]
    assert {"ci_masked", "stochastic", "pgd_2", "unmasked"} <= set(distances)
    assert all(math.isfinite(value) for value in distances.values())
    assert list((run_dir / "figures").iterdir())


@pytest.mark.parametrize(
    ("kind", "overrides", "complaint"),
    [
        (
            "induction",
            ["data={kind: sparse_features, batch_size: 6, probability: 0.3}"],
            "data: kind is 'sparse_features', but a target of kind 'induction' reads repeated_prefix",
        ),
        (
            "resid_mlp",
            ["data={kind: modular_pairs, batch_size: 6}"],
            "data: kind is 'modular_pairs', but a target of kind 'resid_mlp' reads sparse_features",
        ),
        ("resid_mlp", ["target.n_layers=4"], "n_neurons is 6, which n_layers = 4 cannot share"),
        ("induction", ["target.longest=6"], "shortest = 3 to longest = 6 distinct tokens"),
        ("induction", ["target.heads=3"], "width is 8, which 3 heads cannot share evenly"),
        ("modular_addition", ["target.heads=3"], "width is 8, which 3 heads cannot share evenly"),
        ("modular_addition", ["target.training.shown=1.0"], "training.shown is 1.0; of 25 pairs"),
    ],
)
def test_what_does_not_fit_together_is_one_line(
    kind: str, overrides: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config(kind, *overrides)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_residual_mlp_of_one_layer_should_use_a_component_a_feature_and_one_a_neuron() -> None:
    target = config("resid_mlp", "target.n_layers=1").target
    assert isinstance(target, ResidMLPTarget)
    counts = {"layers.0.mlp_in": 9, "layers.0.mlp_out": 9}
    assert target.expected(counts) == {"layers.0.mlp_in": Identity(), "layers.0.mlp_out": Dense(6)}
