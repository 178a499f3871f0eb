"""A configuration means what it says, or is refused with the key, what was found and what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import yaml

from pd_eqx import adversary, masks, objective
from pd_eqx.ci.base import CIFunction
from pd_eqx.ci.squashing import (
    PUBLISHED,
    Hard,
    LeakyHard,
    Logistic,
    Squashing,
    SwishHard,
    UnpairedLeakyHard,
)
from pd_eqx.components import init_components
from pd_eqx.losses import Anneal, Frequency, KLDivergence, MeanSquaredError
from pd_eqx.optimizers import AdamW, Muon, Optimizer
from pd_eqx.runs.config import trajectory
from pd_eqx.runs.config_file import (
    ConfigError,
    ConfigMismatchError,
    dump_config,
    load_config,
    parse_config,
    refuse_mismatch,
)
from pd_eqx.schedule import Knot, Schedule, constant, decaying
from pd_eqx.sites import Site, UnknownSiteError
from runs.small import SMALL, small_config

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid_and_build(path: Path) -> None:
    config = load_config(path)
    config.build_objective()
    config.optimizers.build()
    if config.data.kind != "corpus":  # which has to be prepared first
        config.data.build(config.target, config.seed)
    if config.target.kind == "pretrained":  # which has to be fetched first
        return
    assert set(config.counts()) <= {site.name for site in config.target.sites()}


def test_a_term_about_no_decomposed_site_is_refused_by_its_key() -> None:
    config = small_config("objective.0.sites=[linear1, mlp_x]")
    with pytest.raises(UnknownSiteError, match=r"objective\.0\.sites: .*'mlp_x'"):
        config.counts()


def test_the_first_example_leaves_no_key_out() -> None:
    path = next(path for path in EXAMPLES if path.stem == "tms_5-2")
    written = set(keys_of(yaml.safe_load(path.read_text())))
    resolved = set(keys_of(load_config(path).model_dump(mode="json")))
    # What may be annealed is a number in the file.
    assert {key for key in resolved - written if ".p." not in key and ".eps." not in key} == set()


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    yield path
    match value:
        case dict():
            for key, item in value.items():
                yield from keys_of(item, f"{path}.{key}")
        case list():
            for index, item in enumerate(value):
                yield from keys_of(item, f"{path}.{index}")
        case _:
            pass


def test_what_is_written_reads_back_as_the_same() -> None:
    config = small_config("optimizers.ci_fn.eps=3e-9", "sites.linear*=7")
    assert config.optimizers.ci_fn.eps == 3e-9
    assert parse_config(dump_config(config), "again") == config


def test_numbers_may_be_written_as_people_write_them() -> None:
    assert small_config("objective.0.coefficient=3e-3") == small_config()
    assert small_config("objective.0.coefficient=1E2").objective[0].coefficient == 100.0
    assert small_config("name=e5").name == "e5"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "objective.0.coeficient=1",
            "objective.0.coeficient: unknown key; nearest is 'coefficient'",
        ),
        ("objectve.0=1", "objectve: unknown key; nearest is 'objective'"),
        ("optimizers.ci_fn.lr.valu=1", "optimizers.ci_fn.lr.valu: unknown key; nearest is 'value'"),
        ("checkpoint.evry=1", "checkpoint.evry: unknown key; nearest is 'every'"),
        (
            "objective.1.source.kind=stochstic",
            "objective.1.source.kind: unknown kind 'stochstic'; nearest",
        ),
        (
            "objective.1.source={delta: true}",
            "objective.1.source.kind: missing; the kinds are stochastic,",
        ),
        (
            "objective.1.distance=mss",
            "objective.1.distance: 'mss' is none of them; nearest is 'mse'",
        ),
        ("objective.7.name=x", "objective.7: the items are 0 to 1"),
        ("steps=many", "steps: should be a valid integer, found 'many'"),
        ("steps=0", "steps: should be greater than or equal to 1, found 0"),
        ("steps=true", "steps: should be a valid integer, found True"),
        ("data.probability=.nan", "data.probability: should be a finite number, found nan"),
        ("seed.x=1", "seed.x: seed is 7, which has no keys"),
        ("seed", "override 'seed': expected key.path=value"),
        ("objective.0.p=often", "objective.0.p: should be keys and values, found 'often'"),
        (
            "objective.0.p={kind: aneal}",
            "objective.0.p.kind: unknown kind 'aneal'; nearest is 'annealed'",
        ),
        (
            "objective.0.p={kind: annealed, initial: 1, final: 0.5, start: 0.6, end: 0.2}",
            "objective.0.p: end is 0.2, before start, which is 0.6",
        ),
        ("sites=5", "sites: should be keys and values, found 5"),
        ("sites.linear1=0", "sites.linear1: should be greater than or equal to 1, found 0"),
        ("objective.0.name=stochastic", "objective: each term needs a name of its own"),
        (
            "optimizers.ci_fn.lr={kind: knots, knots: [{time: 1, value: 0}, {time: 0.5, value: 1}]}",
            "optimizers.ci_fn.lr.knots: times must ascend",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_key(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small_config(override)
    assert str(refused.value).startswith(complaint)
    assert "\n" not in str(refused.value)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        small_config("steps=-1", "data.batch_sise=3", "ci_fn.kind=mlp")
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed: [1", "broken, line"),
        ("- 1\n", "broken: expected keys and values"),
        ("", "broken: expected keys and values, found None"),
        (
            SMALL + "seed: 8\n",
            f"broken, line {len(SMALL.splitlines()) + 1}: key 'seed' is given twice",
        ),
        (SMALL + "1: 8\n", "1: Keys should be strings, found 1"),
        (SMALL.replace("data:", "dta:"), "data: missing\ndta: unknown key; nearest is 'data'"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "broken")
    assert str(refused.value).startswith(complaint)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.yaml: No such file"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot read .*binary\.yaml: it is not text"):
        load_config(tmp_path / "binary.yaml")


def test_overrides_reach_sites_whose_names_have_dots() -> None:
    assert small_config("sites.hidden_layers.0=9").sites["hidden_layers.0"] == 9


def test_an_override_may_fill_a_part_that_the_file_leaves_out() -> None:
    without = SMALL.replace("evaluation: {every: 30, batches: 2, pgd_steps: 3}\n", "")
    assert "evaluation" not in without
    assert parse_config(without, "x", ["evaluation.every=4"]).evaluation.every == 4


def test_fields_beside_the_trajectory_may_change() -> None:
    asked = small_config(
        "name=b", "log_every=3", "checkpoint.keep_last=null", "evaluation.batches=1"
    )
    refuse_mismatch(small_config(), asked, "runs/a")


def test_every_other_field_is_pinned() -> None:
    asked = small_config("seed=8", "sites.linear1=3", "objective.1.source.delta=false")
    with pytest.raises(ConfigMismatchError) as refused:
        refuse_mismatch(small_config(), asked, "runs/a")
    message = str(refused.value)
    assert "runs/a" in message
    assert "  seed: stored 7, asked 8\n" in message
    assert "  sites.linear1: stored 4, asked 3\n" in message
    assert "  objective.1.source.delta: stored True, asked False\n" in message
    assert "linear2" not in message


def test_a_term_more_is_another_run() -> None:
    term = "{kind: faithfulness}"
    terms = "[{kind: importance_minimality, coefficient: 3e-3}, " + term + "]"
    with pytest.raises(ConfigMismatchError, match="objective"):
        refuse_mismatch(small_config(), small_config(f"objective={terms}"), "runs/a")


def test_a_run_is_not_extended_because_its_schedules_would_differ() -> None:
    with pytest.raises(ConfigMismatchError, match="Schedules are relative to `steps`"):
        refuse_mismatch(small_config(), small_config("steps=240"), "runs/a")


def test_what_is_beside_the_trajectory_is_a_short_list() -> None:
    config = small_config()
    pinned = {key.partition(".")[0] for key, _ in trajectory(config)}
    assert set(type(config).model_fields) - pinned == {
        "name",
        "log_every",
        "max_updates_per_dispatch",
        "mesh",
        "checkpoint",
        "evaluation",
    }


EVERY_TERM = """
- {kind: faithfulness, coefficient: 0.5}
- {kind: relative_faithfulness}
- kind: importance_minimality
  coefficient: 1e-3
  p: {kind: annealed, initial: 1.0, final: 0.4, start: 0.25}
  frequency: {weight: 0.3, reference: 16, decay: 0.9}
- {kind: smooth_l0, coefficient: 1e-3, width: 0.1}
- {kind: reconstruction, name: coins, source: {kind: binomial, delta: false}, routing: {kind: uniform_subset}}
- {kind: reconstruction, name: ci, distance: kl, source: {kind: constant, value: 0.0}, samples: 2}
- {kind: reconstruction, name: whole, source: {kind: unmasked}, routing: {kind: static_probability, probability: 0.5}}
- kind: reconstruction
  name: pgd
  source: {kind: projected_gradient, steps: 2, step_size: 0.1, init: ones, scope: {letters: bc}}
  routing: {kind: layerwise}
- kind: persistent_reconstruction
  name: persistent
  adversary:
    ascent: {kind: adam, lr: {kind: constant, value: 0.01}}
    scope: {letters: sc, repeat: 4}
    warmups: 2
    projection: sigmoid
    dtype: bfloat16
- kind: merged_reconstruction
  name: merged
  probability: {kind: knots, knots: [{time: 0.0, value: 0.0}, {time: 1.0, value: 1.0}]}
  adversary: {ascent: {kind: sign, lr: {kind: constant, value: 0.1}}}
"""


def test_every_kind_of_term_builds_what_it_is_called() -> None:
    terms = parse_config(SMALL, "small", [f"objective={EVERY_TERM}"]).build_objective().terms
    assert terms == (
        objective.Faithfulness(0.5),
        objective.RelativeFaithfulness(),
        objective.ImportanceMinimality(
            1e-3, p=Anneal(1.0, 0.4, 0.25), frequency=Frequency(0.3, 16, 0.9)
        ),
        objective.SmoothL0(1e-3, 0.1),
        objective.Reconstruction(
            "coins", MeanSquaredError(), masks.BinomialSource(delta=False), masks.UniformSubset()
        ),
        objective.Reconstruction("ci", KLDivergence(), masks.ConstantSource(0.0), samples=2),
        objective.Reconstruction(
            "whole", MeanSquaredError(), masks.Unmasked(), masks.StaticProbability(0.5)
        ),
        objective.Reconstruction(
            "pgd",
            MeanSquaredError(),
            adversary.ProjectedGradient(2, 0.1, "ones", adversary.Scope(None)),
            masks.OneSiteAtATime(),
        ),
        objective.PersistentReconstruction(
            "persistent",
            MeanSquaredError(),
            adversary.PersistentAdversary(
                adversary.AdamAscent(constant(0.01)),
                adversary.Scope(4, positions=True),
                warmups=2,
                projection=adversary.Sigmoid(),
                dtype=jnp.dtype("bfloat16"),
            ),
        ),
        objective.MergedReconstruction(
            "merged",
            MeanSquaredError(),
            adversary.PersistentAdversary(adversary.SignAscent(constant(0.1))),
            Schedule((Knot(0.0, 0.0), Knot(1.0, 1.0))),
        ),
    )


def build_ci_fn(ci_fn: str) -> CIFunction:
    config = small_config(f"ci_fn={ci_fn}")
    key = jax.random.key(0)

    def build() -> CIFunction:
        components = init_components(key, (Site("a", 2, 3), Site("b", 3, 2)), {"a": 4, "b": 5})
        return config.ci_fn.build(key, components)

    return eqx.filter_eval_shape(build)


@pytest.mark.parametrize(
    ("ci_fn", "found"),
    [
        ("{kind: component_mlp, hidden: [3]}", "LayerwiseCI"),
        ("{kind: vector_mlp, hidden: [3]}", "LayerwiseCI"),
        ("{kind: shared_mlp, hidden: [3, 2]}", "LayerwiseCI"),
        ("{kind: global_mlp, hidden: [3]}", "GlobalMLP"),
        ("{kind: transformer, d_model: 4, n_blocks: 1, n_heads: 2, hidden: [3]}", "TransformerCI"),
        (
            "{kind: transformer, d_model: 4, n_blocks: 1, n_heads: 2, hidden: [3], chunks: [[a*], [b]]}",
            "TransformerCI",
        ),
        ("{kind: reverse, blocks: [[b], [a]], d_model: 4}", "ReverseCI"),
    ],
)
def test_every_kind_of_ci_fn_builds(ci_fn: str, found: str) -> None:
    built = build_ci_fn(ci_fn)
    assert type(built).__name__ == found
    assert built.squashing == PUBLISHED


@pytest.mark.parametrize(
    ("squashing", "built"),
    [
        ("{kind: leaky_hard, leak: 0.02}", LeakyHard(0.02)),
        ("{kind: unpaired_leaky_hard, leak: 0.03}", UnpairedLeakyHard(0.03)),
        ("{kind: hard}", Hard()),
        ("{kind: logistic}", Logistic()),
        ("{kind: swish_hard, beta: 4}", SwishHard(4.0)),
    ],
)
def test_every_kind_of_squashing_builds(squashing: str, built: Squashing) -> None:
    assert small_config(f"ci_fn.squashing={squashing}").ci_fn.squashing.build() == built


@pytest.mark.parametrize(
    "ci_fn",
    [
        "{kind: component_mlp, hidden: [3], squashing: {kind: hard}}",
        "{kind: vector_mlp, hidden: [3], squashing: {kind: hard}}",
        "{kind: shared_mlp, hidden: [3], squashing: {kind: hard}}",
        "{kind: global_mlp, hidden: [3], squashing: {kind: hard}}",
        "{kind: transformer, d_model: 4, n_blocks: 1, n_heads: 2, hidden: [3], squashing: {kind: hard}}",
        "{kind: reverse, blocks: [[b], [a]], d_model: 4, squashing: {kind: hard}}",
    ],
)
def test_every_kind_of_ci_fn_takes_a_squashing(ci_fn: str) -> None:
    assert build_ci_fn(ci_fn).squashing == Hard()


@pytest.mark.parametrize(
    ("optimizer", "built"),
    [
        (
            "{kind: adamw, lr: {kind: constant, value: 1}, b1: 0.8, weight_decay: 0.1}",
            AdamW(constant(1.0), b1=0.8, weight_decay=0.1),
        ),
        (
            "{kind: muon, lr: {kind: decaying, value: 1, warmup: 0.1}, iterations: 3, clip_norm: 2}",
            Muon(decaying(1.0, warmup=0.1), iterations=3, clip_norm=2.0),
        ),
    ],
)
def test_every_kind_of_optimizer_builds(optimizer: str, built: Optimizer) -> None:
    assert small_config(f"optimizers.ci_fn={optimizer}").optimizers.build().ci_fn == built


def test_the_compute_dtype_is_the_platform_s_unless_told() -> None:
    assert small_config().build_compute_dtype() == jnp.float32
    assert small_config("compute_dtype=bfloat16").build_compute_dtype() == jnp.bfloat16
