"""What every part of a configuration has in common.

The library takes modules and dataclasses and never a configuration; each class here has a `kind` and a `build` that
makes the library's object, importing it only then, so that a mistake is told before JAX is loaded. A misspelt
key that was silently ignored would be a run with the wrong settings, so unknown keys are refused.

Every field changes the trajectory of a run unless it is marked `beside_trajectory`: a run is resumed only under a
configuration that agrees in all that do, or its record would describe a run that never was.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import pydantic
from pydantic import Field

_BESIDE_TRAJECTORY = "beside_trajectory"

Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(min_length=1)]
SitePatterns = Annotated[list[Name], Field(min_length=1)]


class Node(pydantic.BaseModel):
    """Any part of a configuration."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=False
    )


def beside_trajectory(default: Any = ..., **constraints: Any) -> Any:
    """A field that a resumed run may change: it does not reach the state."""
    return Field(default, json_schema_extra={_BESIDE_TRAJECTORY: True}, **constraints)


def trajectory(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key path that changes the trajectory, with its value."""
    prefix = f"{path}." if path else ""
    match value:
        case pydantic.BaseModel():
            for name, field in type(value).model_fields.items():
                extra = field.json_schema_extra
                if isinstance(extra, dict) and extra.get(_BESIDE_TRAJECTORY):
                    continue
                yield from trajectory(getattr(value, name), prefix + name)
        case dict():
            for name, item in value.items():
                yield from trajectory(item, f"{prefix}{name}")
        case list():
            for index, item in enumerate(value):
                yield from trajectory(item, f"{prefix}{index}")
        case _:
            yield path, value
