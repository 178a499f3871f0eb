"""The memory of a toy's compiled step: what is carried, what is temporary, its largest arrays, and how it grows.

    python benchmarks/toy_memory.py tms_5-2_published resid_mlp_1_published

MiB as the compiled step states them, which no machine's speed changes. `batch` and `components` are the temporary memory
with twice the batch, and with twice the components at every site, over that without.
"""

import argparse
import json
from typing import Any

from examples import config_of
from harness import MIB, parse, print_table, run_arm
from shapes import SHAPES


def measure(example: str) -> dict[str, Any]:
    """Of one example; compiles its step three times."""
    import jax

    from pd_eqx.hlo import work_of
    from pd_eqx.runs.assembly import assemble

    config = config_of(example)

    def compiled(*more: str) -> Any:
        assembly = assemble(config_of(example, *more))
        return assembly.lower(assembly.abstract_target()).compile()

    def temporary(step: Any) -> float:
        return step.memory_analysis().temp_size_in_bytes / MIB

    step = compiled()
    assembly = assemble(config)
    state = assembly.abstract(assembly.abstract_target())
    doubled = json.dumps({pattern: 2 * count for pattern, count in config.sites.items()})
    return {
        "carried": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)) / MIB,
        "temporary": temporary(step),
        "batch": temporary(compiled(f"data.batch_size={2 * config.data.batch_size}"))
        / temporary(step),
        "components": temporary(compiled(f"sites={doubled}")) / temporary(step),
        "largest": [f"{each.type} × {each.count}" for each in work_of(step.as_text(), 3).largest],
    }


def main() -> None:
    """Prints a table, or JSON."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("examples", nargs="*", default=[*SHAPES.values()])

    arguments = parse(__doc__, {"measure": measure}, add)
    found = {
        example: run_arm(__file__, "measure", example=example) for example in arguments.examples
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    columns = ("carried", "temporary", "batch", "components")
    print_table(["MiB", *columns], [[n, *(f[c] for c in columns)] for n, f in found.items()])
    for name, of in found.items():
        print(f"{name}: {', '.join(of['largest'])}")


if __name__ == "__main__":
    main()
