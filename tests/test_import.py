"""What an import costs: no extra is needed, and the command line answers without jax."""

import json
import subprocess
import sys
import time

EXTRAS = frozenset(
    {
        "pydantic", "yaml", "typer", "rich", "matplotlib", "scipy", "safetensors",
        "tokenizers", "gguf", "huggingface_hub", "grain", "pyarrow", "jinja2", "markupsafe", "openai",
    }
)  # fmt: skip


def fresh(code: str) -> str:
    """What `code` prints in a Python of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def roots_after(statement: str) -> frozenset[str]:
    """The top-level packages loaded once `statement` has run in a fresh process."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    loaded: list[str] = json.loads(fresh(code))
    return frozenset(name.partition(".")[0] for name in loaded)


def test_the_probe_sees_an_import() -> None:
    assert "yaml" in roots_after("import yaml")


def test_the_public_names_exist_and_need_no_extra() -> None:
    loaded = roots_after("import pd_eqx\nfor name in pd_eqx.__all__: getattr(pd_eqx, name)")
    assert {"pd_eqx", "jax"} <= loaded
    assert not loaded & EXTRAS


def test_importing_the_library_is_quick() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        fresh(code)
        return time.perf_counter() - start

    fresh("import pd_eqx")  # the first one writes the byte code
    assert min(seconds("import pd_eqx") - seconds("pass") for _ in range(3)) < 2.0


def test_the_command_line_starts_without_jax() -> None:
    loaded = roots_after("import pd_eqx.cli.app")
    assert "pd_eqx" in loaded
    assert not loaded & {"jax", "jaxlib", "equinox", "optax", "orbax", "numpy", "matplotlib"}
