"""From named tensors to a target: every tensor is accounted for before the first is read.

A tensor that is missing, left over or of another shape is an error: a bias left in the file, or a layer too many,
means that the configuration is another model's. Each tensor goes from the file to its place on the devices before
the next is touched.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from pd_eqx.targets.transformer import Layers, NormWeights, Transformer, TransformerConfig
from pd_eqx.targets.weights.families import Family
from pd_eqx.targets.weights.source import TensorSource, WeightsError

# The sharding of a leaf, from its name (`layers.attn.q.weight`) and shape; None leaves it to JAX.
Placement = Callable[[str, tuple[int, ...]], jax.sharding.Sharding | None]


def leave_to_jax(name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
    """A `Placement`: every leaf where JAX would put it."""
    del name, shape
    return None


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """One array of the target: its shape, the tensors it is made of, and how they are stored.

    A stacked leaf has one tensor for each layer.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    stacked: bool
    transposed: bool

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape that each tensor should have."""
        shape = self.shape[1:] if self.stacked else self.shape
        return shape[::-1] if self.transposed else shape


def assemble(
    source: TensorSource,
    family: Family,
    config: TransformerConfig,
    dtype: jax.typing.DTypeLike | None = None,
    placement: Placement = leave_to_jax,
) -> Transformer:
    """The target whose tensors lie in `source`.

    **Arguments:**

    - `dtype`: what to store the weights in; None for the file's own.
    - `placement`: the sharding of each leaf.

    **Errors:** `WeightsError` for tensors that are missing, left over, of another shape, or not finite, and for
    layers stored in different dtypes.
    """
    plan = _plan(source, family, config)
    _check(source, family, config, plan)
    leaves = {leaf.name: _read(source, leaf, dtype, placement) for leaf in plan}

    def norm(name: str) -> NormWeights:
        return NormWeights(leaves[f"{name}.scale"], leaves.get(f"{name}.bias"))

    kinds = config.matrices()
    layers = Layers(
        weights={kind: leaves[f"layers.{kind}.weight"] for kind in kinds},
        biases={kind: leaves[f"layers.{kind}.bias"] for kind in kinds if kind in config.biased},
        norms={name: norm(f"layers.norms.{name}") for name in config.norms()},
    )
    return Transformer(
        embedding=leaves["embedding"],
        positions=leaves.get("positions"),
        layers=layers,
        norm=norm("norm"),
        head=leaves.get("head"),
        config=config,
    )


def _plan(source: TensorSource, family: Family, config: TransformerConfig) -> list[_Leaf]:
    bare = not any(name.startswith(family.prefix) for name in source.shapes())
    prefix = "" if bare else family.prefix

    def whole(
        name: str, tensor: str, *shape: int, transposed: bool = False, prefix: str = prefix
    ) -> _Leaf:
        return _Leaf(name, shape, (prefix + tensor,), stacked=False, transposed=transposed)

    def stack(name: str, tensor: str, *shape: int, transposed: bool = False) -> _Leaf:
        tensors = tuple(
            prefix + family.layer.format(index) + tensor for index in range(config.depth)
        )
        return _Leaf(name, (config.depth, *shape), tensors, stacked=True, transposed=transposed)

    plan = [whole("embedding", f"{family.embedding}.weight", config.vocabulary, config.width)]
    if config.learned_positions:
        shape = (config.learned_positions, config.width)
        plan.append(whole("positions", f"{family.positions}.weight", *shape))
    for kind, shape in config.matrices().items():
        module = family.matrices[kind]
        plan.append(
            stack(f"layers.{kind}.weight", f"{module}.weight", *shape, transposed=family.transposed)
        )
        if kind in config.biased:
            plan.append(stack(f"layers.{kind}.bias", f"{module}.bias", shape[1]))
    for name, width in config.norms().items():
        plan.append(stack(f"layers.norms.{name}.scale", f"{family.norms[name]}.weight", width))
        if config.norm.has_bias:
            plan.append(stack(f"layers.norms.{name}.bias", f"{family.norms[name]}.bias", width))
    plan.append(whole("norm.scale", f"{family.norm}.weight", config.width))
    if config.norm.has_bias:
        plan.append(whole("norm.bias", f"{family.norm}.bias", config.width))
    if not config.tied:
        shape = (config.width, config.vocabulary)
        plan.append(whole("head", f"{family.head}.weight", *shape, transposed=True, prefix=""))
    return plan


def _check(
    source: TensorSource, family: Family, config: TransformerConfig, plan: Sequence[_Leaf]
) -> None:
    found = source.shapes()
    expected = {tensor: leaf.stored for leaf in plan for tensor in leaf.tensors}
    if missing := [name for name in expected if name not in found]:
        raise WeightsError(
            f"{source.where}: {len(missing)} of the {len(expected)} tensors that the configuration asks for are "
            f"missing, the first is {missing[0]!r} {list(expected[missing[0]])}"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise WeightsError(
                f"{source.where}: tensor {name!r} has shape {list(found[name])}, expected {list(shape)}"
            )
    tied_head = (f"{family.head}.weight",) if config.tied else ()
    ignored = (*family.buffers, *tied_head)
    if extra := [name for name in found if name not in expected and not name.endswith(ignored)]:
        raise WeightsError(
            f"{source.where}: {len(extra)} tensors that the configuration does not ask for, the first is "
            f"{extra[0]!r} {list(found[extra[0]])}; is the configuration this model's?"
        )


def _read(
    source: TensorSource,
    leaf: _Leaf,
    dtype: jax.typing.DTypeLike | None,
    placement: Placement,
) -> Array:
    sharding = placement(leaf.name, leaf.shape)
    stored = source.read(leaf.tensors[0]).dtype
    array = jnp.zeros(leaf.shape, dtype or stored, device=sharding) if leaf.stacked else None
    for index, name in enumerate(leaf.tensors):
        tensor = source.read(name)
        if tensor.dtype != stored:
            raise WeightsError(
                f"{source.where}: tensor {name!r} is {tensor.dtype}, but {leaf.tensors[0]!r} is {stored}; "
                "layers are stacked, so they must be stored alike"
            )
        array, finite = _store(
            array,
            tensor,
            index,
            dtype=dtype or stored,
            transposed=leaf.transposed,
            sharding=sharding,
        )
        if not finite:
            raise WeightsError(f"{source.where}: tensor {name!r} holds NaN or infinity")
    assert array is not None
    return array


@functools.partial(jax.jit, donate_argnums=0, static_argnames=("dtype", "transposed", "sharding"))
def _store(
    stack: Array | None,
    tensor: Array,
    index: Array,
    *,
    dtype: jax.typing.DTypeLike,
    transposed: bool,
    sharding: jax.sharding.Sharding | None,
) -> tuple[Array, Bool[Array, ""]]:
    """The tensor alone or written to its place in the stack, and whether it is finite."""
    row = (tensor.T if transposed else tensor).astype(dtype)
    whole = row if stack is None else jax.lax.dynamic_update_index_in_dim(stack, row, index, 0)
    if sharding is not None:
        whole = jax.lax.with_sharding_constraint(whole, sharding)
    return whole, jnp.all(jnp.isfinite(tensor))
