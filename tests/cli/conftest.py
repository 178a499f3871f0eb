"""The command line is tested on the same run as the loop."""

from runs.conftest import runner, uninterrupted

__all__ = ["runner", "uninterrupted"]
