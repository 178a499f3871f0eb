"""What a run will need, before anything is paid for: memory, disk, traffic and work of the real step.

The step of the configuration is compiled ahead of time for its mesh, on simulated devices and from shapes alone: no
weight is read or made, so a model of any size is planned on a laptop. Bytes of the state, of a checkpoint and of a
resume follow from shapes and places, and are exact. Those of the step's temporaries are what XLA's compiler for CPUs
assigns; another compiler fuses and schedules otherwise.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from pd_eqx.donation import leaf_path
from pd_eqx.hlo import Work, work_of
from pd_eqx.runs.assembly import Assembly, Unavailable, assemble
from pd_eqx.runs.config import Config
from pd_eqx.runs.config.data import CorpusConfig
from pd_eqx.sharding import MeshShape
from pd_eqx.targets.transformer import Transformer


class StandIn(eqx.Module):
    """Random tokens in the shape of a corpus that is not here."""

    shape: tuple[int, int] = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Int[Array, "batch length"]:
        """A batch."""
        return jax.random.randint(key, self.shape, 0, self.vocabulary, jnp.int32)


def assemble_without_data(config: Config, mesh: MeshShape | None = None) -> Assembly:
    """A run as `assemble` makes it; a corpus that is not here is stood in for by random tokens of its shape.

    **Errors:** those of `assemble`, but for a missing corpus.
    """
    assembly = assemble(config, needs_data=False, mesh=mesh)
    if not isinstance(assembly.batches, Unavailable):
        return assembly
    data, target = config.data, assembly.abstract_target()
    assert isinstance(data, CorpusConfig)  # no other data is ever missing
    assert isinstance(target, Transformer)  # nothing else reads a corpus
    shape = (data.batch_size, data.length)
    return dataclasses.replace(assembly, batches=StandIn(shape, target.config.vocabulary))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run needs; bytes are of one device unless said otherwise.

    - `mesh`: devices along each axis.
    - `state`: bytes by item and group; `by_batch`: those of the state that grow with the batch.
    - `target`: bytes of the frozen network.
    - `arguments`, `outputs`, `aliased`, `temporaries`: of the step, as XLA assigns them; what is aliased is both
      argument and output, and exists once.
    - `largest_leaf`: of the state.
    - `checkpoint`: bytes of all arrays of one checkpoint, whole.
    - `copied`: bytes of the state's leaves that an axis of the mesh should have split and does not tile.
    - `work`: of one update.
    """

    mesh: Mapping[str, int]
    state: Mapping[str, int]
    by_batch: int
    target: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    largest_leaf: int
    checkpoint: int
    copied: int
    work: Work

    @property
    def state_bytes(self) -> int:
        """The state's bytes."""
        return sum(self.state.values())

    @property
    def step_peak(self) -> int:
        """All that is alive at once in a step, at most."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @property
    def resume_peak(self) -> int:
        """All that is alive at once while a state is restored: target, state, and one leaf again."""
        return self.target + self.state_bytes + self.largest_leaf

    @property
    def limit(self) -> str:
        """What the batch is limited by, in words."""
        grows, stays = (
            self.by_batch + self.temporaries,
            self.state_bytes - self.by_batch + self.target,
        )
        if stays >= grows:
            return "parameters, moments and the target, which do not grow with the batch: split them finer (fsdp, tensor)"
        if self.by_batch >= self.temporaries:
            return "sources of its own for every element of the batch: share them, keep them in bfloat16, or split the batch"
        largest = self.work.largest[0]
        where = "/".join(largest.operation.split("/")[-3:])
        return f"temporaries of the step, first of all {largest.type} ({where}): split the batch or the components finer"


def plan(config: Config, mesh: MeshShape | None = None) -> Plan:
    """The plan of a run, on as many devices as jax sees.

    **Errors:** those of `assemble`.
    """
    assembly = assemble_without_data(config, mesh)
    target = assembly.abstract_target()
    state = assembly.abstract(target)
    groups: dict[str, int] = defaultdict(int)
    by_batch = largest = checkpoint = copied = 0
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state):
        path, here = leaf_path(keys), _bytes_here(leaf)
        groups[_group(path)] += here
        largest = max(largest, here)
        checkpoint += math.prod(leaf.shape) * leaf.dtype.itemsize
        if path.startswith("training.adversaries") and leaf.shape[:1] == (config.data.batch_size,):
            by_batch += here
        if assembly.layout.placed(path, leaf.shape).copied:
            copied += here
    compiled = assembly.lower(target).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    return Plan(
        mesh=dict(assembly.layout.mesh.shape),
        state=dict(groups),
        by_batch=by_batch,
        target=sum(_bytes_here(leaf) for leaf in jax.tree.leaves(target)),
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        largest_leaf=largest,
        checkpoint=checkpoint,
        copied=copied,
        work=work_of(compiled.as_text() or ""),
    )


def _bytes_here(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _group(path: str) -> str:
    """The item and the field of it, and of adversaries the term."""
    return re.match(r"\w+\.\w+(\['\w+'\])?", path).group()  # pyright: ignore[reportOptionalMemberAccess]
