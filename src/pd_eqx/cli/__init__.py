"""The command line: `pd-eqx COMMAND`.

Each module here holds one group of commands. What a command works with is imported inside it: `pd-eqx --help` has to
answer before JAX could be imported.
"""

import sys


def main() -> None:
    """Runs the command that the arguments name, if the `cli` extra is installed."""
    try:
        from pd_eqx.cli.app import run
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("pd_eqx"):
            raise
        sys.stderr.write(f"pd-eqx: {missing.name} is not installed: pip install 'pd_eqx[cli]'\n")
        raise SystemExit(2) from None
    run()
