"""Imports point one way, and only the edges know the extras.

Read from the source over `ast`, so that an import inside a function or under `TYPE_CHECKING` counts
for the layers as one at the top of a module does. A room that is in no layer fails: it has to be
given its place here.
"""

import ast
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = "pd_eqx"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# From the top down. A room imports from its own layer or from lower ones; no module, directly or
# through others, imports itself. `__init__` is the package itself: its names are for users.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "__main__"),
    ("__init__",),
    ("report",),
    ("runs",),
    ("cluster", "interpret"),
    ("harvest",),
    ("checkpoint", "evals", "data", "targets"),
    ("step",),
    ("objective",),
    ("state", "losses", "adversary", "masks", "ci", "linear", "schedule", "optimizers"),
    (
        "sharding",
        "processes",
        "donation",
        "components",
        "sites",
        "precision",
        "unembedding",
        "hlo",
        "random_bits",
        "stream",
        "query_blocks",
    ),
)

# These are of use without parameter decomposition, and may import no other room than those named.
ALONE: Mapping[str, frozenset[str]] = {
    "checkpoint": frozenset({"checkpoint", "donation", "processes"}),
    "processes": frozenset({"processes"}),
    "donation": frozenset({"donation"}),
}

CORE = frozenset({"jax", "jaxlib", "equinox", "optax", "jaxtyping", "beartype", "numpy"})
STORAGE = frozenset({"orbax", "tensorstore"})
STORAGE_ROOMS = frozenset({"checkpoint"})
EXTRAS = frozenset(
    {
        "pydantic", "yaml", "typer", "rich", "matplotlib", "scipy", "safetensors",
        "tokenizers", "gguf", "huggingface_hub", "grain", "pyarrow", "jinja2", "markupsafe", "openai",
    }
)  # fmt: skip

# Above these layers an extra may be imported inside a function; below, nowhere.
FIRST_OF_MATHEMATICS = "step"
# Edge modules, with all below them, that may import these extras at their top: nothing else imports them at its own.
EDGES: Mapping[str, frozenset[str]] = {
    "cli": frozenset({"typer", "rich"}),
    "runs.config": frozenset({"pydantic"}),
    "runs.config_file": frozenset({"pydantic", "yaml"}),
    "evals.figures": frozenset({"matplotlib"}),
}


@dataclasses.dataclass(frozen=True)
class Import:
    """`module` (dotted, without the package's name) imports `target` (dotted, absolute)."""

    module: str
    target: str
    line: int
    runs_at_import: bool


def _modules(source: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(parts)] = path
    return found


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _import_nodes(
    node: ast.AST, at_import: bool = True
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, at_import
        return
    lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and _for_types(node):
        for child in node.body:
            yield from _import_nodes(child, at_import=False)
        for child in node.orelse:
            yield from _import_nodes(child, at_import)
        return
    for child in ast.iter_child_nodes(node):
        yield from _import_nodes(child, at_import and not lazy)


def _targets(node: ast.Import | ast.ImportFrom, module: str, path: Path) -> list[str]:
    """Every name imported, absolute and dotted as deep as the statement says."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        here = [] if module == "__init__" else module.split(".")
        package = [PACKAGE, *(here if path.name == "__init__.py" else here[:-1])]
        package = package[: len(package) - node.level + 1]
        base = ".".join([*package, base] if base else package)
    return [f"{base}.{alias.name}" for alias in node.names]


def read_imports(source: Path) -> list[Import]:
    """All imports of the package at `source`."""
    return [
        Import(module, target, node.lineno, at_import)
        for module, path in _modules(source).items()
        for node, at_import in _import_nodes(ast.parse(path.read_text(), str(path)))
        for target in _targets(node, module, path)
    ]


def _own_module(target: str, modules: Mapping[str, Path]) -> str:
    """The module of the package that `target` names: the longest prefix that is one."""
    parts = target.split(".")[1:]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in modules:
            return name
    return "__init__"


def _layer(room: str) -> int | None:
    return next((index for index, rooms in enumerate(LAYERS) if room in rooms), None)


def _edge_extras(module: str) -> frozenset[str]:
    of = [extras for edge, extras in EDGES.items() if f"{module}.".startswith(f"{edge}.")]
    return frozenset[str]().union(*of)


def violations(source: Path) -> list[str]:
    """One sentence for each import that points the wrong way."""
    modules = _modules(source)
    graph: dict[str, set[str]] = {module: set() for module in modules}
    said = [
        f"{room} is in no layer: give it its place in LAYERS"
        for room in sorted({module.partition(".")[0] for module in modules})
        if _layer(room) is None
    ]
    for found in read_imports(source):
        room = found.module.partition(".")[0]
        layer, root = _layer(room), found.target.partition(".")[0]
        where = f"{found.module}:{found.line}"
        if layer is None:
            continue
        if root == PACKAGE:
            target = _own_module(found.target, modules)
            if target != found.module:
                graph[found.module].add(target)
            target_room = target.partition(".")[0]
            target_layer = _layer(target_room)
            if target_layer is not None and target_layer < layer:
                said.append(f"{where} imports {target}, which is in a layer above it")
            if room in ALONE and target_room not in ALONE[room]:
                said.append(f"{where} imports {target}, but {room} stands alone")
        elif root in STORAGE:
            if room not in STORAGE_ROOMS:
                said.append(f"{where} imports {root}, which only {sorted(STORAGE_ROOMS)} may")
        elif root in EXTRAS:
            mathematics = _layer(FIRST_OF_MATHEMATICS)
            assert mathematics is not None
            if layer >= mathematics or room in ALONE:
                said.append(f"{where} imports {root}, an extra, which its layer never may")
            elif found.runs_at_import and root not in _edge_extras(found.module):
                said.append(f"{where} imports {root}, an extra, outside a function")
        elif root not in CORE and root not in sys.stdlib_module_names and root != "__future__":
            said.append(f"{where} imports {root}, which is neither core, an extra nor standard")
    said.extend(_cycles(graph))
    return said


def _cycles(graph: Mapping[str, set[str]]) -> list[str]:
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph.get(start, ()))
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead.extend(graph.get(module, ()))
        return seen

    circle = sorted(module for module in graph if module in reachable(module))
    return [f"modules import each other in a circle: {', '.join(circle)}"] if circle else []


def test_imports_point_one_way() -> None:
    assert violations(SOURCE) == []


def plant(root: Path, files: Mapping[str, str]) -> Path:
    source = root / PACKAGE
    for name, text in {"__init__.py": "", "sites.py": "class Site: ...\n", **files}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


INNOCENT: dict[str, str] = {
    "components.py": "import jax\nfrom pd_eqx.sites import Site\n",
    "step.py": "import optax\nfrom pd_eqx import components\nfrom .sites import Site\n",
    "checkpoint/__init__.py": "",
    "checkpoint/store.py": "import orbax.checkpoint\nfrom pd_eqx.checkpoint import manifest\n",
    "checkpoint/manifest.py": "import json\n",
    "evals/__init__.py": "",
    "evals/figures.py": "import matplotlib.pyplot as plt\n",
    "evals/metrics.py": "def match():\n    import scipy.optimize\n",
    "cli.py": "import typer\ndef main():\n    from pd_eqx.runs import loop\n",
    "runs/__init__.py": "",
    "runs/loop.py": "from pd_eqx.step import x\nfrom ..checkpoint.store import y\n",
}


def test_a_package_that_keeps_to_the_layers_is_clean(tmp_path: Path) -> None:
    assert violations(plant(tmp_path, INNOCENT)) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("components.py", "from pd_eqx.step import x\n", "components:1 imports step"),
        (
            "components.py",
            "def f():\n    from .runs import loop\n",
            "components:2 imports runs.loop",
        ),
        ("components.py", "from . import runs\n", "components:1 imports runs"),
        (
            "components.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pd_eqx.runs.loop\n",
            "components:3 imports runs.loop",
        ),
        ("step.py", "import pd_eqx\n", "step:1 imports __init__"),
        ("step.py", "import orbax.checkpoint as ocp\n", "step:1 imports orbax"),
        ("step.py", "def f():\n    import scipy\n", "step:2 imports scipy"),
        ("evals/metrics.py", "import scipy\n", "evals.metrics:1 imports scipy"),
        ("evals/metrics.py", "import requests\n", "evals.metrics:1 imports requests"),
        ("evals/figures.py", "import scipy\n", "evals.figures:1 imports scipy"),
        ("checkpoint/store.py", "from pd_eqx.sites import Site\n", "checkpoint stands alone"),
        ("donation.py", "from pd_eqx import sites\n", "donation stands alone"),
        ("sites.py", "from pd_eqx import components\n", "in a circle: components, sites"),
        ("attic.py", "", "attic is in no layer"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = violations(plant(tmp_path, {**INNOCENT, name: text}))
    assert any(complaint in sentence for sentence in found), found
