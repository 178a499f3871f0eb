"""Reports made of nothing but arrays, for the tests of the page: a toy's, and a language model's of any size."""

import numpy as np

from pd_eqx.report.model import (
    Harvested,
    Heat,
    Label,
    Panel,
    Report,
    RunFacts,
    Scored,
    Series,
    SiteReport,
    Windows,
)

WORDS = {0: "the", 1: " cat", 2: "\n", 3: " </script><b>sat</b>", 4: " über", 5: " 日本"}
FACTS = RunFacts(
    name="a run",
    step=300,
    steps=400,
    seconds=12.5,
    finished=False,
    distance="mean squared error",
    config="name: a run\n",
    facts={"target": "tms"},
)
NUMBERS = {"reconstruction": {"ci_masked": 1e-3, "pgd_20": 2e-3, "zeroed": 0.5}}


def panel() -> Panel:
    """Two curves over 300 steps."""
    steps = tuple(range(100, 400, 100))
    values = (
        Series("total", steps, (0.1, 0.01, 0.001)),
        Series("minimality", steps, (3.0, 2.0, 1.0)),
    )
    return Panel("Losses", "unweighted loss", values)


def toy_report() -> Report:
    """One site that takes five features into two dimensions, one component for each and two that are not alive."""
    turns = np.linspace(0.0, 2.0 * np.pi, 5, endpoint=False)
    weight = np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    V = np.concatenate([np.eye(5), np.zeros((5, 2))], axis=1).astype(np.float32)
    U = np.concatenate([weight, np.full((2, 2), 1e-3)]).astype(np.float32)
    response = V.copy()
    heat = Heat(
        "one feature at a time",
        response[:, :5],
        np.arange(5),
        tuple(f"feature {f}" for f in range(5)),
        hidden=2,
        faint=0.05,
    )
    site = SiteReport(
        name="linear1",
        V=V,
        U=U,
        weight=weight,
        features="in",
        alive=5,
        l0=0.25,
        unexplained=1e-8,
        histogram=np.array([0.9, 0.05, 0.0, 0.05]),
        response=response,
        heats=(heat,),
        facts={"pattern errors": "0 at 0.1"},
    )
    lives = np.array([True] * 5 + [False] * 2)
    return Report(
        run=FACTS,
        reads="features",
        numbers=NUMBERS,
        panels=(panel(),),
        sites=(site,),
        density=0.05 * lives,
        mean=0.04 * lives,
        alive=lives,
        above=0.1,
        alive_rule="importance above 0.1 on more than 0.001 of positions",
        measured_on="4 batches",
    )


def text_report(n_sites: int = 2, each: int = 12, width: int = 16, seed: int = 0) -> Report:
    """Sites of a language model with all that a harvest adds; component `c` of a site is active on a share that grows."""
    random = np.random.default_rng(seed)
    count, k, length = n_sites * each, 3, 9

    def site(number: int) -> SiteReport:
        values = random.uniform(size=(length, min(each, 20))).astype(np.float32)
        rows = tuple(WORDS[t % len(WORDS)] for t in range(length))
        heat = Heat("sequence 1", values, np.arange(values.shape[1]), rows, hidden=0, faint=0.05)
        return SiteReport(
            name=f"layers.{number}.mlp_in",
            V=random.normal(size=(width, each)).astype(np.float32),
            U=random.normal(size=(each, width)).astype(np.float32),
            weight=random.normal(size=(width, width)).astype(np.float32),
            features=None,
            alive=each,
            l0=3.0,
            unexplained=None,
            histogram=np.full(20, 0.05),
            response=None,
            heats=(heat,),
            facts={},
        )

    tokens = random.integers(0, len(WORDS), (count, k, length)).astype(np.int32)
    importance = random.uniform(size=(count, k, length)).astype(np.float32)
    importance[0] = np.nan  # the first was never seen active
    windows = Windows(tokens, importance, np.full((count, k), 4, np.int32))
    neighbours = (np.arange(count)[:, None] + np.array([1, 2])) % count
    order = random.permutation(count)
    return Report(
        run=FACTS,
        reads="tokens",
        numbers=NUMBERS,
        panels=(panel(),),
        sites=tuple(site(number) for number in range(n_sites)),
        density=(order + 1) / count,
        mean=(order + 1) / (2 * count),
        alive=np.arange(count) > 0,
        above=0.1,
        alive_rule="importance above 0.1 on more than 0.001 of positions",
        measured_on="4 batches",
        vocabulary=WORDS,
        harvest=Harvested(
            facts={"harvest": "runs/a/harvest", "harvested": "4 batches, 1000 positions"},
            threshold=0.1,
            positions=1000,
            density=(order + 1) / count,
            mean=(order + 1) / (2 * count),
            histogram=np.full((count, 10), 0.1, np.float32),
            top=windows,
            uniform=windows,
            responds=Scored(tokens[:, 0, :3], np.tile([2.0, 1.0, 0.5], (count, 1))),
            promotes=Scored(tokens[:, 1, :2], np.tile([2.0, 1.0], (count, 1))),
            neighbours=Scored(neighbours.astype(np.int32), np.tile([0.9, 0.1], (count, 1))),
            labels={count - 1: Label("closing tags </script>", 0.75, "a model")},
        ),
    )
