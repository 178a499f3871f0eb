"""The states that the checkpoint benchmarks save: float32 noise, a tenth of it product."""

import mmap
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

ITEMS = ("product", "process")


class State(eqx.Module):
    """Two items."""

    product: list[Any]
    process: list[Any]


def placement(devices: int) -> NamedSharding:
    """Rows spread over the devices."""
    mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices])
    return NamedSharding(mesh, PartitionSpec("d"))


def abstract(mib: int, leaves: int, devices: int = 1) -> State:
    """`leaves` equal leaves, `mib` in all."""
    rows = max(8, (mib << 20) // leaves // 4096 // 8 * 8)
    leaf = jax.ShapeDtypeStruct((rows, 1024), jnp.float32, sharding=placement(devices))
    product = max(1, leaves // 10)
    return State([leaf] * product, [leaf] * (leaves - product))


def fresh(like: State) -> State:
    """Noise, made leaf by leaf."""
    leaf = like.product[0]
    make = jax.jit(lambda key: jax.random.normal(key, leaf.shape), out_shardings=leaf.sharding)
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(like))))
    return jax.tree.map(lambda _: jax.block_until_ready(make(next(keys))), like)


def compiled_step(like: State) -> Any:
    """An elementwise step that donates its state."""
    step = jax.jit(lambda state: jax.tree.map(lambda x: x * 1.5 + 1, state), donate_argnums=0)
    return step.lower(like).compile()


def plain_restore(step: Path, like: State) -> State:
    """Both items, by orbax alone."""

    def item(name: str, tree: Any) -> Any:
        arguments = ocp.args.PyTreeRestore(
            item=tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(step / name, args=arguments)

    with jax.set_mesh(None):
        return jax.block_until_ready(State(*(item(name, getattr(like, name)) for name in ITEMS)))


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts on a page: `device_put` on a CPU always borrows it, and a step can never reuse it."""
    page = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype).reshape(array.shape)
    page[...] = array
    return page


def borrowed(array: jax.Array) -> jax.Array:
    """The same values in memory that XLA only borrows."""
    shards = [
        jax.device_put(aligned(np.asarray(shard.data)), shard.device)
        for shard in array.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
