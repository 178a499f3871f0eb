"""A state of two items, most of it process, whose leaves are all unlike."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pd_eqx.checkpoint import CheckpointStore

Files = dict[str, bytes]


class State(eqx.Module):
    decomposition: Any
    training: Any


def state(offset: float = 0.0) -> State:
    ramp = jnp.arange(12.0).reshape(3, 4)
    product = {"V": ramp + offset, "U": (ramp[:2] * 2).astype(jnp.bfloat16), "none": None}
    process = [ramp * 3 + offset, {"count": jnp.int32(7), "key": jax.random.key(3)}, ()]
    return State(product, process)


def saved(path: Path, *steps: int) -> Path:
    """A directory of checkpoints with `state(step)` at each step."""
    with CheckpointStore(path) as store:
        for step in steps:
            store.save(step, state(float(step)))
    return path


def files(root: Path) -> Files:
    """Every file below a directory, with its bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def flip(path: Path, position: int = -1) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def damage(step: Path, item: str) -> None:
    """Turns every byte of every file that holds an item's numbers; which of them count is orbax's business."""
    for path in (step / item).rglob("d/*"):
        path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
