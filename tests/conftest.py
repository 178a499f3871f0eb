"""What every test runs under: simulated devices, checked shapes, no network.

The number of devices and the import hook only take effect before jax and pd_eqx are first imported,
so both are set here, at import, and a run where it is already too late is refused instead of
passing with fewer devices or unchecked shapes.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

DEVICES = int(os.environ.get("PD_EQX_TEST_DEVICES", "8"))


def _prepare() -> None:
    late = sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "pd_eqx"})
    if late:
        raise pytest.UsageError(
            f"{', '.join(late)} was imported before tests/conftest.py, so neither simulated devices "
            "nor shape checks would hold; look for a plugin or a -p option that imports it"
        )
    flag = "--xla_force_host_platform_device_count"
    others = re.sub(rf"{flag}=\S+", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} {flag}={DEVICES}".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("MPLBACKEND", "agg")

    import jaxtyping

    jaxtyping.install_import_hook("pd_eqx", "beartype.beartype")


_prepare()

pytest_plugins = ("parity.plugin",)

hypothesis.settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile("fuzz", max_examples=5000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests share a worker, and so do all parity tests, which keep one account."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "parity" if "parity/" in file else file

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("devices"):
            (needed,) = marker.args
            if needed > DEVICES:
                reason = f"needs {needed} devices, this run has {DEVICES}"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Where a run may write; it does not exist yet, as before a fresh run."""
    return tmp_path / "run"


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests cache out of the user's cache folder, and what is there out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuse connections beyond this machine, so that no test passes thanks to the network."""

    def refuse_remote(connect: Any) -> Any:
        def local_only(self: socket.socket, address: Any) -> Any:
            remote = self.family in (socket.AF_INET, socket.AF_INET6)
            if remote and address[0] not in ("127.0.0.1", "::1", "localhost"):
                raise OSError(f"a test tried to reach {address}; tests run without a network")
            return connect(self, address)

        return local_only

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse_remote(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", refuse_remote(socket.socket.connect_ex))
        yield
