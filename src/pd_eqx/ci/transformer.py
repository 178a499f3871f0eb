"""Causal importance by transformers, each over a chunk of sites.

A transformer reads its chunk's inputs, each normed by itself and then side by side, and writes the logits of all
of the chunk's components. One chunk of all sites is the global function; smaller chunks bound its width on deep
targets. Chunks whose transformers have the same shapes run as one, under `vmap`.

Source: golden numbers `09b_global_ci_fns_devbranch`, `transformer`.
"""

import fnmatch
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.ci.attention import Attention, as_sequence, init_attention, rms_norm
from pd_eqx.ci.base import (
    CIFunction,
    check_same_positions,
    concatenated,
    split_by_site,
    vectors,
)
from pd_eqx.ci.mlp import Dense, apply_mlp, init_mlp
from pd_eqx.ci.squashing import PUBLISHED, Squashing
from pd_eqx.components import Components
from pd_eqx.stream import SiteInput

Chunk = tuple[str, ...]


class Block(eqx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; the norms have no gain."""

    attention: Attention
    mlp: tuple[Dense, ...]

    def __call__(self, x: Float[Array, "*batch seq d"]) -> Float[Array, "*batch seq d"]:
        """One block of the residual stream."""
        x = x + self.attention(rms_norm(x))
        return x + apply_mlp(self.mlp, rms_norm(x))


class Transformer(eqx.Module):
    """A bidirectional pre-norm transformer from `n_in` to `n_out` numbers a position; no norm at its end."""

    projector: Dense
    blocks: tuple[Block, ...]
    head: Dense

    def __call__(self, x: Float[Array, "*lead n_in"]) -> Float[Array, "*lead n_out"]:
        """Attends along the axis before the last; without one, each position is a sequence by itself."""
        stream = as_sequence(x)
        stream = apply_mlp([self.projector], stream)
        for block in self.blocks:
            stream = block(stream)
        stream = apply_mlp([self.head], stream)
        return stream.reshape(*x.shape[:-1], stream.shape[-1])


class TransformerCI(CIFunction):
    """Transformers over chunks of sites.

    - `stacks`: transformers of one shape each, stacked along a first axis.
    - `chunks`: the chunks of sites of each stack, in the stack's order; sites of a chunk go by their names.
    """

    stacks: tuple[Transformer, ...]
    chunks: tuple[tuple[Chunk, ...], ...] = eqx.field(static=True)
    squashing: Squashing = eqx.field(static=True, default=PUBLISHED)

    def logits(
        self, site_inputs: Mapping[str, SiteInput], components: Components
    ) -> dict[str, Float[Array, "..."]]:
        """See `CIFunction.logits`."""
        sites = [site for chunks in self.chunks for chunk in chunks for site in chunk]
        check_same_positions(site_inputs, sites)
        normed = {site: rms_norm(vectors(site_inputs, site)) for site in sites}
        logits: dict[str, Array] = {}
        for transformers, chunks in zip(self.stacks, self.chunks, strict=True):
            inputs = jnp.stack([concatenated(normed, chunk) for chunk in chunks])
            outputs = jax.vmap(Transformer.__call__)(transformers, inputs)
            for chunk, output in zip(chunks, outputs, strict=True):
                logits |= split_by_site(output, chunk, components)
        return logits


def init_transformer(
    key: PRNGKeyArray,
    n_in: int,
    n_out: int,
    *,
    d_model: int,
    n_blocks: int,
    n_heads: int,
    hidden: Sequence[int],
    rotary_base: float = 10_000.0,
) -> Transformer:
    """One transformer.

    **Arguments:**

    - `hidden`: hidden widths of each block's MLP.
    - `rotary_base`: of the rotary positions' wavelengths.
    """
    key_projector, key_head, key_blocks = jax.random.split(key, 3)
    blocks: list[Block] = []
    for index in range(n_blocks):
        key_attention, key_mlp = jax.random.split(jax.random.fold_in(key_blocks, index))
        attention = init_attention(key_attention, d_model, n_heads, rotary_base)
        blocks.append(Block(attention, init_mlp(key_mlp, (d_model, *hidden, d_model))))
    (projector,) = init_mlp(key_projector, (n_in, d_model))
    (head,) = init_mlp(key_head, (d_model, n_out))
    return Transformer(projector, tuple(blocks), head)


def init_transformers(
    key: PRNGKeyArray,
    components: Components,
    *,
    d_model: int,
    n_blocks: int,
    n_heads: int,
    hidden: Sequence[int],
    rotary_base: float = 10_000.0,
    chunks: Sequence[Sequence[str]] | None = None,
    squashing: Squashing = PUBLISHED,
) -> TransformerCI:
    """A transformer for each chunk of sites; see `init_transformer` for its sizes.

    **Arguments:**

    - `chunks`: for each chunk, the names of its sites as glob patterns (`layers.0.*`); None for one chunk of all.

    **Errors:** `ValueError` for chunks that do not hold each site exactly once, naming the sites.
    """
    partition = (
        partitioned(sorted(components.V), chunks) if chunks else (tuple(sorted(components.V)),)
    )
    keys = {chunk: jax.random.fold_in(key, index) for index, chunk in enumerate(partition)}
    groups: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in partition:
        n_in = sum(components.V[site].shape[0] for site in chunk)
        n_out = sum(components.counts[site] for site in chunk)
        groups.setdefault((n_in, n_out), []).append(chunk)

    def init(key: PRNGKeyArray, n_in: int, n_out: int) -> Transformer:
        return init_transformer(
            key,
            n_in,
            n_out,
            d_model=d_model,
            n_blocks=n_blocks,
            n_heads=n_heads,
            hidden=hidden,
            rotary_base=rotary_base,
        )

    stacks = [
        jax.vmap(lambda key, sizes=sizes: init(key, *sizes))(jnp.stack([keys[c] for c in chunks]))
        for sizes, chunks in groups.items()
    ]
    return TransformerCI(
        stacks=tuple(stacks),
        chunks=tuple(tuple(chunks) for chunks in groups.values()),
        squashing=squashing,
    )


def partitioned(sites: Sequence[str], chunks: Sequence[Sequence[str]]) -> tuple[Chunk, ...]:
    """Chunks of sites from chunks of glob patterns; the sites of a chunk keep their order in `sites`.

    **Errors:** `ValueError` for a pattern that matches no site, for a site in two chunks or in none.
    """
    found: list[Chunk] = []
    for patterns in chunks:
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(site, pattern) for site in sites):
                raise ValueError(
                    f"chunk pattern {pattern!r} matches none of the sites {list(sites)}"
                )
        found.append(tuple(s for s in sites if any(fnmatch.fnmatchcase(s, p) for p in patterns)))
    held = [site for chunk in found for site in chunk]
    twice = sorted({site for site in held if held.count(site) > 1})
    left = [site for site in sites if site not in held]
    if twice or left:
        raise ValueError(
            f"chunks hold each site once, but {twice} are held twice and {left} by none"
        )
    return tuple(found)
