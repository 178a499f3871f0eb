"""Examples as the benchmarks take them: a name, with overrides after commas."""

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def config_of(example: str, *more: str) -> Any:
    """The configuration of `tms_5-2,data.batch_size=64`, with more overrides if there are any."""
    from pd_eqx.runs.config_file import load_config

    name, *overrides = example.split(",")
    return load_config(EXAMPLES / f"{name}.yaml", [*overrides, *more])


def untrained_target(assembly: Any) -> Any:
    """The target of a toy as it is initialised: nothing that is measured depends on how well it was trained."""
    import jax

    from pd_eqx.runs.config.target_base import TrainedTarget

    settings = assembly.config.target
    assert isinstance(settings, TrainedTarget), "a target of its own, without weights of others"
    recipe = settings.recipe()
    made = jax.jit(
        lambda key: recipe.target(*recipe.init(key)), out_shardings=assembly.layout.replicated
    )
    return made(assembly.keys.target)
