"""Compiled programs, kept in the user's cache folder: the second start of a run compiles nothing.

JAX can keep what it compiled in a folder, but writes there in place: a process that is killed as it writes leaves half a
file under a name that is never written again, and another may read it meanwhile. So a process gets a folder of its own, in
which it finds links to all that is kept. What it compiled is copied among that at the end, whole or not at all, under
a name with the hash of its content; what does not match its hash is removed instead of used. The folder of a process
that was killed is taken over by the next one, without the file that was written last.

What is kept is apart for each version of jaxlib and each kind of processor. Losing it loses time alone, and a folder that
cannot be written to is as if nothing were kept.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

_KEPT, _SUFFIX = ".kept", "-cache"  # the second is JAX's
_LOCK = ".lock"
# Beyond so many bytes the oldest go.
MOST_BYTES = 1 << 28


def default_folder() -> Path:
    """`pd_eqx/executables` in the user's cache: `$XDG_CACHE_HOME`, or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pd_eqx" / "executables"


@contextlib.contextmanager
def kept_executables(folder: Path | None = None) -> Generator[None]:
    """Within it, JAX takes compiled programs from what is kept, and what it compiles is kept when it ends.

    Does nothing where JAX was told of a folder of the user's own (`JAX_COMPILATION_CACHE_DIR`), or to keep nothing
    (`JAX_ENABLE_COMPILATION_CACHE=false`).

    **Arguments:**

    - `folder`: where they are kept; by default `default_folder()`.
    """
    if _told("jax_compilation_cache_dir") or not _told("jax_enable_compilation_cache"):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            pool = Pool((folder or default_folder()) / _kind_of_machine())
            own = stack.enter_context(pool.opened())
        except OSError:
            own = None
        if own is not None:
            stack.enter_context(_read_and_written_by_jax(own))
        yield


@dataclasses.dataclass(frozen=True)
class Pool:
    """A folder of what is kept. Any number of processes may use it at once, and be killed as they do."""

    folder: Path

    @contextlib.contextmanager
    def opened(self) -> Generator[Path]:
        """A folder for one process, with all that is kept; what is added to it is kept at the end.

        **Errors:** `OSError` where the pool cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.take_over()
        own = Path(tempfile.mkdtemp(dir=self.folder, prefix="of-"))
        with (own / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(_boot())
            lock.flush()
            for path in self._kept():
                self._link(path, own)
            try:
                yield own
            finally:
                with contextlib.suppress(OSError):  # a full disk costs time at the next start
                    self._keep(_files(own))
                    self._forget()
                shutil.rmtree(own, ignore_errors=True)

    def take_over(self) -> None:
        """Keeps what killed processes had compiled, and removes their folders."""
        for left in self.folder.glob("of-*"):
            with contextlib.suppress(OSError), (left / _LOCK).open() as lock:
                fcntl.flock(
                    lock, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # held as long as its process lives
                files = _files(left)
                whole = files[:-1] if lock.read() == _boot() else []
                # Files of one moment may all be the last.
                last = files[-1].stat().st_mtime_ns if files else 0
                self._keep([path for path in whole if path.stat().st_mtime_ns < last])
                shutil.rmtree(left, ignore_errors=True)

    def _kept(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{_KEPT}"))

    def _link(self, kept: Path, own: Path) -> None:
        """Gives a process one of those that are kept, if it is what was written."""
        key, digest = kept.name.removesuffix(_KEPT).rsplit(".", 1)
        try:
            if _digest(kept.read_bytes()) != digest:
                kept.unlink()
                return
            os.link(kept, own / f"{key}{_SUFFIX}")
        except FileNotFoundError:
            pass  # another process has just forgotten it
        except OSError:  # a file system without links
            shutil.copy(kept, own / f"{key}{_SUFFIX}")

    def _keep(self, files: list[Path]) -> None:
        keys = {path.name.rsplit(".", 2)[0] for path in self._kept()}
        for path in files:
            key = path.name.removesuffix(_SUFFIX)
            if key in keys:
                continue
            content = path.read_bytes()
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".writing-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self.folder / f"{key}.{_digest(content)}{_KEPT}")
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _forget(self) -> None:
        """Removes the oldest beyond `MOST_BYTES`."""
        kept = [(path.stat().st_mtime_ns, path.stat().st_size, path) for path in self._kept()]
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= MOST_BYTES:
                break
            path.unlink(missing_ok=True)
            total -= size


@contextlib.contextmanager
def _read_and_written_by_jax(folder: Path) -> Generator[None]:
    """Tells JAX of a folder, and at the end what it was told before."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    told: dict[str, Any] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # XLA's own caches beside JAX's put the folder's name into the key, and every process has another.
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    before = {name: _told(name) for name in told}
    compilation_cache.reset_cache()
    for name, value in told.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _told(option: str) -> Any:
    """What JAX was told of an option; its own types do not list them."""
    import jax

    return getattr(jax.config, option)


def _files(folder: Path) -> list[Path]:
    """What JAX wrote or was given, the last written at the end."""
    return sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _boot() -> str:
    """Which start of the machine this is: what a process wrote before it lost power may be torn anywhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _kind_of_machine() -> str:
    """Jaxlib and the processor: a program for one that can do more fails on one that can do less, at any moment."""
    from importlib import metadata

    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    processor = _digest(f"{platform.machine()} {platform.processor()} {flags}".encode())[:12]
    return f"{metadata.version('jaxlib')}-{processor}"
