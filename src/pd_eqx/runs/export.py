"""A decomposition to give away: safetensors, a description and a card, which need no checkpoint library to read.

    decomposition.safetensors   V and U of every site, and the causal-importance function's parameters
    target.safetensors          the target's arrays, and the weight of each decomposed site under the site's name; of a
                                published model the latter alone, for the model can be had by its name
    config.json                 the whole configuration, the sites, and a hash of each file
    README.md                   a model card

Bytes are written from a contiguous copy of each array: an array that is a transposed view would else be stored in the
order of its memory, under the shape of the view. The folder appears whole or not at all.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pd_eqx.runs.opened import Opened
from pd_eqx.runs.placement import Place, placed, sharding_of
from pd_eqx.sharding import MeshShape
from pd_eqx.targets.base import Target

if (
    TYPE_CHECKING
):  # configurations need an extra, which a public name may not load before it is called
    from pd_eqx.runs.assembly import Assembly
    from pd_eqx.runs.config import Config
    from pd_eqx.runs.config.language_models import PretrainedTarget
    from pd_eqx.runs.open import OpenedRun

FORMAT = 1
CONFIG, CARD = "config.json", "README.md"
DECOMPOSITION, TARGET = "decomposition.safetensors", "target.safetensors"


class ExportError(ValueError):
    """An export that cannot be written or read."""


@dataclasses.dataclass(frozen=True)
class OpenedExport(Opened):
    """What was exported; see `Opened` for what can be asked of it.

    - `config`: the configuration that it was trained with.
    - `step`: the number of updates that the decomposition has had.
    """

    config: "Config"
    step: int


def export_run(run: "OpenedRun", to: Path) -> int:
    """Writes an opened run as an export.

    **Arguments:**

    - `to`: empty or absent.

    **Returns:** the bytes written.

    **Errors:** `ExportError` where something is there already.
    """
    from safetensors.numpy import save_file

    from pd_eqx.runs.config.language_models import PretrainedTarget
    from pd_eqx.runs.config_file import load_config
    from pd_eqx.runs.directory import read_json
    from pd_eqx.runs.inherit import product_fingerprint

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ExportError(f"{to} is not empty; name a folder that is empty or absent")
    components = run.decomposition.components
    sites = [site for site in run.config.target.sites() if site.name in components.V]
    weights = jax.device_get(_weights(run.target))
    # As it was written, with the model's name and not with where this machine keeps it.
    config = load_config(run.directory.config)
    own = {} if isinstance(config.target, PretrainedTarget) else _named(run.target)
    files = {
        DECOMPOSITION: _named(run.decomposition),
        TARGET: {
            **{f"target/{name}": array for name, array in own.items()},
            **{f"weights/{site.name}": _contiguous(weights[site.name]) for site in sites},
        },
    }
    described: dict[str, Any] = {
        "format": FORMAT,
        "name": config.name,
        "step": run.step,
        "product": product_fingerprint(run.directory.checkpoints, run.step),
        "convention": "x @ W, W [d_in, d_out]; V [d_in, C], U [C, d_out]; delta = W - V @ U",
        "sites": [
            {**dataclasses.asdict(site), "components": components.counts[site.name]}
            for site in sites
        ],
        "config": config.model_dump(mode="json"),
    }
    staged = to.with_name(f".{to.name}.writing")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    metadata = {"pd_eqx": json.dumps(described)}
    for name, tensors in files.items():
        save_file(tensors, staged / name, metadata=metadata)
    hashes = {name: _hash(staged / name) for name in files}
    content = json.dumps({**described, "sha256": hashes}, indent=2)
    (staged / CONFIG).write_text(content + "\n")
    summary = read_json(run.directory.summary) if run.directory.summary.exists() else {}
    if summary.get("steps") != run.step:
        summary = {}  # the numbers of another step
    (staged / CARD).write_text(_card(described, summary))
    for name in files:  # safetensors lets nobody else read what it writes
        shutil.copymode(staged / CONFIG, staged / name)
    for path in (*staged.iterdir(), staged):
        _flush(path)
    size = sum(path.stat().st_size for path in staged.iterdir())
    staged.replace(to)
    _flush(to.absolute().parent)
    return size


def load_export(folder: str | Path, mesh: Place = None) -> OpenedExport:
    """Opens what `pd-eqx export` wrote.

    **Arguments:**

    - `mesh`: where the arrays go, as for `pd_eqx.open_run`.

    **Errors:** `ExportError` where there is no export, or one that was altered or lacks an array; it names the file or
    the array.
    """
    import pydantic

    from pd_eqx.runs.assembly import assemble
    from pd_eqx.runs.config import Config
    from pd_eqx.runs.config.language_models import PretrainedTarget

    folder = Path(folder)
    described = _described(folder)
    try:
        config = Config.model_validate(described["config"])
    except pydantic.ValidationError as error:
        raise ExportError(f"{folder / CONFIG}: config: {error}") from None
    for name, expected in described["sha256"].items():
        if not (folder / name).is_file() or _hash(folder / name) != expected:
            raise ExportError(
                f"{folder / name} is not the file that was exported (its SHA-256 is not that of {CONFIG}); get it again"
            )
    assembly = assemble(config, needs_data=False, mesh=MeshShape(1, 1, 1))
    if isinstance(config.target, PretrainedTarget):
        target = _published(folder, config.target, assembly, mesh)
    else:
        target = _restored(folder / TARGET, assembly.abstract_target(), "target/", mesh)
    product_like = assembly.abstract_product(target)
    decomposition = _restored(folder / DECOMPOSITION, product_like, "", mesh)
    return OpenedExport(target, decomposition, config, described["step"])


def _published(
    folder: Path, configured: "PretrainedTarget", assembly: "Assembly", place: Place
) -> Target:
    """The published model, which an export refers to and does not copy.

    **Errors:** `WeightsError` where the model cannot be had; `ExportError` where a decomposed weight is another.
    """
    from pd_eqx.runs.stored_target import load_published
    from pd_eqx.targets.weights.safetensors import SafetensorsFile

    target = load_published(assembly, configured, configured.open(), sharding_of(place))
    exported = SafetensorsFile(folder / TARGET)
    weights = _weights(target)
    for name in exported.shapes():
        ours, theirs = weights.get(name.removeprefix("weights/")), exported.read(name)
        if ours is None or _contiguous(ours).tobytes() != _contiguous(theirs).tobytes():
            raise ExportError(
                f"{configured.model} is not the model that was taken apart: {name} is another there than in {folder}"
            )
    return jax.device_get(target) if place == "host" else target


def _described(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / CONFIG).read_bytes())
        found = described["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ExportError(
            f"{folder} is no export of pd_eqx: there is no {CONFIG} that says so"
        ) from None
    if found != FORMAT:
        raise ExportError(f"{folder} has format {found}, and this version reads {FORMAT}")
    return described


@jax.jit
def _weights(target: Target) -> dict[str, jax.Array]:
    return target.weights()


def _named(tree: Any) -> dict[str, np.ndarray]:
    """Each array of a pytree by its path, `components/V/linear1`, in C order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): _contiguous(leaf) for path, leaf in leaves}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _contiguous(array: Any) -> np.ndarray:
    # `ascontiguousarray` makes a vector of a scalar.
    return np.array(jax.device_get(array), order="C", copy=True)


def _restored(path: Path, like: Any, prefix: str, place: Place) -> Any:
    """The arrays of a file as a pytree like `like`.

    **Errors:** `ExportError` naming the array that is not there, or that is another.
    """
    from pd_eqx.targets.weights.safetensors import SafetensorsFile
    from pd_eqx.targets.weights.source import WeightsError

    try:
        file = SafetensorsFile(path)
        stored = file.shapes()
        like = placed(like, place)
        leaves, structure = jax.tree_util.tree_flatten_with_path(like)
        arrays: list[Any] = []
        for key_path, leaf in leaves:
            name = prefix + _name(key_path)
            if name not in stored:
                raise ExportError(
                    f"{path}: there is no array {name!r}, which {CONFIG} makes expect"
                )
            array = file.read(name)
            if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
                raise ExportError(
                    f"{path}: array {name!r} is {array.dtype}{list(array.shape)}, expected "
                    f"{leaf.dtype}{list(leaf.shape)}"
                )
            # A copy: what is mapped would be borrowed by the device for as long as the array lives.
            array = np.array(array)
            arrays.append(array if place == "host" else jax.device_put(array, leaf.sharding))
    except WeightsError as error:
        raise ExportError(str(error)) from None
    return structure.unflatten(arrays)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _card(described: dict[str, Any], summary: dict[str, Any]) -> str:
    """A model card: what it is, how well it does, how to load it."""
    config = described["config"]
    rows = [
        f"| `{site['name']}` | {site['d_in']} × {site['d_out']} | {site['components']} |"
        for site in described["sites"]
    ]
    names = [site["name"] for site in described["sites"]]
    measured = _measured(summary, names)
    first = names[0]
    lines = [
        "---",
        "library_name: pd_eqx",
        "tags: [parameter-decomposition, interpretability]",
        "---",
        "",
        f"# {described['name']}",
        "",
        f"A parameter decomposition of a target of kind `{config['target']['kind']}`, after {described['step']} updates",
        f"(seed {config['seed']}). Each chosen weight `W` is written as `V @ U` plus a delta, and the causal-importance",
        f"function (`{config['ci_fn']['kind']}`) says which of the rank-one components matter on an input.",
        "",
        "| site | weight | components |",
        "|---|---|---|",
        *rows,
        "",
        *(["## Measured", "", *measured] if measured else []),
        "## Load it",
        "",
        "```python",
        "import pd_eqx",
        "",
        'export = pd_eqx.load_export("this folder")',
        f'export.decomposition.components.V["{first}"]',
        "```",
        "",
        f"or with `safetensors` alone: `V`, `U` and `W` of a site are `components/V/{first}`, `components/U/{first}` in",
        f"`{DECOMPOSITION}`, and `weights/{first}` in `{TARGET}`. {described['convention']}.",
        "",
        f"`{CONFIG}` holds the whole configuration. Product fingerprint: `{described['product']}`.",
        "",
    ]
    return "\n".join(lines)


def _measured(summary: dict[str, Any], sites: list[str]) -> list[str]:
    """The numbers of a summary: a line each, and a table of those that every site has."""
    lines: list[str] = []
    columns: dict[str, dict[str, float]] = {}
    for name, value in _flat(summary):
        site = next((part for part in name if part in sites), None)
        if site is None:
            lines.append(f"- `{'/'.join(name)}`: {value:.6g}")
        else:
            column = "/".join(part for part in name if part != site)
            columns.setdefault(column, {})[site] = value
    if columns:
        lines += ["", f"| site | {' | '.join(f'`{name}`' for name in columns)} |"]
        lines.append("|---" * (len(columns) + 1) + "|")
    for site in sites if columns else ():
        told = [f"{column[site]:.4g}" if site in column else "" for column in columns.values()]
        lines.append(f"| `{site}` | {' | '.join(told)} |")
    return [*lines, ""] if lines else []


# What a summary holds that says nothing of how good the decomposition is, or is told above.
_BESIDE = frozenset({"seed", "steps", "seconds", "resumes", "donated_fraction", "components"})


def _flat(
    summary: dict[str, Any], prefix: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], float]]:
    found: list[tuple[tuple[str, ...], float]] = []
    for name, value in summary.items():
        if not prefix and name in _BESIDE:
            continue
        if isinstance(value, dict):
            found += _flat(value, (*prefix, name))
        elif isinstance(value, int | float):
            found.append(((*prefix, name), float(value)))
    return found
