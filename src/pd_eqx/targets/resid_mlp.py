"""Residual MLPs that compute more features than they have neurons, and how they are trained.

The network reads sparse features through a fixed random embedding, adds what each MLP computes to a residual
stream, and reads the features out again. It is trained to return `act(c_i x_i) + x_i`: the second summand comes for
free through the residual stream, so all that the neurons do is the nonlinear part, and with fewer neurons than
features each must serve several. A target that skipped some features would make a decomposition look tidier than
it can be, so each feature's own response is checked.

Source: Braun et al. 2025 (arXiv 2501.14926); Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers
`10_targets_data`, `resid_*` and `labels`.
"""

import dataclasses
import itertools
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.data.sparse_features import SparseFeatures
from pd_eqx.linear import LinearMap, frozen, read, write
from pd_eqx.optimizers import AdamW, Optimizer
from pd_eqx.schedule import decaying
from pd_eqx.sites import Site
from pd_eqx.stream import Stream
from pd_eqx.targets.base import Target
from pd_eqx.targets.training import Training, check_counts

Activation = Literal["relu", "gelu"]
Label = Literal["act_plus_resid", "abs"]


class ResidMLP(Target):
    """`r_0 = x @ W_E`, `r_{l+1} = r_l + act(r_l @ W_in + b_in) @ W_out + b_out`, output `r_L @ W_U`.

    The residual stream is not formed where its rank, which is that of features and neurons, makes that the dearer way;
    see `pd_eqx.stream`.

    - `embedding` `[n_features, d_embed]`, `unembedding` `[d_embed, n_features]`: not decomposed.
    - `mlp_in` `[d_embed, d_mlp]`, `mlp_out` `[d_mlp, d_embed]`: one a layer.
    - `in_bias` `[d_mlp]`, `out_bias` `[d_embed]`: one a layer, or none at all.
    - `activation`: `relu`, or `gelu` in its exact (erf) form.
    """

    embedding: Float[Array, "n_features d_embed"]
    unembedding: Float[Array, "d_embed n_features"]
    mlp_in: tuple[Float[Array, "d_embed _"], ...]
    mlp_out: tuple[Float[Array, "_ d_embed"], ...]
    in_bias: tuple[Float[Array, " _"], ...] = ()
    out_bias: tuple[Float[Array, " d_embed"], ...] = ()
    activation: Activation = eqx.field(static=True, default="relu")

    def __check_init__(self) -> None:
        layers = len(self.mlp_in)
        if len(self.mlp_out) != layers or not {len(self.in_bias), len(self.out_bias)} <= {
            0,
            layers,
        }:
            raise ValueError(
                f"a ResidMLP with {layers} matrices mlp_in needs as many mlp_out (found "
                f"{len(self.mlp_out)}), and as many in_bias ({len(self.in_bias)}) and out_bias "
                f"({len(self.out_bias)}), or none of them"
            )

    def sites(self) -> tuple[Site, ...]:
        """See `Target.sites`: `layers.0.mlp_in`, `layers.0.mlp_out`, `layers.1.mlp_in` …"""
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """See `Target.weights`."""
        weights: dict[str, Array] = {}
        for layer, (mlp_in, mlp_out) in enumerate(zip(self.mlp_in, self.mlp_out, strict=True)):
            weights[f"layers.{layer}.mlp_in"] = mlp_in
            weights[f"layers.{layer}.mlp_out"] = mlp_out
        return weights

    def stream(self, inputs: Array, linear: LinearMap = frozen) -> Stream:
        """The residual stream `[*lead, d_embed]` after the last layer."""
        stream = Stream(((inputs, self.embedding),))
        layers = itertools.zip_longest(self.mlp_in, self.mlp_out, self.in_bias, self.out_bias)
        for layer, (mlp_in, mlp_out, in_bias, out_bias) in enumerate(layers):
            hidden = read(linear, f"layers.{layer}.mlp_in", stream, mlp_in)
            hidden = activate(self.activation, hidden if in_bias is None else hidden + in_bias)
            stream = stream + write(linear, f"layers.{layer}.mlp_out", hidden, mlp_out)
            stream = stream if out_bias is None else stream + out_bias
        return stream

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Float[Array, "..."]:
        """See `Target.__call__`; inputs and outputs are `[*lead, n_features]`."""
        return self.stream(inputs, linear) @ self.unembedding


def activate(activation: Activation, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """ReLU or the exact (erf) GELU."""
    return jax.nn.relu(x) if activation == "relu" else jax.nn.gelu(x, approximate=False)


def labels(
    x: Float[Array, "*lead n_features"],
    coefficients: Float[Array, " n_features"],
    label: Label,
    activation: Activation,
) -> Float[Array, "*lead n_features"]:
    """What the network is to return: `act(c · x) + x`, or `|c · x|`.

    Source: golden numbers `10_targets_data`, `labels`.
    """
    scaled = coefficients * x
    return jnp.abs(scaled) if label == "abs" else activate(activation, scaled) + x


@dataclasses.dataclass(frozen=True)
class ResidMLPTraining(Training[ResidMLP]):
    """How a residual MLP is trained.

    - `n_features`, `d_embed`, `n_neurons`, `n_layers`: its shape; the neurons are those of all layers together.
    - `activation`, `in_bias`, `out_bias`: see `ResidMLP`.
    - `label`: what it is to return; `coefficient_low`, `coefficient_high`: the range of its uniform coefficients,
      which are all ones by default.
    - `probability`: of each feature to be non-zero, and then uniform in [-1, 1).
    - `batch_size`, `steps`, `learning_rate`: of AdamW, cosine to 0; without weight decay.
    - `max_loss`: how much of the loss of a network without any neuron a good target may be left with.
    - `min_response`: how much of its own nonlinear part each feature must show.
    - `attempts`, `updates_per_dispatch`: see `Training`.

    The embedding is fixed: random directions of norm one, which are also the directions of the readout.

    **Errors:** `ValueError` for settings that cannot be trained.
    """

    n_features: int
    d_embed: int
    n_neurons: int
    n_layers: int = 1
    activation: Activation = "relu"
    in_bias: bool = False
    out_bias: bool = False
    label: Label = "act_plus_resid"
    coefficient_low: float = 1.0
    coefficient_high: float = 1.0
    probability: float = 0.01
    batch_size: int = 2048
    steps: int = 1000
    learning_rate: float = 3e-3
    max_loss: float = 0.45
    min_response: float = 0.25
    attempts: int = 3
    updates_per_dispatch: int = 25

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        check_counts(self, "n_features", "d_embed", "n_neurons", "n_layers", "steps")
        check_counts(self, "attempts", "updates_per_dispatch")
        if self.n_neurons % self.n_layers:
            raise ValueError(
                f"n_neurons is {self.n_neurons}, which {self.n_layers} layers cannot share evenly; "
                f"try {self.n_neurons - self.n_neurons % self.n_layers}"
            )
        if self.coefficient_high < self.coefficient_low:
            raise ValueError(
                f"coefficient_low is {self.coefficient_low} and coefficient_high is "
                f"{self.coefficient_high}; the first must not be larger"
            )

    @property
    def name(self) -> str:
        """See `Training.name`."""
        return (
            f"ResidMLP of {self.n_features} features, {self.n_neurons} neurons, "
            f"{self.n_layers} layer{'s' if self.n_layers > 1 else ''}"
        )

    @property
    def advice(self) -> str:
        """See `Training.advice`."""
        return (
            "Train longer (steps), give it more neurons (n_neurons) or a wider embedding (d_embed), or accept "
            "less (max_loss, min_response)"
        )

    @property
    def batches(self) -> SparseFeatures:
        """What it is trained on, and what it is decomposed on."""
        return SparseFeatures(self.batch_size, self.n_features, self.probability, -1.0, 1.0)

    def optimizer(self) -> Optimizer:
        """See `Training.optimizer`."""
        return AdamW(decaying(self.learning_rate))

    def init(self, key: PRNGKeyArray) -> tuple["_Trained", "_Fixed"]:
        """See `Training.init`."""
        key_embedding, key_coefficients, *key_layers = jax.random.split(key, 2 + self.n_layers)
        directions = jax.random.normal(key_embedding, (self.n_features, self.d_embed))
        width = self.n_neurons // self.n_layers
        mlp_in: list[Array] = []
        mlp_out: list[Array] = []
        for key_layer in key_layers:
            key_in, key_out = jax.random.split(key_layer)
            shape = (self.d_embed, width)
            mlp_in.append(jax.random.normal(key_in, shape) / math.sqrt(self.d_embed))
            mlp_out.append(jax.random.normal(key_out, shape[::-1]) / math.sqrt(width))
        layers = self.n_layers
        trained = _Trained(
            mlp_in=tuple(mlp_in),
            mlp_out=tuple(mlp_out),
            in_bias=tuple(jnp.zeros(width) for _ in range(layers if self.in_bias else 0)),
            out_bias=tuple(jnp.zeros(self.d_embed) for _ in range(layers if self.out_bias else 0)),
        )
        fixed = _Fixed(
            embedding=directions / jnp.linalg.norm(directions, axis=1, keepdims=True),
            coefficients=jax.random.uniform(
                key_coefficients,
                (self.n_features,),
                minval=self.coefficient_low,
                maxval=self.coefficient_high,
            ),
        )
        return trained, fixed

    def target(self, trained: "_Trained", fixed: "_Fixed") -> ResidMLP:
        """See `Training.target`."""
        return ResidMLP(
            embedding=fixed.embedding,
            unembedding=fixed.embedding.T,
            mlp_in=trained.mlp_in,
            mlp_out=trained.mlp_out,
            in_bias=trained.in_bias,
            out_bias=trained.out_bias,
            activation=self.activation,
        )

    def loss(
        self, trained: "_Trained", fixed: "_Fixed", key: PRNGKeyArray, step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """See `Training.loss`: the mean squared error over rows and features."""
        inputs = self.batches(key, step)
        return self._squared_error(self.target(trained, fixed)(inputs), inputs, fixed)

    def problems(self, target: ResidMLP, fixed: "_Fixed", key: PRNGKeyArray) -> list[str]:
        """See `Training.problems`: the loss, and each feature's response, fed by itself."""
        inputs = self.batches(key, jnp.int32(0))
        loss = float(self._squared_error(target(inputs), inputs, fixed))
        silent = inputs @ fixed.embedding @ fixed.embedding.T
        without = float(self._squared_error(silent, inputs, fixed))
        if not math.isfinite(loss):
            return ["its loss is not finite, so training diverged"]
        problems: list[str] = []
        if loss > self.max_loss * without:
            problems.append(
                f"its loss is {loss:.3g}, which is {loss / without:.2f} of the {without:.3g} that it has "
                f"without neurons, expected at most {self.max_loss:g} of it"
            )
        responses = np.asarray(self.responses(target, fixed.coefficients))
        weak = np.flatnonzero(responses < self.min_response)
        if weak.size:
            found = ", ".join(f"{i} ({responses[i]:.2f})" for i in weak[:10])
            more = f" and {weak.size - 10} more" if weak.size > 10 else ""
            problems.append(
                f"features hardly computed: {found}{more}; expected at least {self.min_response:g} of the "
                "label's nonlinear part from each"
            )
        return problems

    def responses(
        self, target: ResidMLP, coefficients: Float[Array, " n_features"]
    ) -> Float[Array, " n_features"]:
        """How much of its own nonlinear part the network returns for each feature, 1 being all.

        Fed one feature at a time, at 1 and at −1: whatever is linear cancels in the sum of the two outputs, which
        is compared with the sum of the two labels.
        """
        one_hot = jnp.eye(self.n_features)
        even = jnp.diagonal(target(one_hot) + target(-one_hot))
        wanted = labels(one_hot, coefficients, self.label, self.activation)
        wanted = wanted + labels(-one_hot, coefficients, self.label, self.activation)
        return even / jnp.diagonal(wanted)

    def _squared_error(self, outputs: Array, inputs: Array, fixed: "_Fixed") -> Float[Array, ""]:
        wanted = labels(inputs, fixed.coefficients, self.label, self.activation)
        return jnp.mean(jnp.square(outputs - wanted))


class _Trained(eqx.Module):
    mlp_in: tuple[Float[Array, "d_embed n_neurons"], ...]
    mlp_out: tuple[Float[Array, "n_neurons d_embed"], ...]
    in_bias: tuple[Float[Array, " n_neurons"], ...]
    out_bias: tuple[Float[Array, " d_embed"], ...]


class _Fixed(eqx.Module):
    embedding: Float[Array, "n_features d_embed"]
    coefficients: Float[Array, " n_features"]
