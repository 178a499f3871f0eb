"""Where what a consumer opens goes: on every device of a mesh, on one device, or in the host's memory."""

from typing import Any, Literal

import jax

# None: where the run itself has it.
Place = jax.sharding.Mesh | jax.Device | Literal["host"] | None


def placed(abstract: Any, place: Place) -> Any:
    """`abstract` with its leaves described at another place; a mesh's devices each get a copy.

    **Errors:** `ValueError` for what is no place.
    """
    sharding = sharding_of(place)
    if sharding is None:
        return abstract
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract
    )


def sharding_of(place: Place) -> jax.sharding.Sharding | None:
    """How arrays lie at a place; None where the run, or the host, has them.

    **Errors:** `ValueError` for what is no place.
    """
    if place is None or place == "host":
        return None
    if isinstance(place, jax.sharding.Mesh):
        return jax.sharding.NamedSharding(place, jax.sharding.PartitionSpec())
    if isinstance(place, jax.Device):
        return jax.sharding.SingleDeviceSharding(place)
    raise ValueError(
        f"{place!r} is no place: give a jax.sharding.Mesh, a device of jax.devices(), or 'host'"
    )
