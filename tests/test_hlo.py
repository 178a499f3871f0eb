"""Work is counted as often as it is done, on the devices that do it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pd_eqx.hlo import type_bytes, work_of


def test_bytes_of_a_type() -> None:
    assert type_bytes("f32[2,3]{1,0}") == 24
    assert type_bytes("(bf16[4], s32[], pred[7])") == 8 + 4 + 7


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def looped(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=7)[0]

    x, w = jax.ShapeDtypeStruct((5, 12), jnp.float32), jax.ShapeDtypeStruct((12, 12), jnp.float32)
    compiled = jax.jit(looped).lower(x, w).compile()
    assert work_of(compiled.as_text() or "").flops == 7 * 2 * 5 * 12 * 12


@pytest.mark.devices(4)
def test_collectives_are_counted_with_their_bytes() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=0)

    x = jax.ShapeDtypeStruct((8, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    compiled = jax.jit(total, out_shardings=NamedSharding(mesh, P())).lower(x).compile()
    work = work_of(compiled.as_text() or "")
    assert work.collectives == {"all-reduce": (1, 32 * 4)}
    assert work.largest[0].bytes == 32 * 4
