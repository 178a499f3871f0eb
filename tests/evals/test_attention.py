"""Attention patterns under masks, on a transformer whose logits may be never whole."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components
from pd_eqx.evals import means
from pd_eqx.evals.ablations import CI_MASKED, UNMASKED, Ablation, Zeroed
from pd_eqx.evals.attention import AttentionPatterns, reached
from pd_eqx.evals.metric import BatchMetric
from pd_eqx.evals.observation import Observation
from pd_eqx.evals.reconstruction import LanguageModelling
from pd_eqx.losses import KLDivergence
from pd_eqx.targets.transformer import (
    NoMLP,
    RMSNorm,
    Transformer,
    TransformerConfig,
    init_transformer,
)

KEY = jax.random.key(0)
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)
CONFIG = TransformerConfig(
    vocabulary=11,
    width=6,
    depth=3,
    heads=2,
    kv_heads=2,
    head_width=3,
    mlp_width=0,
    norm=RMSNorm(1e-6),
    mlp=NoMLP(),
    learned_positions=5,
)
# Compiled in a hurry: the time goes into compiling.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})


@functools.cache
def model() -> Transformer:
    drawn = quick_jit(lambda key: init_transformer(key, CONFIG, deviation=1.0))(KEY)
    return dataclasses.replace(drawn, scan=False)


def seen(target: Transformer, sites: tuple[str, ...]) -> Observation:
    """Components that are the weights themselves, of importance 0.3."""
    weights = {site: target.weights()[site] for site in sites}
    components = Components({s: jnp.eye(len(W)) for s, W in weights.items()}, weights)
    lower = {site: jnp.full((*IDS.shape, len(W)), 0.3) for site, W in weights.items()}
    importances = CausalImportances(lower, lower, lower)
    return Observation(
        target, components, jnp.asarray(IDS), target(jnp.asarray(IDS)), {}, {}, importances
    )


def reported(metric: BatchMetric, target: Transformer, *sites: str) -> dict[str, Any]:
    measured = quick_jit(lambda target: metric.measure(seen(target, sites), KEY))(target)
    return metric.report(jax.device_get(means.values(measured)), list(sites))[0]


def test_a_pattern_moves_where_masks_reach_and_nowhere_else() -> None:
    ablations: tuple[tuple[str, Ablation], ...] = (("none", UNMASKED), ("all", Zeroed()))
    metric = AttentionPatterns(ablations, KLDivergence())
    report = reported(metric, model(), "layers.1.attn.k")["attention_patterns"]
    assert list(report["all"]) == ["total", "layers.1.attn", "layers.2.attn"]
    assert report["none"]["total"] == pytest.approx(0.0, abs=1e-6)
    assert report["all"]["layers.2.attn"] > 1e-4

    def clean_pattern(target: Transformer) -> Any:
        outputs = seen(target, ("layers.1.attn.k",)).ablated_activations(
            {}, target.attention_sites()[1]
        )
        return target.attention_pattern(1, outputs[1])

    # Without keys every score is 0: each position looks at all before it alike.
    pattern = np.asarray(quick_jit(clean_pattern)(model()))
    entropy = -np.sum(pattern * np.log(np.where(pattern > 0, pattern, 1)), axis=-1)
    expected = np.mean(np.log(np.arange(1, 6)) - entropy)
    assert report["all"]["layers.1.attn"] == pytest.approx(expected, rel=1e-4)


def test_only_layers_at_or_after_a_decomposed_site_are_run() -> None:
    def layers(site: str) -> list[int]:
        found: list[int] = []
        jax.eval_shape(lambda target: found.extend(reached(seen(target, (site,)))), model())
        return found

    assert layers("layers.1.attn.o") == [2]
    assert layers("layers.1.attn.v") == [1, 2]
    assert layers("layers.2.attn.o") == []


def test_logits_that_are_never_whole_cost_the_same() -> None:
    metric = LanguageModelling((("ci_masked", CI_MASKED),), KLDivergence(at_once=3 * 2 * 11))
    lazy = dataclasses.replace(model(), lazy_logits=True)
    apart, whole = (reported(metric, of, "layers.2.attn.o") for of in (lazy, model()))
    for section, costs in whole.items():
        assert costs == pytest.approx(apart[section], rel=1e-4), section
