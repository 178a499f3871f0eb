"""What a harvest collects. Two harvests can be merged only if they agree in all of it."""

import dataclasses

# Sums are integers of these parts, so that adding them is exact in any order.
IMPORTANCE_PARTS = 1 << 20
PROBABILITY_PARTS = 1 << 16

# Lengths of what a component writes, by octaves; beyond the ends the first and the last bin hold all.
SMALLEST_OCTAVE, LARGEST_OCTAVE = -12, 8


@dataclasses.dataclass(frozen=True)
class HarvestSettings:
    """What is collected of each component.

    - `threshold`: a component fires where its importance is above this.
    - `bins`: of the histogram of importances, equal parts of [0, 1].
    - `top`: windows with the highest importance, at most one of each sequence.
    - `sample`: windows drawn uniformly from all firings.
    - `before`, `after`: how many tokens a window shows on either side.
    - `patterns`: positions, drawn uniformly from all, whose set of firing components is kept.
    - `background`: windows around positions drawn uniformly from all.
    - `predictions`: how many of the likeliest next tokens count as promoted.

    **Errors:** `ValueError` for a threshold outside [0, 1) or a size below its least.
    """

    threshold: float = 0.1
    bins: int = 20
    top: int = 16
    sample: int = 16
    before: int = 16
    after: int = 7
    patterns: int = 20_000
    background: int = 256
    predictions: int = 8

    def __post_init__(self) -> None:
        """Refuses what cannot be collected."""
        if not 0.0 <= self.threshold < 1.0:
            raise ValueError(f"threshold is {self.threshold}; it must be at least 0 and below 1")
        for name in ("bins", "top", "sample", "patterns", "background", "predictions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("before", "after"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")


def activation_edges() -> list[float]:
    """The inner edges of the histogram of activations: negative octaves, 0, positive octaves."""
    positive = [2.0**octave for octave in range(SMALLEST_OCTAVE, LARGEST_OCTAVE + 1)]
    return [-edge for edge in reversed(positive)] + positive
