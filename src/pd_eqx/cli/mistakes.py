"""How a command ends when something is wrong: one line that says what, and no traceback.

Exit statuses: 2 for what the caller can correct (a configuration, a directory), 1 for a run that failed.
"""

import contextlib
import sys
from collections.abc import Generator

CORRECTABLE = 2
FAILED = 1


@contextlib.contextmanager
def told_plainly(status: int, *errors: type[Exception]) -> Generator[None, None, None]:
    """Ends the command with a line and a status where one of these errors, meant for people, is raised."""
    try:
        yield
    except errors as error:
        sys.stdout.flush()
        sys.stderr.write(f"pd-eqx: {error}\n")
        raise SystemExit(status) from None
