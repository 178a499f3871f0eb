"""The published toy results: what was published, what is asked of a run here, and how one is judged.

A run is judged by its `summary.json` alone, by numbers under joined names such as `geometry/linear1/mmcs`. A number that
is asked for and is not there has not held: a check that matches nothing would otherwise pass.

Source of the published numbers: Bushnaq et al. 2025 (arXiv 2506.20790).
"""

import dataclasses
import fnmatch
import math
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Check:
    """Numbers that must lie in a range, both ends included; without one they are only told.

    - `label`: in the table.
    - `numbers`: a glob over joined names.
    """

    label: str
    numbers: str
    least: float = -math.inf
    most: float = math.inf

    def found(self, summary: Mapping[str, Any]) -> list[float]:
        """The numbers that the check is about, in the order of their names."""
        return [
            value for name, value in sorted(joined(summary)) if fnmatch.fnmatch(name, self.numbers)
        ]

    def holds(self, summary: Mapping[str, Any]) -> bool:
        """Whether there are such numbers, and all lie in the range."""
        found = self.found(summary)
        return bool(found) and all(self.least <= value <= self.most for value in found)

    def told(self, summary: Mapping[str, Any]) -> str:
        """The label and what was found, with a mark where it is out of range: `alive 5, 7 (!)`."""
        numbers = ", ".join(map(_told, self.found(summary))) or "missing"
        return f"{self.label} {numbers}{'' if self.holds(summary) else ' (!)'}"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One example and what its runs are checked for.

    - `example`: of `examples/`, without its ending.
    """

    example: str
    checks: tuple[Check, ...]


@dataclasses.dataclass(frozen=True)
class Toy:
    """One published result.

    - `published`, `asked`: in words, for the table.
    - `arms`: more than one where runs are compared.
    """

    published: str
    asked: str
    arms: tuple[Arm, ...]


def joined(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a nested report with its joined name."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from joined(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


def _told(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.1e}" if abs(value) < 1e-2 else f"{value:.4f}"


def _superposition(
    mmcs: float, ml2r: tuple[float, float], alive: int | None = None
) -> tuple[Check, ...]:
    return (
        Check("mmcs", "geometry/linear?/mmcs", least=mmcs),
        Check("ml2r", "geometry/linear?/ml2r", *ml2r),
        Check("alive", "alive/linear?", *(() if alive is None else (alive, alive))),
    )


def _between(width: int) -> tuple[Check, ...]:
    return (
        Check("alive between", "alive/hidden_layers.*", width, width),
        Check("dense error between", "identity_ci_error/hidden_layers.*/0.2", most=0),
    )


_OWN_MASKS = Check("CI-masked", "reconstruction/ci_masked")
_ATTACK = "reconstruction/pgd_20"

TOYS: Mapping[str, Toy] = {
    "tms_5-2": Toy(
        "mmcs 1.000, ml2r 0.993 ± 0.002",
        "mmcs ≥ 0.998, ml2r 0.97 to 1.03, 5 alive a site",
        (Arm("tms_5-2", _superposition(0.998, (0.97, 1.03), 5)),),
    ),
    "tms_40-10": Toy(
        "mmcs 1.000, ml2r 1.010 ± 0.007",
        "mmcs ≥ 0.997, ml2r 0.97 to 1.04, 40 alive a site",
        (Arm("tms_40-10", _superposition(0.997, (0.97, 1.04), 40)),),
    ),
    "tms_5-2_identity": Toy(
        "mmcs 1.000, ml2r 0.992 ± 0.010, 5 + 2 dense components",
        "as TMS 5-2, and 2 alive between with dense error 0 at 0.2",
        (Arm("tms_5-2_identity", (*_superposition(0.998, (0.97, 1.03), 5), *_between(2))),),
    ),
    "tms_40-10_identity": Toy(
        "mmcs 1.000, ml2r 1.031 ± 0.001, 40 + 10 dense components",
        "mmcs ≥ 0.995, ml2r 0.95 to 1.05, and 10 between with dense error 0 at 0.2",
        (Arm("tms_40-10_identity", (*_superposition(0.995, (0.95, 1.05)), *_between(10))),),
    ),
    "resid_mlp_1": Toy(
        "one component a feature in W_in, 50 dense in W_out",
        "identity error ≤ 2 at 0.2, dense error 0 at 0.2 for 50",
        (
            Arm(
                "resid_mlp_1",
                (
                    Check("identity error in", "identity_ci_error/*.mlp_in/0.2", most=2),
                    Check("dense error out", "identity_ci_error/*.mlp_out/0.2", most=0),
                    Check("alive in, out", "alive/*"),
                ),
            ),
        ),
    ),
    "resid_mlp_2": Toy(
        "25 + 25 dense components in W_out",
        "the same, dense error 0 at 0.2",
        (
            Arm(
                "resid_mlp_2",
                (
                    Check("dense error out", "identity_ci_error/*.mlp_out/0.2", most=0),
                    Check("alive out", "alive/*.mlp_out"),
                ),
            ),
        ),
    ),
    "resid_mlp_3": Toy(
        "17 dense components in each of three W_out",
        "the same, dense error 0 at 0.2",
        (
            Arm(
                "resid_mlp_3",
                (
                    Check("dense error out", "identity_ci_error/*.mlp_out/0.2", most=0),
                    Check("alive out", "alive/*.mlp_out"),
                ),
            ),
        ),
    ),
    "robustness": Toy(
        "20 steps of PGD about 5e-4; 3e-2 to 1.6e-1 when trained on mask = CI alone",
        "PGD ≤ 1e-3 against an adversary in training; ≥ 3e-2 when trained on mask = CI alone",
        (
            Arm("tms_5-2", (Check("PGD", _ATTACK, most=1e-3), _OWN_MASKS)),
            Arm("tms_5-2_ci_masked", (Check("PGD", _ATTACK, least=3e-2), _OWN_MASKS)),
        ),
    ),
}
