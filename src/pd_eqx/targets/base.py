"""What a target is: a frozen network that takes its linear map as an argument."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from pd_eqx.linear import LinearMap, frozen
from pd_eqx.sites import Site
from pd_eqx.unembedding import Outputs


class Target(eqx.Module):
    """A frozen network.

    Every leaf is an array; activations, sizes and names are static fields. A target is an argument of the jitted
    step, so its weights are never baked into an executable.
    """

    @abc.abstractmethod
    def sites(self) -> tuple[Site, ...]:
        """The weight matrices that can be decomposed, in the order of the forward pass."""

    @abc.abstractmethod
    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        """The weight `[d_in, d_out]` of each site."""

    @abc.abstractmethod
    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Outputs:
        """The forward pass: calls `linear(site, x, weight)` once for each site and adds biases itself.

        **Returns:** an array, or an `Unembedding` where logits over a large vocabulary are better never whole.
        """
