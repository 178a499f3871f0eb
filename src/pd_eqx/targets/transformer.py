"""A decoder-only transformer, configured into the families that people use.

A family is a value of `TransformerConfig`, never a branch in the forward: how attention reads its queries, keys and
values, which MLP, which norm, which positions, which matrices have biases. Every matrix of attention and MLP is a
site, `layers.{i}.attn.q` and so on, whatever the family called it; embedding, norms, biases and head run frozen.
Weights keep the dtype in which they are stored, and arithmetic runs in it too unless the target names another; norms,
softmax and rotary positions run at least in float32, because published models were trained so.

Token ids beyond the vocabulary give NaN, which stops a run, instead of the last token's embedding.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.linear import LinearMap, frozen
from pd_eqx.query_blocks import QUERIES_AT_ONCE, by_query_blocks
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target
from pd_eqx.targets.rotary import Rotary
from pd_eqx.targets.stacked import run_layers
from pd_eqx.unembedding import Head, Unembedding

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}

# `(kind, x) → x @ W + b`: one matrix of a layer, whoever computes it.
Apply = Callable[[str, Float[Array, "..."]], Float[Array, "..."]]


class Norm(abc.ABC):
    """How activations are normalised over their last axis, before a scale and, where `has_bias`, a bias."""

    has_bias: ClassVar[bool]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """`x` normalised, in its dtype."""


@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """Divided by the root of the mean square plus `eps`."""

    has_bias: ClassVar[bool] = False
    eps: float

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Norm`."""
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps)


@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """Less the mean, divided by the root of the biased variance plus `eps`."""

    has_bias: ClassVar[bool] = True
    eps: float

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `Norm`."""
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(
            jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.eps
        )


class QKV(abc.ABC):
    """Which matrices give queries, keys and values."""

    @abc.abstractmethod
    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """`(d_in, d_out)` by kind, in the order in which they are applied."""

    @abc.abstractmethod
    def __call__(
        self, outputs: Mapping[str, Float[Array, "..."]], config: "TransformerConfig"
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Queries `[*lead, heads, D]`, keys and values `[*lead, kv_heads, D]`.

        **Arguments:**

        - `outputs`: of the matrices, by kind, with their biases.
        """


@dataclasses.dataclass(frozen=True)
class SeparateQKV(QKV):
    """One matrix each: `attn.q`, `attn.k`, `attn.v`."""

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `QKV`."""
        q, kv = config.heads * config.head_width, config.kv_heads * config.head_width
        return {
            "attn.q": (config.width, q),
            "attn.k": (config.width, kv),
            "attn.v": (config.width, kv),
        }

    def __call__(
        self, outputs: Mapping[str, Float[Array, "..."]], config: "TransformerConfig"
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """See `QKV`."""
        return (
            _in_heads(outputs["attn.q"], config.heads),
            _in_heads(outputs["attn.k"], config.kv_heads),
            _in_heads(outputs["attn.v"], config.kv_heads),
        )


@dataclasses.dataclass(frozen=True)
class FusedQKV(QKV):
    """One matrix `attn.qkv`; its output is all queries, then all keys, then all values."""

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `QKV`."""
        heads = config.heads + 2 * config.kv_heads
        return {"attn.qkv": (config.width, heads * config.head_width)}

    def __call__(
        self, outputs: Mapping[str, Float[Array, "..."]], config: "TransformerConfig"
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """See `QKV`."""
        fused = _in_heads(outputs["attn.qkv"], config.heads + 2 * config.kv_heads)
        q, k, v = jnp.split(fused, (config.heads, config.heads + config.kv_heads), axis=-2)
        return q, k, v


@dataclasses.dataclass(frozen=True)
class FusedByHeadQKV(QKV):
    """One matrix `attn.qkv`; its output is, head by head, a query, a key and a value."""

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `QKV`.

        **Errors:** `ValueError` where there is not a key and a value for each query.
        """
        if config.heads != config.kv_heads:
            raise ValueError(
                "a matrix fused by head has a key and a value for each query: kv_heads is "
                f"{config.kv_heads}, but heads is {config.heads}"
            )
        return {"attn.qkv": (config.width, 3 * config.heads * config.head_width)}

    def __call__(
        self, outputs: Mapping[str, Float[Array, "..."]], config: "TransformerConfig"
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """See `QKV`."""
        by_head = _in_heads(outputs["attn.qkv"], config.heads)
        q, k, v = jnp.split(by_head, 3, axis=-1)
        return q, k, v


class MLP(abc.ABC):
    """Which matrices stand between a layer's normalised input and what its MLP adds."""

    @abc.abstractmethod
    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """`(d_in, d_out)` by kind, in the order in which they are applied."""

    @abc.abstractmethod
    def __call__(self, apply: Apply, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The MLP's output, of `x`'s shape."""


@dataclasses.dataclass(frozen=True)
class GatedMLP(MLP):
    """`mlp.down` of `activation(mlp.gate x) · mlp.up x`; SwiGLU with `silu`."""

    activation: Activation

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `MLP`."""
        up, down = (config.width, config.mlp_width), (config.mlp_width, config.width)
        return {"mlp.gate": up, "mlp.up": up, "mlp.down": down}

    def __call__(self, apply: Apply, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `MLP`."""
        gate = _ACTIVATIONS[self.activation](apply("mlp.gate", x))
        return apply("mlp.down", gate * apply("mlp.up", x))


@dataclasses.dataclass(frozen=True)
class PlainMLP(MLP):
    """`mlp.down` of `activation(mlp.up x)`."""

    activation: Activation

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `MLP`."""
        return {
            "mlp.up": (config.width, config.mlp_width),
            "mlp.down": (config.mlp_width, config.width),
        }

    def __call__(self, apply: Apply, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `MLP`."""
        return apply("mlp.down", _ACTIVATIONS[self.activation](apply("mlp.up", x)))


@dataclasses.dataclass(frozen=True)
class NoMLP(MLP):
    """Attention alone."""

    def matrices(self, config: "TransformerConfig") -> dict[str, tuple[int, int]]:
        """See `MLP`."""
        return {}

    def __call__(self, apply: Apply, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """See `MLP`."""
        return jnp.zeros_like(x)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What makes a family, and a model's sizes.

    - `vocabulary`, `width`, `depth`, `mlp_width`: tokens, residual stream, layers, hidden layer of the MLPs.
    - `heads`, `kv_heads`, `head_width`: query heads; heads of keys and values, each of which serves
      `heads / kv_heads` query heads; coordinates of each.
    - `norm`, `qkv`, `mlp`: the parts; `biased`: the kinds of matrices (`attn.q`) that have a bias.
    - `rotary`: turning queries and keys, or None; `learned_positions`: how many position embeddings are added to
      the tokens', or 0.
    - `qk_norm`: queries and keys are normalised, head by head, before they are turned.
    - `parallel`: attention and MLP both read the layer's input; otherwise the MLP reads attention's result.
    - `tied`: the head is the embedding, transposed.
    """

    vocabulary: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    norm: Norm
    mlp: MLP
    qkv: QKV = SeparateQKV()
    biased: frozenset[str] = frozenset()
    rotary: Rotary | None = None
    learned_positions: int = 0
    qk_norm: bool = False
    parallel: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that do not fit together."""
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads cannot share {self.kv_heads} heads of keys and values; "
                "the first must be a multiple of the second"
            )
        if self.rotary is not None and self.rotary.width > self.head_width:
            raise ValueError(
                f"rotary positions turn {self.rotary.width} coordinates, but a head has only {self.head_width}"
            )
        if unknown := sorted(self.biased - set(self.matrices())):
            raise ValueError(
                f"biases asked for {unknown}, but the matrices are {list(self.matrices())}"
            )

    def matrices(self) -> dict[str, tuple[int, int]]:
        """`(d_in, d_out)` of each matrix of a layer by kind, in the order of the forward pass."""
        out = (self.heads * self.head_width, self.width)
        return {**self.qkv.matrices(self), "attn.o": out, **self.mlp.matrices(self)}

    def norms(self) -> dict[str, int]:
        """The width of each norm of a layer: before attention, before the MLP, and of queries and keys."""
        of_heads = {"q": self.head_width, "k": self.head_width} if self.qk_norm else {}
        return {"attn": self.width, "mlp": self.width, **of_heads}

    def site_names(self) -> list[dict[str, str]]:
        """For each layer, the site's name by kind of matrix."""
        kinds = self.matrices()
        return [{kind: f"layers.{index}.{kind}" for kind in kinds} for index in range(self.depth)]

    def sites(self) -> tuple[Site, ...]:
        """Every matrix, layer by layer; known without weights."""
        shapes = self.matrices()
        return tuple(
            Site(name, *shapes[kind]) for layer in self.site_names() for kind, name in layer.items()
        )


class NormWeights(eqx.Module):
    """Scale and bias `[*layers, width]` of a norm; RMS norms have no bias."""

    scale: Float[Array, "*layers width"]
    bias: Float[Array, "*layers width"] | None


class Layers(eqx.Module):
    """The weights of all layers, stacked: every leaf has a leading axis of layers.

    - `weights`: `[depth, d_in, d_out]` by kind; `biases`: `[depth, d_out]` of those that have one.
    - `norms`: by name, as `TransformerConfig.norms` has them.
    """

    weights: dict[str, Float[Array, "depth _ _"]]
    biases: dict[str, Float[Array, "depth _"]]
    norms: dict[str, NormWeights]


class Transformer(Target):
    """A language model: token ids in, logits out.

    - `embedding`: `[vocabulary, width]`; `positions`: learned ones `[learned_positions, width]`, or None.
    - `layers`: see `Layers`; `norm`: the last one; `head`: `[width, vocabulary]`, or None where it is tied.
    - `dtype`: of the arithmetic; None for the embedding's own, so that casting the weights casts all.
    - `scan`, `rematerialise`: see `run_layers`.
    - `lazy_logits`: whether the forward returns an `Unembedding`, from which a KL divergence computes a part of the
      logits at a time; otherwise it returns logits.
    - `queries_at_once`: of a sequence, see `pd_eqx.query_blocks`.
    """

    embedding: Float[Array, "vocabulary width"]
    positions: Float[Array, "learned width"] | None
    layers: Layers
    norm: NormWeights
    head: Float[Array, "width vocabulary"] | None
    config: TransformerConfig = eqx.field(static=True)
    dtype: str | None = eqx.field(static=True, default=None)
    scan: bool = eqx.field(static=True, default=True)
    rematerialise: bool = eqx.field(static=True, default=False)
    lazy_logits: bool = eqx.field(static=True, default=False)
    queries_at_once: int = eqx.field(static=True, default=QUERIES_AT_ONCE)

    def site_names(self) -> list[dict[str, str]]:
        """See `TransformerConfig.site_names`."""
        return self.config.site_names()

    def sites(self) -> tuple[Site, ...]:
        """See `Target.sites`: `layers.{i}.attn.q` … `layers.{i}.mlp.down`, layer by layer."""
        return self.config.sites()

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """See `Target.weights`."""
        return {
            name: self.layers.weights[kind][index]
            for index, layer in enumerate(self.site_names())
            for kind, name in layer.items()
        }

    def __call__(
        self, inputs: Int[Array, "*lead T"], linear: LinearMap = frozen
    ) -> Float[Array, "*lead T vocabulary"] | Unembedding:
        """See `Target.__call__`: logits of the token after each position, which sees itself and those before it.

        **Errors:** `ValueError` for more tokens than there are learned positions.
        """
        hidden = self.hidden(inputs, linear)
        return Unembedding(hidden, self._head) if self.lazy_logits else self.unembed(hidden)

    def hidden(
        self, inputs: Int[Array, "*lead T"], linear: LinearMap = frozen
    ) -> Float[Array, "*lead T width"]:
        """What the head reads: the residual stream after the last layer, normalised."""
        x, _ = self._run(inputs, linear, lambda _: None)
        return self._normalise(self.norm, x)

    def unembed(self, hidden: Float[Array, "*lead width"]) -> Float[Array, "*lead vocabulary"]:
        """The logits of `hidden`, in its dtype."""
        return self._head(hidden).astype(hidden.dtype)

    def residual_stream(
        self, inputs: Int[Array, "*lead T"], linear: LinearMap = frozen
    ) -> Float[Array, "depth_and_one *lead T width"]:
        """The residual stream before the first layer and after each, before the last norm."""
        _, after = self._run(inputs, linear, lambda x: x)
        return jnp.concatenate([self.embed(inputs)[None], after])

    def embed(self, inputs: Int[Array, "*lead T"]) -> Float[Array, "*lead T width"]:
        """What the first layer reads."""
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(f"a language model reads token ids, found {inputs.dtype}")
        x = _rows(self.embedding, inputs)
        if self.positions is not None:
            known, length = self.positions.shape[0], inputs.shape[-1]
            if length > known:
                raise ValueError(
                    f"{length} tokens, but the model has learned {known} positions; give it shorter sequences"
                )
            x = x + self.positions[:length]
        return x.astype(self._arithmetic)

    def attention_sites(self) -> list[tuple[str, ...]]:
        """For each layer, the sites whose outputs `attention_pattern` reads."""
        kinds = self.config.qkv.matrices(self.config)
        return [tuple(names[kind] for kind in kinds) for names in self.site_names()]

    def attention_pattern(
        self, layer: int, site_outputs: Mapping[str, Float[Array, "..."]]
    ) -> Float[Array, "*lead heads T T"]:
        """The attention probabilities of one layer, from what its sites said.

        **Arguments:**

        - `site_outputs`: before biases, as `pd_eqx.linear.recording` notes them in any forward; at least those
          of the matrices that give the layer's queries, keys and values.
        """
        names = self.site_names()[layer]
        weights = jax.tree.map(lambda leaf: leaf[layer], self.layers)

        outputs = {
            kind: _with_bias(
                site_outputs[names[kind]].astype(self._arithmetic), weights.biases.get(kind)
            )
            for kind in self.config.qkv.matrices(self.config)
        }
        q, k, _ = self._queries_keys_values(weights, outputs)
        return _probabilities(q, k, 0)

    @property
    def _head(self) -> Head:
        return Head(self.embedding, transposed=True) if self.head is None else Head(self.head)

    @property
    def _arithmetic(self) -> jax.typing.DTypeLike:
        return self.embedding.dtype if self.dtype is None else self.dtype

    def _run(
        self, inputs: Array, linear: LinearMap, keep: Callable[[Array], Any]
    ) -> tuple[Array, Any]:
        def layer(weights: Layers, x: Array, linear: LinearMap) -> tuple[Array, Any]:
            x = self._layer(weights, x, linear)
            return x, keep(x)

        return run_layers(
            layer,
            self.embed(inputs),
            self.layers,
            linear,
            self.site_names(),
            scan=self.scan,
            rematerialise=self.rematerialise,
        )

    def _layer(self, weights: Layers, x: Array, linear: LinearMap) -> Array:
        def apply(kind: str, x: Array) -> Array:
            outputs = linear(kind, x, weights.weights[kind]).astype(self._arithmetic)
            return _with_bias(outputs, weights.biases.get(kind))

        def mlp(x: Array) -> Array:
            return self.config.mlp(apply, self._normalise(weights.norms["mlp"], x))

        after_attention = x + self._attention(weights, apply, x)
        return after_attention + mlp(x if self.config.parallel else after_attention)

    def _attention(self, weights: Layers, apply: Apply, x: Array) -> Array:
        x = self._normalise(weights.norms["attn"], x)
        outputs = {kind: apply(kind, x) for kind in self.config.qkv.matrices(self.config)}
        q, k, v = self._queries_keys_values(weights, outputs)
        read = by_query_blocks(attend, q, k, v, self.queries_at_once)
        return apply("attn.o", read.reshape(*x.shape[:-1], -1))

    def _queries_keys_values(
        self, weights: Layers, outputs: Mapping[str, Array]
    ) -> tuple[Array, Array, Array]:
        q, k, v = self.config.qkv(outputs, self.config)
        if self.config.qk_norm:
            q = self._normalise(weights.norms["q"], q)
            k = self._normalise(weights.norms["k"], k)
        if self.config.rotary is not None:
            q, k = self.config.rotary(q), self.config.rotary(k)
        return q, k, v

    def _normalise(self, weights: NormWeights, x: Array) -> Array:
        normalised = self.config.norm(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
        return _with_bias(normalised * weights.scale, weights.bias).astype(x.dtype)


def init_transformer(
    key: PRNGKeyArray,
    config: TransformerConfig,
    dtype: jax.typing.DTypeLike = jnp.float32,
    deviation: float = 0.02,
) -> Transformer:
    """A model to be trained, with normal weights, zero biases and unit scales.

    **Arguments:**

    - `key`: each matrix folds in its place among all kinds.
    - `deviation`: of the weights; `√(2 · depth)` times less for matrices that write to the residual stream.

    Source: Radford et al. 2019 (GPT-2).
    """

    def normal(index: int, *shape: int, scale: float = 1.0) -> Array:
        return deviation * scale * jax.random.normal(jax.random.fold_in(key, index), shape, dtype)

    def norm(*shape: int) -> NormWeights:
        bias = jnp.zeros(shape, dtype) if config.norm.has_bias else None
        return NormWeights(jnp.ones(shape, dtype), bias)

    smaller = {"attn.o": (2 * config.depth) ** -0.5, "mlp.down": (2 * config.depth) ** -0.5}
    matrices = config.matrices()
    layers = Layers(
        weights={
            kind: normal(index + 3, config.depth, *shape, scale=smaller.get(kind, 1.0))
            for index, (kind, shape) in enumerate(matrices.items())
        },
        biases={
            kind: jnp.zeros((config.depth, shape[1]), dtype)
            for kind, shape in matrices.items()
            if kind in config.biased
        },
        norms={name: norm(config.depth, width) for name, width in config.norms().items()},
    )
    learned = config.learned_positions
    return Transformer(
        embedding=normal(0, config.vocabulary, config.width),
        positions=normal(1, learned, config.width) if learned else None,
        layers=layers,
        norm=norm(config.width),
        head=None if config.tied else normal(2, config.width, config.vocabulary),
        config=config,
    )


def attend(q: Array, k: Array, v: Array, first: Array | int) -> Array:
    """What queries from position `first` on read of the positions that they see, `[*lead, T, heads, D]`."""
    probabilities = _in_groups(_probabilities(q, k, first), k.shape[-2], axis=-3)
    read = jnp.einsum("...hgts,...shd->...thgd", probabilities.astype(v.dtype), v)
    return read.reshape(q.shape)


def _probabilities(q: Array, k: Array, first: Array | int) -> Array:
    """Causal attention probabilities `[*lead, heads, T of q, T of k]`, at least in float32."""
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    grouped = _in_groups(q, k.shape[-2], axis=-2)
    scores = jnp.einsum("...thgd,...shd->...hgts", grouped, k, preferred_element_type=dtype)
    scores = scores.reshape(*scores.shape[:-4], -1, *scores.shape[-2:])
    scores = scores / math.sqrt(q.shape[-1])
    seen = jnp.arange(k.shape[-3]) <= first + jnp.arange(q.shape[-3])[:, None]
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)


def _with_bias(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias.astype(x.dtype)


def _in_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def _in_groups(x: Array, groups: int, axis: int) -> Array:
    """The axis of heads split in `groups`, one for each head of keys and values, and the heads that share it."""
    axis = axis % x.ndim
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])


def _rows(table: Array, ids: Array) -> Array:
    return table.at[ids].get(mode="fill", fill_value=jnp.nan)
