"""Runs of goodfire-ai/spd, the PyTorch project, as run directories of this one.

Read are the state dict (target, V, U, importance functions), the run's configuration, and that of its target. Nothing
in them is executed (see `pd_eqx.targets.weights.torch_file`). Torch stores a weight as `[d_out, d_in]`, this project as
`[d_in, d_out]`; V, U and the importance functions are stored alike. What of the configuration this project has no
word for is written down in `run.json`, so that nobody takes the translation for more than it is.

Source: goodfire-ai/spd, branch main, 2026-02-27; golden `spd_runs/`.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from pd_eqx.ci.base import CIFunction
from pd_eqx.ci.mlp import ComponentMLP, Dense, LayerwiseCI, SharedMLP, SiteCI, VectorMLP
from pd_eqx.components import Components
from pd_eqx.runs.config import Config
from pd_eqx.runs.config_file import parse_config
from pd_eqx.runs.deposit import deposit
from pd_eqx.state import Decomposition
from pd_eqx.targets.base import Target
from pd_eqx.targets.resid_mlp import ResidMLP
from pd_eqx.targets.tms import TMS
from pd_eqx.targets.weights.source import TensorSource, WeightsError
from pd_eqx.targets.weights.torch_file import TorchFile

_CONFIG = "final_config.yaml"
_CI_FUNCTIONS: Mapping[str, tuple[str, Callable[[tuple[Dense, ...]], SiteCI]]] = {
    "mlp": ("component_mlp", ComponentMLP),
    "vector_mlp": ("vector_mlp", VectorMLP),
    "shared_mlp": ("shared_mlp", SharedMLP),
}
_SQUASHINGS = {
    "leaky_hard": {"kind": "leaky_hard"},
    "hard": {"kind": "hard"},
    "normal": {"kind": "logistic"},
    "swish_hard": {"kind": "swish_hard"},
}


class ImportRefusedError(ValueError):
    """A run that cannot be imported: what was found, what was expected, what to do."""


@dataclasses.dataclass(frozen=True)
class Imported:
    """What an import made.

    - `step`: of the checkpoint; `sites`: components by site; `untranslated`: keys of the configuration that have no
      counterpart here.
    """

    config: Config
    step: int
    sites: dict[str, int]
    untranslated: tuple[str, ...]


def import_spd(checkpoint: Path, run_dir: Path) -> Imported:
    """Writes a run of goodfire-ai/spd as a run directory.

    **Arguments:**

    - `checkpoint`: `model_N.pth`, or the folder that it is in, whose newest is then taken. `final_config.yaml` and the
      target's `*_train_config.yaml` lie beside it.
    - `run_dir`: empty or absent.

    **Errors:** `ImportRefusedError` for what is missing or not supported; `WeightsError` for a file of weights that is
    damaged, of other shapes than its configuration says, or that asks to run anything; `RunDirectoryError`.
    """
    path = _checkpoint(checkpoint)
    theirs = _yaml(path.parent / _CONFIG)
    arrays = TorchFile(path)
    step = int(re.findall(r"\d+", path.stem)[-1])
    target_class = str(theirs.get("pretrained_model_class")).rpartition(".")[2]
    if target_class not in _TARGETS:
        raise ImportRefusedError(
            f"{path.parent / _CONFIG}: pretrained_model_class is {target_class!r}; the targets that can be imported are "
            f"{', '.join(_TARGETS)}"
        )
    prefix, translate, build = _TARGETS[target_class]
    settings = _yaml(path.parent / f"{prefix}_train_config.yaml")
    with _told_if_missing(path.parent):
        target_config = translate(settings)
        target = build(target_config, arrays)
        components = _components(path, arrays, target)
        config, untranslated = _config(path, theirs, target_config, components)
        ci_fn = _ci_function(theirs, arrays, components, config)
    origin = {
        "imported_from": "goodfire-ai/spd",
        "checkpoint": path.name,
        "untranslated": list(untranslated),
    }
    deposit(run_dir, config, target, Decomposition(components, ci_fn), step, origin)
    return Imported(config, step, components.counts, untranslated)


def _checkpoint(path: Path) -> Path:
    if not path.is_dir():
        if not re.search(r"\d+$", path.stem):
            raise ImportRefusedError(
                f"{path}: expected a checkpoint model_N.pth, whose name says how many updates it has had"
            )
        return path
    numbered = {int(p.stem[6:]): p for p in path.glob("model_*.pth") if p.stem[6:].isdecimal()}
    if not numbered:
        raise ImportRefusedError(f"{path}: there is no checkpoint model_N.pth in it")
    return numbered[max(numbered)]


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportRefusedError(
            f"cannot read {path}: {error.strerror}; it belongs beside the checkpoint"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise ImportRefusedError(f"{path} is not plain YAML: {problem}") from None
    if not isinstance(value, dict):
        raise ImportRefusedError(f"{path} holds no keys and values")
    return value


@contextlib.contextmanager
def _told_if_missing(folder: Path) -> Generator[None, None, None]:
    """A key that a configuration lacks, or a value of another kind, told as such."""
    try:
        yield
    except KeyError as error:
        raise ImportRefusedError(f"a configuration in {folder} lacks {error}") from None
    except (TypeError, AttributeError) as error:
        raise ImportRefusedError(
            f"a configuration in {folder} has a value of another kind than expected: {error}"
        ) from None


def _tensor(arrays: TensorSource, name: str, shape: tuple[int, ...]) -> np.ndarray:
    found = arrays.shapes().get(name)
    if found != shape:
        raise WeightsError(
            f"{arrays.where}: tensor {name!r} is {'absent' if found is None else list(found)}, expected {list(shape)}"
        )
    return arrays.read(name)


# Targets


def _tms_config(theirs: dict[str, Any]) -> dict[str, Any]:
    sizes = {key: theirs[key] for key in ("n_features", "n_hidden", "n_hidden_layers")}
    return {"kind": "tms", "cache": False, **sizes}


def _tms(config: dict[str, Any], arrays: TensorSource) -> Target:
    features, hidden = config["n_features"], config["n_hidden"]

    def weight(name: str, d_in: int, d_out: int) -> Any:
        return jnp.asarray(_tensor(arrays, f"target_model.{name}.weight", (d_out, d_in)).T)

    return TMS(
        linear1=weight("linear1", features, hidden),
        hidden=tuple(
            weight(f"hidden_layers.{i}", hidden, hidden) for i in range(config["n_hidden_layers"])
        ),
        linear2=weight("linear2", hidden, features),
        bias=jnp.asarray(_tensor(arrays, "target_model.linear2.bias", (features,))),
    )


def _resid_mlp_config(theirs: dict[str, Any]) -> dict[str, Any]:
    model = theirs["resid_mlp_model_config"]
    keys = ("n_features", "d_embed", "n_layers", "in_bias", "out_bias")
    label = theirs.get("label_type", "act_plus_resid")
    return {
        "kind": "resid_mlp",
        "cache": False,
        **{key: model[key] for key in keys},
        "n_neurons": model["d_mlp"] * model["n_layers"],
        "activation": model["act_fn_name"],
        "training": {"label": label} if label in {"act_plus_resid", "abs"} else {},
    }


def _resid_mlp(config: dict[str, Any], arrays: TensorSource) -> Target:
    features, width, layers = config["n_features"], config["d_embed"], config["n_layers"]
    neurons = config["n_neurons"] // layers

    def of_layers(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        names = [f"target_model.layers.{layer}.{name}" for layer in range(layers)]
        return tuple(jnp.asarray(_tensor(arrays, each, shape).T) for each in names)

    return ResidMLP(
        embedding=jnp.asarray(_tensor(arrays, "target_model.W_E", (features, width))),
        unembedding=jnp.asarray(_tensor(arrays, "target_model.W_U", (width, features))),
        mlp_in=of_layers("mlp_in.weight", (neurons, width)),
        mlp_out=of_layers("mlp_out.weight", (width, neurons)),
        in_bias=of_layers("mlp_in.bias", (neurons,)) if config["in_bias"] else (),
        out_bias=of_layers("mlp_out.bias", (width,)) if config["out_bias"] else (),
        activation=config["activation"],
    )


# By the class's name: of the training configuration's file, and how configuration and arrays are read.
_TARGETS: Mapping[
    str,
    tuple[
        str,
        Callable[[dict[str, Any]], dict[str, Any]],
        Callable[[dict[str, Any], TensorSource], Target],
    ],
] = {
    "TMSModel": ("tms", _tms_config, _tms),
    "ResidMLP": ("resid_mlp", _resid_mlp_config, _resid_mlp),
}


# The product


def _components(path: Path, arrays: TensorSource, target: Target) -> Components:
    shapes = arrays.shapes()
    V: dict[str, Any] = {}
    U: dict[str, Any] = {}
    for site in target.sites():
        at = f"_components.{site.name.replace('.', '-')}"
        if f"{at}.V" in shapes:
            count = shapes[f"{at}.V"][-1]
            V[site.name] = jnp.asarray(_tensor(arrays, f"{at}.V", (site.d_in, count)))
            U[site.name] = jnp.asarray(_tensor(arrays, f"{at}.U", (count, site.d_out)))
    stored = sorted(name for name in shapes if re.fullmatch(r"_components\..*\.V", name))
    if not V or len(stored) != len(V):
        raise ImportRefusedError(
            f"{path}: holds components {stored}, and the target's sites are "
            f"{[site.name for site in target.sites()]}; each needs its site"
        )
    return Components(V=V, U=U)


def _ci_function(
    theirs: dict[str, Any], arrays: TensorSource, components: Components, config: Config
) -> CIFunction:
    _, make = _CI_FUNCTIONS[theirs["ci_fn_type"]]
    hidden = theirs["ci_fn_hidden_dims"]
    sites: dict[str, SiteCI] = {}
    for site, V in components.V.items():
        d_in, count = V.shape
        stack = () if make is SharedMLP else (count,)
        first = 1 if make is ComponentMLP else d_in
        widths = [first, *hidden, count if make is SharedMLP else 1]
        layers: list[Dense] = []
        for index in range(len(widths) - 1):
            at = f"_ci_fns.{site.replace('.', '-')}.layers.{2 * index}"
            shape = (*stack, *widths[index : index + 2])
            weight = _tensor(arrays, f"{at}.W", shape)
            bias = _tensor(arrays, f"{at}.b", (*stack, widths[index + 1]))
            layers.append(Dense(jnp.asarray(weight), jnp.asarray(bias)))
        sites[site] = make(tuple(layers))
    return LayerwiseCI(sites=sites, squashing=config.ci_fn.squashing.build())


# The configuration


def _config(
    path: Path, theirs: dict[str, Any], target: dict[str, Any], components: Components
) -> tuple[Config, tuple[str, ...]]:
    for key, known in (("ci_fn_type", _CI_FUNCTIONS), ("sigmoid_type", _SQUASHINGS)):
        if theirs.get(key) not in known:
            raise ImportRefusedError(
                f"{path.parent / _CONFIG}: {key} is {theirs.get(key)!r}; those that can be imported are "
                f"{', '.join(known)}"
            )
    untranslated: list[str] = []
    task = theirs.get("task_config", {})
    if task.get("data_generation_type") != "at_least_zero_active":
        untranslated.append("task_config.data_generation_type")
    terms: list[dict[str, Any]] = []
    for index, metric in enumerate(theirs.get("loss_metric_configs", ())):
        term = _term(metric, theirs.get("output_loss_type", "mse"))
        if term is None or any(term["name"] == each["name"] for each in terms):
            untranslated.append(f"loss_metric_configs.{index} ({metric.get('classname')})")
        else:
            terms.append(term)
    warmup = theirs.get("faithfulness_warmup_steps", 0)
    optimizer = {"kind": "adamw", "lr": _schedule(theirs["lr_schedule"])}

    def clipped(key: str) -> dict[str, Any]:
        return {**optimizer, "clip_norm": theirs.get(key)}

    config = {
        "name": path.parent.name or "imported",
        "seed": theirs["seed"],
        "steps": theirs["steps"],
        "target": target,
        "sites": components.counts,
        "ci_fn": {
            "kind": _CI_FUNCTIONS[theirs["ci_fn_type"]][0],
            "hidden": theirs["ci_fn_hidden_dims"],
            "squashing": _SQUASHINGS[theirs["sigmoid_type"]],
        },
        "data": {
            "kind": "sparse_features",
            "batch_size": theirs["batch_size"],
            "probability": float(task["feature_probability"]),
            "low": -1.0 if target["kind"] == "resid_mlp" else 0.0,
            "high": 1.0,
        },
        "objective": terms or [{"kind": "faithfulness"}],
        "optimizers": {
            "components": clipped("grad_clip_norm_components"),
            "ci_fn": clipped("grad_clip_norm_ci_fns"),
        },
        "faithfulness_warmup": {
            "steps": warmup,
            "optimizer": {
                "kind": "adamw",
                "lr": {"kind": "constant", "value": theirs["faithfulness_warmup_lr"]},
                "weight_decay": theirs["faithfulness_warmup_weight_decay"],
            },
        }
        if warmup
        else None,
        "compute_dtype": "bfloat16" if theirs.get("autocast_bf16") else "float32",
    }
    # JSON is YAML too.
    return parse_config(json.dumps(config), str(path.parent / _CONFIG)), tuple(untranslated)


def _schedule(theirs: dict[str, Any]) -> dict[str, Any]:
    if theirs["fn_type"] == "constant" and not theirs.get("warmup_pct"):
        return {"kind": "constant", "value": theirs["start_val"]}
    return {
        "kind": "decaying",
        "value": theirs["start_val"],
        "shape": "hold" if theirs["fn_type"] == "constant" else theirs["fn_type"],
        "final_fraction": theirs.get("final_val_frac", 0.0),
        "warmup": theirs.get("warmup_pct", 0.0),
    }


def _term(metric: dict[str, Any], distance: str) -> dict[str, Any] | None:
    """A term of the objective, or None for one that is not known here."""
    coefficient = metric.get("coeff")
    reconstruction = {
        "kind": "reconstruction",
        "coefficient": coefficient,
        "distance": distance,
        "source": {"kind": "stochastic"},
    }
    match metric.get("classname"):
        case "ImportanceMinimalityLoss" if not metric.get("beta"):
            p: Any = metric["pnorm"]
            if metric.get("p_anneal_final_p") is not None:
                p = {
                    "kind": "annealed",
                    "initial": p,
                    "final": metric["p_anneal_final_p"],
                    "start": metric["p_anneal_start_frac"],
                    "end": metric["p_anneal_end_frac"],
                }
            return {
                "kind": "importance_minimality",
                "name": "importance_minimality",
                "coefficient": coefficient,
                "p": p,
                "eps": metric["eps"],
            }
        case "FaithfulnessLoss":
            return {"kind": "faithfulness", "name": "faithfulness", "coefficient": coefficient}
        case "StochasticReconLoss":
            return {**reconstruction, "name": "stochastic"}
        case "StochasticReconLayerwiseLoss":
            layerwise = {"kind": "layerwise"}
            return {**reconstruction, "name": "stochastic_layerwise", "routing": layerwise}
        case "CIMaskedReconLoss":
            zero = {"kind": "constant", "value": 0.0}
            return {**reconstruction, "name": "ci_masked", "source": zero}
        case _:
            return None
