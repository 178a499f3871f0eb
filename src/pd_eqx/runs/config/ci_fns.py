"""Causal-importance functions in a configuration."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pd_eqx.runs.config.base import Count, CountOrNone, Node, Positive
from pd_eqx.runs.config.squashings import PUBLISHED, AnySquashing

if TYPE_CHECKING:
    from pd_eqx.ci.base import CIFunction
    from pd_eqx.components import Components

Widths = Annotated[list[Count], Field(min_length=1)]


class ComponentMLPConfig(Node):
    """One MLP a component, on its activation."""

    kind: Literal["component_mlp"]
    hidden: Widths
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_component_mlps

        return init_component_mlps(key, components, self.hidden, self.squashing.build())


class VectorMLPConfig(Node):
    """One MLP a component, on its site's whole input."""

    kind: Literal["vector_mlp"]
    hidden: Widths
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_vector_mlps

        return init_vector_mlps(key, components, self.hidden, self.squashing.build())


class SharedMLPConfig(Node):
    """One MLP a site, from its input to all of its components."""

    kind: Literal["shared_mlp"]
    hidden: Widths
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_shared_mlps

        return init_shared_mlps(key, components, self.hidden, self.squashing.build())


class GlobalMLPConfig(Node):
    """One MLP from the inputs of all sites to the components of all sites."""

    kind: Literal["global_mlp"]
    hidden: Widths
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.mlp import init_global_mlp

        return init_global_mlp(key, components, self.hidden, self.squashing.build())


class TransformerConfig(Node):
    """Bidirectional transformers over the normed inputs of all sites, or of each chunk of them."""

    kind: Literal["transformer"]
    d_model: Count
    n_blocks: Count
    n_heads: Count
    hidden: Widths
    rotary_base: Positive = 10_000.0
    chunks: Annotated[list[list[str]], Field(min_length=1)] | None = None
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.transformer import init_transformers

        settings = self.model_dump(exclude={"kind", "squashing"}, exclude_none=True)
        return init_transformers(key, components, **settings, squashing=self.squashing.build())


class ReverseConfig(Node):
    """A residual stream through the target's blocks in reverse, read at each."""

    kind: Literal["reverse"]
    blocks: Annotated[list[list[str]], Field(min_length=1)]
    d_model: Count
    reader_hidden: list[Count] = Field(default_factory=list[int])
    passage_hidden: list[Count] = Field(default_factory=list[int])
    n_heads: CountOrNone = 0
    rotary_base: Positive = 10_000.0
    squashing: AnySquashing = PUBLISHED

    def build(self, key: Any, components: "Components") -> "CIFunction":
        """A fresh causal-importance function for the given components."""
        from pd_eqx.ci.reverse import init_reverse

        settings = self.model_dump(exclude={"kind", "blocks", "squashing"})
        squashing = self.squashing.build()
        return init_reverse(key, components, self.blocks, **settings, squashing=squashing)


AnyCIFunction = Annotated[
    ComponentMLPConfig
    | VectorMLPConfig
    | SharedMLPConfig
    | GlobalMLPConfig
    | TransformerConfig
    | ReverseConfig,
    Field(discriminator="kind"),
]
