"""What a report shows, as plain frozen values: the page knows nothing else.

`collect` fills it from a run, and from a harvest where there is one. Components of all sites stand in one row, site
after site in the target's order; "N" is their number, and arrays over components are `[N, ...]`. What was not measured
is None, and the page says so instead of drawing a zero.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from jaxtyping import Bool, Float, Int
from numpy import ndarray

Matrix = Float[ndarray, "_ _"]

# What the target reads: vectors of features, or tokens.
Reads = Literal["features", "tokens"]


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What is known of a run besides its numbers.

    - `step`, `steps`: the updates that the shown product has had, and those of the whole run.
    - `seconds`: of training, None while it goes on.
    - `distance`: what reconstruction errors are measured in ("mean squared error", "KL divergence, nats").
    - `config`: the whole configuration, as the run holds it.
    - `facts`: words for a reader, by name, in order.
    """

    name: str
    step: int
    steps: int
    seconds: float | None
    finished: bool
    distance: str
    config: str
    facts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve: `values` at `steps`."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves that share an axis; `left_out` more are not drawn."""

    title: str
    unit: str
    series: tuple[Series, ...]
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Heat:
    """Causal importances of one site as a picture, in [0, 1].

    - `values`: `[rows, columns]`; a row is a feature fed alone, or a position of a sequence.
    - `columns`: the component of each column, numbered within the site.
    - `rows`: the words beside each row.
    - `hidden`: components left out, all of them below `faint` in every row.
    """

    title: str
    values: Matrix
    columns: Int[ndarray, " columns"]
    rows: tuple[str, ...]
    hidden: int
    faint: float


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One decomposed site.

    - `V`, `U`, `weight`: `[d_in, C]`, `[C, d_out]`, `[d_in, d_out]`.
    - `features`: which side of the weight the target's features are on; None where it has none.
    - `l0`: active components a position; `unexplained`: the relative squared error of the sum of components.
    - `histogram`: the share of (position, component) pairs in equal parts of [0, 1].
    - `response`: `[n_features, C]` importances with one feature fed at a time; None where tokens are read.
    - `facts`: further numbers, by a name for a reader.
    """

    name: str
    V: Matrix
    U: Matrix
    weight: Matrix
    features: Literal["in", "out"] | None
    alive: int
    l0: float | None
    unexplained: float | None
    histogram: Float[ndarray, " bins"] | None
    response: Matrix | None
    heats: tuple[Heat, ...]
    facts: Mapping[str, str]

    @property
    def count(self) -> int:
        """The number of its components."""
        return self.V.shape[1]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Inputs on which components are active: `k` for each, the strongest first, or drawn evenly.

    - `tokens`: `[N, k, length]`, negative past a window's end; or, where features are read, their values
      `[N, k, n_features]`.
    - `importance`: at each token `[N, k, length]`, or of the whole input `[N, k]`; NaN where there is no window.
    - `peak`: the place in its window of the token for which it was chosen; None where features are read.
    """

    tokens: Int[ndarray, "N k length"] | Float[ndarray, "N k n_features"]
    importance: Float[ndarray, "N k length"] | Float[ndarray, "N k"]
    peak: Int[ndarray, "N k"] | None


@dataclasses.dataclass(frozen=True)
class Scored:
    """For each component a few things with a score, the best first.

    - `items`: `[N, m]` tokens, or components by their place among all; negative past the end.
    - `scores`: `[N, m]`.
    """

    items: Int[ndarray, "N m"]
    scores: Float[ndarray, "N m"]


@dataclasses.dataclass(frozen=True)
class Label:
    """What somebody, or a model, says that a component does.

    - `score`: how well the label tells active from inactive windows, in [0, 1]; None where nobody tried.
    - `author`: who says so.
    """

    text: str
    score: float | None = None
    author: str = ""


@dataclasses.dataclass(frozen=True)
class Harvested:
    """What a harvest adds to a run.

    - `facts`: where it lies and how much it saw, in words.
    - `density`, `mean`: `[N]`, the share of `positions` at which a component's importance is above `threshold`, and its
      mean importance.
    - `histogram`: of each component's importance `[N, bins]`, as shares of positions.
    - `top`, `uniform`: windows; `responds`, `promotes`: tokens with their pointwise mutual information, in bits.
    - `neighbours`: components that are active together; `score_name` says how that is scored.
    """

    facts: Mapping[str, str]
    threshold: float
    positions: int
    density: Float[ndarray, " N"]
    mean: Float[ndarray, " N"]
    histogram: Float[ndarray, "N bins"] | None = None
    top: Windows | None = None
    uniform: Windows | None = None
    responds: Scored | None = None
    promotes: Scored | None = None
    neighbours: Scored | None = None
    score_name: str = "correlation"
    labels: Mapping[int, Label] = dataclasses.field(default_factory=dict[int, Label])


@dataclasses.dataclass(frozen=True)
class Report:
    """All of a report.

    - `numbers`: the evaluation's nested numbers, as `summary.json` holds them.
    - `density`, `mean`, `alive`: `[N]`, on `positions` positions; `above` is what counts as active for `density`, and
      `alive_rule` says in words what counts as alive.
    - `vocabulary`: the words for tokens, by id; ids beyond it are shown as numbers.
    """

    run: RunFacts
    reads: Reads
    numbers: Mapping[str, object]
    panels: tuple[Panel, ...]
    sites: tuple[SiteReport, ...]
    density: Float[ndarray, " N"]
    mean: Float[ndarray, " N"]
    alive: Bool[ndarray, " N"]
    above: float
    alive_rule: str
    measured_on: str
    vocabulary: Mapping[int, str] = dataclasses.field(default_factory=dict[int, str])
    harvest: Harvested | None = None
