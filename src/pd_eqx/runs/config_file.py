"""Configurations as files: YAML in and out, overrides, and errors that a tired person can act on.

Each mistake is one line with the full key path, what was found and what to do: `objective.0.coeficient: unknown key;
nearest is 'coefficient'`. Nothing here imports JAX, so a mistake is reported at once.
"""

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic
import yaml

from pd_eqx.runs.config import Config, trajectory


class ConfigError(ValueError):
    """A configuration that cannot be run; the message has one line for each mistake."""


class ConfigMismatchError(ConfigError):
    """A configuration other than the one that a run was started with."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file, with overrides.

    **Arguments:**

    - `overrides`: `key.path=value`; the value is YAML, list items are named by number.

    **Errors:** `ConfigError`, with one line for each mistake.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"cannot read {path}: {reason}") from None
    return parse_config(text, str(path), overrides)


def parse_config(text: str, origin: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a YAML text; see `load_config`. `origin` names it in errors."""
    raw = _parse_yaml(text, origin)
    if not isinstance(raw, dict):
        raise ConfigError(f"{origin}: expected keys and values, found {_shown(raw)}")
    for override in overrides:
        _override(raw, override)
    try:
        return Config.model_validate(raw)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(_sentences(error))) from None


def dump_config(config: Config) -> str:
    """The configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def refuse_mismatch(stored: Config, asked: Config, origin: str) -> None:
    """Lets a run go on only under a configuration with the trajectory it was started with.

    **Errors:** `ConfigMismatchError`, with each differing key, its stored and its asked value.
    """
    before, now = dict(trajectory(stored)), dict(trajectory(asked))
    keys = [*before, *(key for key in now if key not in before)]
    differing = [key for key in keys if before.get(key, _ABSENT) != now.get(key, _ABSENT)]
    if not differing:
        return
    lines = [
        f"  {key}: stored {_shown(before.get(key, _ABSENT))}, asked {_shown(now.get(key, _ABSENT))}"
        for key in differing
    ]
    why = ""
    if "steps" in differing:
        why = (
            "\nSchedules are relative to `steps`, so a run with another end has had other updates from the "
            "first one on; it cannot be extended."
        )
    raise ConfigMismatchError(
        f"{origin} was started with another configuration:\n"
        + "\n".join(lines)
        + why
        + "\nGo on with the stored values, or choose another --run-dir for a new run."
    )


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Loader(yaml.SafeLoader):
    """YAML with `3e-3` as a number and no key twice."""


# YAML 1.1 wants a dot and a signed exponent; nobody writes numbers like that.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            mark = node.value[index][0].start_mark
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


def _parse_yaml(text: str, origin: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigError(f"{origin}{where}: {problem}") from None


def _override(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {override!r}: expected key.path=value")
    value = _parse_yaml(text, f"override {override!r}")
    here: Any = raw
    annotation: Any = Config
    parts = path.split(".")
    for index, part in enumerate(parts):
        annotation = _resolve(annotation, here)
        names = get_origin(annotation) is dict  # of sites, which have dots of their own
        key = ".".join(parts[index:]) if names else part
        key = _index(here, key, parts[: index + 1])
        if names or index == len(parts) - 1:
            here[key] = value
            return
        annotation = _child(annotation, key)
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]


def _index(container: Any, key: str, parts: Sequence[str]) -> Any:
    """`key` as it indexes a dictionary or a list of the raw configuration."""
    match container:
        case dict():
            return key
        case list() if key.isdecimal() and int(key) < len(container):
            return int(key)
        case list():
            raise ConfigError(f"{'.'.join(parts)}: the items are 0 to {len(container) - 1}")
        case _:
            found = f"{'.'.join(parts[:-1])} is {_shown(container)}"
            raise ConfigError(f"{'.'.join(parts)}: {found}, which has no keys")


# Finding one's way through the classes, for errors and overrides


def _members(annotation: Any) -> list[Any]:
    """The alternatives of a type, without None and without pydantic's annotations."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [
            member
            for argument in get_args(annotation)
            for member in _members(argument)
            if member is not type(None)
        ]
    return [annotation]


def _kind(model: Any) -> str | None:
    field = getattr(model, "model_fields", {}).get("kind")
    return None if field is None else get_args(field.annotation)[0]


def _resolve(annotation: Any, raw: Any) -> Any:
    """The one alternative that `raw` is of, by its kind."""
    members = _members(annotation)
    kind = raw.get("kind") if isinstance(raw, Mapping) else None
    return next((member for member in members if _kind(member) == kind), members[0])


def _child(annotation: Any, part: str | int) -> Any:
    if get_origin(annotation) is list:
        return get_args(annotation)[0]
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    field = getattr(annotation, "model_fields", {}).get(part)
    return Any if field is None else field.annotation


def _locate(location: Sequence[str | int]) -> tuple[str, Any, Any]:
    """What a pydantic location means; in it, the kind of a thing follows the key of the thing.

    **Returns:** the key path, the class that owns its last key, and the type of what stands there.
    """
    path: list[str] = []
    annotation: Any = Config
    owner: Any = Config
    for part in location:
        members = _members(annotation)
        chosen = next((member for member in members if _kind(member) == part), None)
        if len(members) > 1 and chosen is not None:
            annotation = chosen
            continue
        owner = members[0]
        path.append(str(part))
        annotation = _child(owner, part)
    return ".".join(path), owner, annotation


def _nearest(word: str, valid: Sequence[str], what: str) -> str:
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f"nearest is {close[0]!r}" if close else f"{what} {', '.join(valid)}"


def _sentences(error: pydantic.ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        path, owner, annotation = _locate(detail["loc"])
        context = detail.get("ctx", {})
        match detail["type"]:
            case "extra_forbidden":
                valid = list(owner.model_fields)
                yield f"{path}: unknown key; {_nearest(str(detail['loc'][-1]), valid, 'the keys are')}"
            case "missing":
                yield f"{path}: missing"
            case "union_tag_not_found":
                kinds = ", ".join(str(_kind(member)) for member in _members(annotation))
                yield f"{path}.kind: missing; the kinds are {kinds}"
            case "union_tag_invalid":
                valid = re.findall(r"'([^']+)'", context["expected_tags"])
                tag = str(context["tag"])
                yield f"{path}.kind: unknown kind {tag!r}; {_nearest(tag, valid, 'the kinds are')}"
            case "literal_error":
                valid = re.findall(r"'([^']+)'", context["expected"])
                found = detail["input"]
                yield f"{path}: {_shown(found)} is none of them; {_nearest(str(found), valid, 'choose from')}"
            case "model_attributes_type" | "model_type" | "dict_type":
                yield f"{path}: should be keys and values, found {_shown(detail['input'])}"
            case "value_error":
                yield f"{path}: {context['error']}"
            case _:
                said = detail["msg"].replace("Input should", "should")
                yield f"{path}: {said}, found {_shown(detail['input'])}"
