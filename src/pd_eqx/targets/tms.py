"""Toy models of superposition: sparse features squeezed through a narrow hidden layer.

Source: Elhage et al. 2022; Bushnaq et al. 2025 (arXiv 2506.20790); golden numbers `10_targets_data`.
"""

import jax
from jaxtyping import Array, Float

from pd_eqx.linear import LinearMap, frozen
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target


class TMS(Target):
    """`relu(x @ W1 @ H… @ W2 + b)`, with the features in and out.

    - `linear1`: `[n_features, n_hidden]`; `hidden`: square matrices between; `linear2`: `[n_hidden, n_features]`.
    - `bias`: `[n_features]`.
    """

    linear1: Float[Array, "n_features n_hidden"]
    hidden: tuple[Float[Array, "n_hidden n_hidden"], ...]
    linear2: Float[Array, "n_hidden n_features"]
    bias: Float[Array, " n_features"]

    def sites(self) -> tuple[Site, ...]:
        """See `Target.sites`: `linear1`, `hidden_layers.0` …, `linear2`."""
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """See `Target.weights`."""
        hidden = {f"hidden_layers.{i}": weight for i, weight in enumerate(self.hidden)}
        return {"linear1": self.linear1, **hidden, "linear2": self.linear2}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Float[Array, "..."]:
        """See `Target.__call__`; inputs and outputs are `[*lead, n_features]`."""
        x = inputs
        for site, weight in self.weights().items():
            x = linear(site, x, weight)
        return jax.nn.relu(x + self.bias)
