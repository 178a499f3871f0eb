"""The promises of conftest.py: where one does not hold, other tests pass for too little."""

import os
import socket
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from pd_eqx.losses import faithfulness


def test_every_simulated_device_is_there() -> None:
    assert jax.device_count() == int(os.environ.get("PD_EQX_TEST_DEVICES", "8"))
    assert {device.platform for device in jax.devices()} == {"cpu"}


def test_a_wrong_shape_in_a_public_function_raises() -> None:
    assert float(faithfulness({"site": jnp.array([[1.0, 2.0], [3.0, 4.0]])})) == 7.5
    with pytest.raises(jaxtyping.TypeCheckError):
        faithfulness({"site": jnp.array([1.0, 2.0, 3.0])})


def test_the_network_is_out_of_reach() -> None:
    with socket.socket() as connection, pytest.raises(OSError, match="without a network"):
        connection.connect(("192.0.2.1", 80))


def test_a_connection_within_this_machine_is_let_through() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            assert connection.getpeername()[1] == port


def test_a_run_directory_does_not_exist_yet(run_dir: Path) -> None:
    assert not run_dir.exists()
    assert run_dir.parent.is_dir()


@pytest.mark.devices(1_000_000)
def test_a_test_for_more_devices_than_there_are_is_skipped() -> None:
    pytest.fail("the devices marker did not skip this test")
