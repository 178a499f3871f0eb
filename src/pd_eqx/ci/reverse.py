"""Causal importance by a residual stream that runs from a target's last block to its first.

What a component of an early layer matters depends on what later layers make of it, so the stream meets the
late sites first and each earlier block reads what the later ones have written.

Source: golden numbers `09b_global_ci_fns_devbranch`, `reverse_mlp`, `reverse_attn`.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.ci.attention import Attention, as_sequence, init_attention, rms_norm
from pd_eqx.ci.base import CIFunction, concatenated, split_by_site
from pd_eqx.ci.mlp import Dense, apply_mlp, init_mlp
from pd_eqx.ci.squashing import PUBLISHED, Squashing
from pd_eqx.components import Components
from pd_eqx.stream import SiteInput


class Passage(eqx.Module):
    """From one block to the one before it: `x + attention(norm(x))` where it attends, `x + mlp(norm(x))`.

    - `attention`, `attention_gain`: both or neither.
    - `mlp_gain`, `attention_gain`: of the two norms, `[d]`.
    """

    mlp: tuple[Dense, ...]
    mlp_gain: Float[Array, " d"]
    attention: Attention | None
    attention_gain: Float[Array, " d"] | None

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
        """The stream on its way to an earlier block."""
        if self.attention is not None and self.attention_gain is not None:
            attended = self.attention(as_sequence(rms_norm(x) * self.attention_gain))
            x = x + attended.reshape(x.shape)
        return x + apply_mlp(self.mlp, rms_norm(x) * self.mlp_gain)


class ReverseBlock(eqx.Module):
    """A block of the target as the stream meets it.

    - `projector`: writes the inputs of the block's sites, side by side, into the stream.
    - `passage`: what follows, before the block's logits are read; None at the block that is met last.
    - `reader`, `reader_gain`: read the logits of the block's components from the normed stream.
    """

    projector: Dense
    passage: Passage | None
    reader: tuple[Dense, ...]
    reader_gain: Float[Array, " d"]


class ReverseCI(CIFunction):
    """A residual stream through the blocks in reverse.

    - `blocks`: in the order in which the stream meets them: the target's last block first.
    - `sites`: the sites of each, in the order of their inputs and logits.
    """

    blocks: tuple[ReverseBlock, ...]
    sites: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    squashing: Squashing = eqx.field(static=True, default=PUBLISHED)

    def logits(
        self, site_inputs: Mapping[str, SiteInput], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """See `CIFunction.logits`."""
        logits: dict[str, Array] = {}
        stream = jnp.zeros(())
        for block, sites in zip(self.blocks, self.sites, strict=True):
            stream = stream + apply_mlp([block.projector], concatenated(site_inputs, sites))
            if block.passage is not None:
                stream = block.passage(stream)
            read = apply_mlp(block.reader, rms_norm(stream) * block.reader_gain)
            logits |= split_by_site(read, sites, components)
        return logits


def init_reverse(
    key: PRNGKeyArray,
    components: Components,
    blocks: Sequence[Sequence[str]],
    *,
    d_model: int,
    reader_hidden: Sequence[int] = (),
    passage_hidden: Sequence[int] = (),
    n_heads: int = 0,
    rotary_base: float = 10_000.0,
    squashing: Squashing = PUBLISHED,
) -> ReverseCI:
    """A reverse residual stream.

    **Arguments:**

    - `blocks`: names of each block's sites, the target's last block first.
    - `d_model`: the stream's width.
    - `reader_hidden`, `passage_hidden`: hidden widths of the MLPs; none for a linear map.
    - `n_heads`: of the attention in each passage; 0 for none.

    **Errors:** `ValueError` for blocks that do not hold each site exactly once.
    """
    held = [site for sites in blocks for site in sites]
    if sorted(held) != sorted(components.V):
        raise ValueError(f"blocks hold {held}, but each of {sorted(components.V)} belongs to one")
    made: list[ReverseBlock] = []
    for index, sites in enumerate(blocks):
        keys = jax.random.split(jax.random.fold_in(key, index), 4)
        d_in = sum(components.V[site].shape[0] for site in sites)
        count = sum(components.counts[site] for site in sites)
        passage = None
        if index < len(blocks) - 1:
            passage = Passage(
                mlp=init_mlp(keys[1], (d_model, *passage_hidden, d_model)),
                mlp_gain=jnp.ones(d_model),
                attention=init_attention(keys[2], d_model, n_heads, rotary_base)
                if n_heads
                else None,
                attention_gain=jnp.ones(d_model) if n_heads else None,
            )
        (projector,) = init_mlp(keys[0], (d_in, d_model))
        reader = init_mlp(keys[3], (d_model, *reader_hidden, count))
        made.append(ReverseBlock(projector, passage, reader, jnp.ones(d_model)))
    return ReverseCI(
        blocks=tuple(made), sites=tuple(tuple(sites) for sites in blocks), squashing=squashing
    )
