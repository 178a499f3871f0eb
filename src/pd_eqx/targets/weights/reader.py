"""A model's configuration as published, read key by key.

A key that is absent takes the family's default. A value of the wrong type, or one that asks for arithmetic that
the target does not do, is an error at once: run anyway, it would be another model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pd_eqx.targets.rotary import LinearScaling, Llama3Scaling, Rotary, Scaling, Unscaled
from pd_eqx.targets.transformer import Activation
from pd_eqx.targets.weights.source import WeightsError

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclasses.dataclass(frozen=True)
class ConfigReader:
    """A `config.json`, or a part of it; `where` names it in messages.

    Every reading method raises `WeightsError` where the key holds what it cannot take. A key that is absent or null
    gives the default; without a default it is an error.
    """

    values: Mapping[str, Any]
    where: str

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._unfit(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self._unfit(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._unfit(key, value, "true or false")
        return value

    def activation(self, key: str, default: str) -> Activation:
        """The name of an activation."""
        value = self._get(key, default)
        if value not in _ACTIVATIONS:
            raise self._unfit(key, value, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def require(self, key: str, *accepted: Any) -> None:
        """Refuses a value that asks for what the target does not do; absent is accepted."""
        value = self.values.get(key)
        if value is not None and value not in accepted:
            raise self._unfit(key, value, " or ".join(map(repr, accepted)) or "nothing")

    def rotary(
        self, head_width: int, fraction: float = 1.0, base_key: str = "rope_theta"
    ) -> Rotary:
        """Rotary positions, from `rope_parameters` or from the older keys beside each other.

        **Arguments:**

        - `fraction`: of a head's coordinates that turn, where `rope_parameters` does not say.
        - `base_key`: the older key of the base.
        """
        parameters = self._part("rope_parameters")
        scaling = parameters if parameters.values else self._part("rope_scaling")
        if "rope_theta" in parameters.values:
            base = parameters.number("rope_theta")
        else:
            base = self.number(base_key, 10000.0)
        fraction = parameters.number("partial_rotary_factor", fraction)
        return Rotary(int(head_width * fraction), base, scaling._scaling())

    def _scaling(self) -> Scaling:
        key = "type" if "rope_type" not in self.values and "type" in self.values else "rope_type"
        kind = self.values.get(key, "default")
        if kind == "default":
            return Unscaled()
        if kind == "linear":
            return LinearScaling(self.number("factor"))
        if kind == "llama3":
            return Llama3Scaling(
                factor=self.number("factor"),
                low=self.number("low_freq_factor"),
                high=self.number("high_freq_factor"),
                original_length=self.integer("original_max_position_embeddings"),
            )
        raise self._unfit(key, kind, "'default', 'linear' or 'llama3'")

    def _part(self, key: str) -> "ConfigReader":
        value = self.values.get(key) or {}
        if not isinstance(value, Mapping):
            raise self._unfit(key, value, "a mapping")
        return ConfigReader(value, f"{self.where}, {key}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise WeightsError(f"{self.where}: key {key!r} is missing")
        return value

    def _unfit(self, key: str, found: Any, expected: str) -> WeightsError:
        return WeightsError(f"{self.where}: key {key!r} is {found!r}, expected {expected}")
