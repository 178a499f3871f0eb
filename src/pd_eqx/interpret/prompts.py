"""What a language model is asked about a component, as plain text, and how its answers are read.

A label is asked for from the component's best windows and the tokens that it goes with. It is then tested on windows that
were not shown: some at which the component fires and some at which it does not, shuffled and without marks. A label that
tells them apart has been understood; one that only sounds right has not.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SYSTEM = "You explain what single components of a neural network respond to. You answer with JSON and nothing else."

# More features of an input than these are not written out.
_FEATURES_SHOWN = 12
_SMALLEST_SHOWN = 0.01


def marked_window(words: Sequence[str], importances: Sequence[float], threshold: float) -> str:
    """A window as a line, with «» around each token at which the component fires."""
    shown = [
        f"«{word}»" if importance > threshold else word
        for word, importance in zip(words, importances, strict=True)
    ]
    return _one_line(_join(words, shown))


def plain_window(words: Sequence[str]) -> str:
    """The same without marks."""
    return _one_line(_join(words, list(words)))


def features(inputs: Sequence[float]) -> str:
    """The features of an input that are not 0, the largest first."""
    values = np.asarray(inputs)
    order = np.argsort(-np.abs(values), kind="stable")[:_FEATURES_SHOWN]
    shown = [f"feature {i}: {values[i]:.2f}" for i in order if abs(values[i]) >= _SMALLEST_SHOWN]
    return ", ".join(shown) or "no feature"


def label_prompt(site: str, windows: Sequence[str], facts: Sequence[str]) -> str:
    """Asks for a label.

    **Arguments:**

    - `windows`: marked, the strongest first.
    - `facts`: further lines, such as the tokens that the component goes with.
    """
    lines = [
        f"A component of the weight matrix {site} of a network is active on few inputs only.",
        "Here are those on which it is most active; where there are tokens, it is active at those in «».",
        "",
        *(f"{number}. {window}" for number, window in enumerate(windows, start=1)),
        "",
        *facts,
        "",
        "Say in at most ten words what it is active on: as specific as the examples allow, and no more general.",
        'Answer as JSON: {"label": "..."}',
    ]
    return "\n".join(lines)


def detection_prompt(label: str, windows: Sequence[str]) -> str:
    """Asks in which windows a component with this label would be active somewhere."""
    lines = [
        f"A component of a network is said to be active on: {label}",
        "",
        "In which of these would it be active somewhere, if that is right?",
        "",
        *(f"{number}. {window}" for number, window in enumerate(windows, start=1)),
        "",
        'Answer as JSON with their numbers, or an empty list: {"active": [1, 2]}',
    ]
    return "\n".join(lines)


def read_label(answer: str) -> str:
    """**Errors:** `ValueError` for an answer without one."""
    label = _object(answer).get("label")
    if not isinstance(label, str) or not label.strip():
        raise ValueError("the answer has no label")
    return _one_line(label.strip())


def read_detection(answer: str, count: int) -> frozenset[int]:
    """The places, from 0, of the windows that the model chose.

    **Errors:** `ValueError` for an answer that is no list of their numbers.
    """
    numbers = _object(answer).get("active")
    if not isinstance(numbers, list) or not all(
        type(number) is int and 1 <= number <= count for number in numbers
    ):
        raise ValueError(f"the answer is no list of numbers from 1 to {count}")
    return frozenset(number - 1 for number in numbers)


def balanced_accuracy(chosen: frozenset[int], active: Sequence[bool]) -> float:
    """The mean of the share of active windows that were chosen and of inactive ones that were not; 0.5 is chance."""
    hits = [index in chosen for index, is_active in enumerate(active) if is_active]
    passed = [index not in chosen for index, is_active in enumerate(active) if not is_active]
    return (sum(hits) / len(hits) + sum(passed) / len(passed)) / 2


def words_of(text: Callable[[int], str | None]) -> Callable[[Sequence[int]], list[str]]:
    """Tokens as words: their text, or their numbers where they have none."""

    def words(tokens: Sequence[int]) -> list[str]:
        return [f"t{token}" if text(token) is None else str(text(token)) for token in tokens]

    return words


def _join(words: Sequence[str], shown: Sequence[str]) -> str:
    # Texts of tokens carry their own spaces; numbers do not.
    return ("" if any(" " in word for word in words) else " ").join(shown)


def _one_line(text: str) -> str:
    return " ".join(text.replace("\n", "⏎ ").split())


def _object(answer: str) -> dict[str, Any]:
    found = re.search(r"\{.*\}", answer, re.DOTALL)
    try:
        value = json.loads(found[0]) if found else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("the answer is not JSON")
    return value
