"""A whole run in a configuration."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from pd_eqx.runs.config.base import (
    Count,
    CountOrNone,
    Name,
    Node,
    beside_trajectory,
)
from pd_eqx.runs.config.ci_fns import AnyCIFunction
from pd_eqx.runs.config.data import AnyData
from pd_eqx.runs.config.evaluation import EvaluationConfig
from pd_eqx.runs.config.objective import AnyTerm, ImportanceMinimalityConfig, SmoothL0Config
from pd_eqx.runs.config.optimizers import FaithfulnessWarmupConfig, OptimizersConfig
from pd_eqx.runs.config.targets import AnyTarget

if TYPE_CHECKING:
    from pd_eqx.objective import Objective
    from pd_eqx.sharding import MeshShape


class CheckpointConfig(Node):
    """Which steps are saved, and which of them stay."""

    every: Count = beside_trajectory(1000)
    keep_last: Count | None = beside_trajectory(2)
    keep_every: Count | None = beside_trajectory(None)


class MeshConfig(Node):
    """How many devices there are along each axis of the mesh; see `pd_eqx.sharding`.

    One axis may be null, for all the devices that are left.
    """

    replica: Count | None = beside_trajectory(1)
    fsdp: Count | None = beside_trajectory(1)
    tensor: Count | None = beside_trajectory(1)

    @pydantic.model_validator(mode="after")
    def _can_be_filled(self) -> "MeshConfig":
        open_axes = [name for name in type(self).model_fields if getattr(self, name) is None]
        if len(open_axes) > 1:
            raise ValueError(
                f"{' and '.join(open_axes)} are null; only one axis can take the devices that are left"
            )
        return self

    def build(self) -> "MeshShape":
        """The library's mesh shape."""
        from pd_eqx.sharding import MeshShape

        return MeshShape(self.replica, self.fsdp, self.tensor)


class ParentConfig(Node):
    """The checkpoint that a fine-tuning run takes its target and its decomposition from."""

    run: Name
    step: CountOrNone


class Config(Node):
    """A whole run."""

    name: Name = beside_trajectory()
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    steps: Count
    target: AnyTarget
    sites: Annotated[dict[str, Count], Field(min_length=1)]
    ci_fn: AnyCIFunction
    data: AnyData
    objective: Annotated[list[AnyTerm], Field(min_length=1)]
    optimizers: OptimizersConfig
    faithfulness_warmup: FaithfulnessWarmupConfig | None = None
    parent: ParentConfig | None = None
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    log_every: Count = beside_trajectory(100)
    max_updates_per_dispatch: Count = beside_trajectory(1000)
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @pydantic.field_validator("data")
    @classmethod
    def _target_reads_it(cls, data: Any, info: Any) -> Any:
        target = info.data.get("target")
        if target is not None and data.kind not in target.reads:
            raise ValueError(
                f"kind is {data.kind!r}, but a target of kind {target.kind!r} reads {' or '.join(target.reads)}"
            )
        return data

    @pydantic.field_validator("objective")
    @classmethod
    def _names_differ(cls, terms: list[Any]) -> list[Any]:
        names = [term.name for term in terms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"each term needs a name of its own; {twice} is used more than once")
        return terms

    @pydantic.field_validator("parent")
    @classmethod
    def _warm_already(cls, parent: ParentConfig | None, info: Any) -> ParentConfig | None:
        if parent is not None and info.data.get("faithfulness_warmup") is not None:
            raise ValueError(
                "a run that starts from a parent's decomposition has no faithfulness_warmup; set it to null"
            )
        return parent

    def build_objective(self) -> "Objective":
        """The library's objective."""
        from pd_eqx.objective import Objective

        return Objective(tuple(term.build() for term in self.objective))

    def build_compute_dtype(self) -> Any:
        """What the forward passes are computed in; `auto` is float32 on CPU and bfloat16 elsewhere."""
        import jax.numpy as jnp

        from pd_eqx.precision import default_compute_dtype

        if self.compute_dtype == "auto":
            return default_compute_dtype()
        return jnp.dtype(self.compute_dtype)

    def counts(self) -> dict[str, int]:
        """The number of components of each chosen site.

        **Errors:** `pd_eqx.sites.UnknownSiteError` for a pattern that matches no site of the target, or one of a term that
        matches no decomposed site.
        """
        from pd_eqx.sites import UnknownSiteError, select_sites, sites_matching

        counts = select_sites(self.target.sites(), self.sites)
        for index, term in enumerate(self.objective):
            if isinstance(term, ImportanceMinimalityConfig | SmoothL0Config):
                try:
                    sites_matching(tuple(counts), term.sites)
                except UnknownSiteError as error:
                    raise UnknownSiteError(f"objective.{index}.sites: {error}") from None
        return counts
