"""Labels for the components of a harvest, and a score for each.

A component is labelled from its best windows and scored on others: windows drawn uniformly from all of its firings, and
windows drawn from everywhere in which it does not fire. None of the scored windows was shown for the label.
"""

import concurrent.futures
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pd_eqx.harvest.store import (
    Harvest,
    HarvestError,
    read_harvest,
    read_table,
    read_vocabulary,
)
from pd_eqx.interpret import prompts
from pd_eqx.interpret.endpoint import Endpoint, EndpointError

ANSWERS, LABELS, SUMMARY = "answers.jsonl", "labels.parquet", "labels.json"
_LABEL_TOKENS, _DETECTION_TOKENS = 100, 200
_ATTEMPTS = 2
# A token of English has about four letters.
_LETTERS_A_TOKEN = 4


@dataclasses.dataclass(frozen=True)
class InterpretSettings:
    """How components are labelled and scored.

    - `shown`: best windows in the prompt; `tokens`: tokens in it that the component goes with, of each kind.
    - `positives`, `negatives`: windows that a label is scored on.
    - `least`: components that fired at fewer positions are left out.
    - `sample`: how many components at most, drawn evenly from all, so that their mean score is an estimate of that of all;
      a larger sample holds the smaller. None for all.
    - `seed`: of the sample and of the order of the scored windows.
    """

    shown: int = 12
    tokens: int = 8
    positives: int = 6
    negatives: int = 6
    least: int = 10
    sample: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked about one component.

    - `prompt`: for the label.
    - `windows`, `active`: what the label is scored on, in the order shown; empty where there is too little to score on.
    """

    component: int
    site: str
    index: int
    prompt: str
    windows: tuple[str, ...]
    active: tuple[bool, ...]


@dataclasses.dataclass(frozen=True)
class Label:
    """A component's label.

    - `label`: None where the model gave none.
    - `score`: balanced accuracy on `scored` windows, 0.5 is chance; None where it was not scored.
    """

    component: int
    site: str
    index: int
    label: str | None
    score: float | None
    scored: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What asking would take, at most, beside what is known already."""

    requests: int
    tokens_in: int
    tokens_out: int

    def cost(self, price_in: float, price_out: float) -> float:
        """In the currency of the prices, which are for a million tokens."""
        return (self.tokens_in * price_in + self.tokens_out * price_out) / 1e6


def questions(directory: Path, settings: InterpretSettings) -> list[Question]:
    """What is to be asked about a harvest.

    **Errors:** `HarvestError` where there is none, or none of its components fired often enough.
    """
    harvest = read_harvest(directory)
    text = read_vocabulary(directory)
    chosen = np.flatnonzero(harvest.tally.fired >= settings.least)
    if not chosen.size:
        raise HarvestError(
            f"{directory}: no component fired at {settings.least} positions or more; harvest more batches"
        )
    if settings.sample is not None:
        place = np.random.default_rng(settings.seed).permutation(harvest.tally.fired.size)
        chosen = np.sort(chosen[np.argsort(place[chosen])[: settings.sample]])
    asking = _Asking(harvest, read_table(directory, "tokens"), text.get, settings)
    return [asking.question(int(component)) for component in chosen]


def estimate(asked: Sequence[Question], endpoint: Endpoint) -> Estimate:
    """What asking takes at most; each label is taken to be short, and each question to be asked once."""
    requests, tokens_in, tokens_out = 0, 0, 0
    for question in asked:
        if not endpoint.knows(prompts.SYSTEM, question.prompt):
            requests += 1
            tokens_in += _tokens(question.prompt)
            tokens_out += _LABEL_TOKENS
        elif not question.windows or _detected(question, endpoint):
            continue
        if question.windows:
            requests += 1
            tokens_in += _tokens(prompts.detection_prompt("x" * 60, question.windows))
            tokens_out += _DETECTION_TOKENS
    return Estimate(requests, tokens_in, tokens_out)


def interpret(
    asked: Sequence[Question],
    endpoint: Endpoint,
    *,
    threads: int = 4,
    watch: Callable[[Label], None] = lambda label: None,
) -> list[Label]:
    """Asks for all labels and scores them.

    **Arguments:**

    - `threads`: how many requests may be under way at once.
    - `watch`: called with each label as it comes.

    **Errors:** `EndpointError` at the first request that fails for good; what was answered by then is kept.
    """
    found: dict[int, Label] = {}
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(_label, question, endpoint): question for question in asked}
        try:
            for done in concurrent.futures.as_completed(waiting):
                label = done.result()
                found[label.component] = label
                watch(label)
        except EndpointError:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[question.component] for question in asked]


def write_labels(
    to: Path, labels: Sequence[Label], endpoint: Endpoint, product: str, settings: InterpretSettings
) -> dict[str, Any]:
    """Writes `labels.parquet` and `labels.json`; returns what the latter holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    to.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(label) for label in labels]
    schema = pa.schema(
        [
            ("component", pa.int32()),
            ("site", pa.string()),
            ("index", pa.int32()),
            ("label", pa.string()),
            ("score", pa.float64()),
            ("scored", pa.int32()),
        ]
    )
    partial = to / ".labels.partial"
    pq.write_table(pa.Table.from_pylist(rows, schema), partial)
    partial.replace(to / LABELS)
    scores = [label.score for label in labels if label.score is not None]
    summary = {
        "product": product,
        "endpoint": endpoint.url,
        "model": endpoint.model,
        "settings": dataclasses.asdict(settings),
        "components": len(labels),
        "labelled": sum(label.label is not None for label in labels),
        "scored": len(scores),
        "mean_score": float(np.mean(scores)) if scores else None,
    }
    (to / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def read_labels(harvest: Path, product: str) -> tuple[list[Label], str]:
    """The labels beside a harvest and the model that gave them; none where there are none, or of another decomposition."""
    import pyarrow.parquet as pq

    folder = harvest / "labels"
    if not (folder / SUMMARY).exists():
        return [], ""
    summary = json.loads((folder / SUMMARY).read_bytes())
    if summary["product"] != product:
        return [], ""
    rows = pq.read_table(folder / LABELS).to_pylist()
    return [Label(**row) for row in rows], summary["model"]


class _Asking:
    """Makes the questions of one harvest."""

    def __init__(
        self,
        harvest: Harvest,
        tokens: Any,
        text: Callable[[int], str | None],
        settings: InterpretSettings,
    ) -> None:
        self.harvest, self.settings = harvest, settings
        self.names = harvest.source.names()
        self.words = prompts.words_of(text)
        self.threshold = harvest.tally.settings.threshold
        directions = np.asarray(tokens["direction"].to_pylist(), dtype=object)
        self.associations = {
            direction: {
                name: tokens[name].to_numpy()[directions == direction]
                for name in ("component", "token", "count", "pmi")
            }
            for direction in ("responds", "promotes")
        }
        tally = harvest.tally
        self.firing_in: dict[int, set[int]] = {}
        for priority, component in zip(
            tally.background_firing["priority"].tolist(),
            tally.background_firing["component"].tolist(),
            strict=True,
        ):
            self.firing_in.setdefault(priority, set()).add(component)

    def question(self, component: int) -> Question:
        site, index = self.names[component]
        top = self._rows(self.harvest.tally.top, component)[: self.settings.shown]
        shown = [self._marked(self.harvest.tally.top, row) for row in top]
        windows, active = self._scored(component, top)
        return Question(
            component,
            site,
            index,
            prompts.label_prompt(site, shown, self._facts(component)),
            windows,
            active,
        )

    def _rows(self, table: dict[str, np.ndarray], component: int) -> list[int]:
        return np.flatnonzero(table["component"] == component).tolist()

    def _marked(self, table: dict[str, np.ndarray], row: int) -> str:
        if "inputs" in table:
            return prompts.features(table["inputs"][row].tolist())
        length = table["length"][row]
        words = self.words(table["tokens"][row][:length].tolist())
        return prompts.marked_window(
            words, table["importances"][row][:length].tolist(), self.threshold
        )

    def _plain(self, table: dict[str, np.ndarray], row: int) -> str:
        if "inputs" in table:
            return prompts.features(table["inputs"][row].tolist())
        length = table["length"][row]
        return prompts.plain_window(self.words(table["tokens"][row][:length].tolist()))

    def _facts(self, component: int) -> list[str]:
        facts: list[str] = []
        said = {
            "responds": "It is active, more often than chance, at: ",
            "promotes": "Where it is active, the network expects next, more than elsewhere: ",
        }
        for direction, start in said.items():
            table = self.associations[direction]
            rows = np.flatnonzero((table["component"] == component) & (table["pmi"] > 0))
            # By how much they explain, so that a token that was seen once does not come first.
            order = np.argsort(-table["pmi"][rows] * table["count"][rows], kind="stable")
            best = table["token"][rows[order[: self.settings.tokens]]].tolist()
            if best and self.harvest.source.kind == "features":
                facts.append(start + ", ".join(f"feature {feature}" for feature in best))
            elif best:
                facts.append(start + ", ".join(repr(word) for word in self.words(best)))
        return facts

    def _scored(
        self, component: int, shown: Sequence[int]
    ) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        tally, settings = self.harvest.tally, self.settings
        where = {
            (tally.top["batch"][row], tally.top["row"][row]) for row in shown
        }  # whole sequences: a window beside one that was shown gives it away
        positives = [
            self._plain(tally.sample, row)
            for row in self._rows(tally.sample, component)
            if (tally.sample["batch"][row], tally.sample["row"][row]) not in where
        ][: settings.positives]
        quiet = [
            row
            for row, priority in enumerate(tally.background["priority"].tolist())
            if component not in self.firing_in.get(priority, ())
        ]
        random = np.random.default_rng([settings.seed, component])
        drawn = random.permutation(len(quiet))[: settings.negatives]
        negatives = [self._plain(tally.background, quiet[place]) for place in drawn]
        if not positives or not negatives:
            return (), ()
        both = [(window, True) for window in positives] + [(window, False) for window in negatives]
        order = random.permutation(len(both))
        return tuple(both[i][0] for i in order), tuple(both[i][1] for i in order)


def _label(question: Question, endpoint: Endpoint) -> Label:
    label = _tried(endpoint, question.prompt, _LABEL_TOKENS, prompts.read_label)
    score: float | None = None
    if label is not None and question.windows:
        count = len(question.windows)
        chosen = _tried(
            endpoint,
            prompts.detection_prompt(label, question.windows),
            _DETECTION_TOKENS,
            lambda answer: prompts.read_detection(answer, count),
        )
        if chosen is not None:
            score = prompts.balanced_accuracy(chosen, question.active)
    scored = 0 if score is None else len(question.windows)
    return Label(question.component, question.site, question.index, label, score, scored)


def _tried(endpoint: Endpoint, prompt: str, tokens: int, read: Callable[[str], Any]) -> Any:
    """An answer that can be read, asked for a second time where the first could not be; None where neither can."""
    for attempt in range(_ATTEMPTS):
        answer = endpoint.ask(prompts.SYSTEM, prompt, tokens=tokens, attempt=attempt)
        try:
            return read(answer.text)
        except ValueError:
            continue
    return None


def _detected(question: Question, endpoint: Endpoint) -> bool:
    """Whether the label that is known was scored already."""
    known = endpoint.ask(prompts.SYSTEM, question.prompt, tokens=_LABEL_TOKENS)
    try:
        label = prompts.read_label(known.text)
    except ValueError:
        return False
    return endpoint.knows(prompts.SYSTEM, prompts.detection_prompt(label, question.windows))


def _tokens(prompt: str) -> int:
    return math.ceil((len(prompts.SYSTEM) + len(prompt)) / _LETTERS_A_TOKEN)
