"""Which files are opened, by whatever library: told by the kernel, since Python's audit hooks see only Python's own."""

import contextlib
import ctypes
import os
import struct
from collections.abc import Generator
from pathlib import Path

_OPENED = 0x20
_EVENT = struct.Struct("iIII")


@contextlib.contextmanager
def opened_below(root: Path) -> Generator[set[str]]:
    """The files and directories below `root` that are opened inside the block; filled in at its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    watched: dict[int, Path] = {}
    found: set[str] = set()
    try:
        for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            watch = libc.inotify_add_watch(descriptor, os.fsencode(directory), _OPENED)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            watched[watch] = directory
        yield found
        found |= {str(path.relative_to(root)) for path in _events(descriptor, watched)}
    finally:
        os.close(descriptor)


def _events(descriptor: int, watched: dict[int, Path]) -> Generator[Path]:
    while True:
        try:
            content = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        while content:
            watch, _, _, length = _EVENT.unpack_from(content)
            name = content[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
            yield watched[watch] / os.fsdecode(name)
            content = content[_EVENT.size + length :]
