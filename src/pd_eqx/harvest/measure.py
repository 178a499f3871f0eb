"""What one batch says about every component: the only part of a harvest that runs on a device."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pd_eqx.components import component_activations
from pd_eqx.evals.observation import observe
from pd_eqx.harvest.settings import PROBABILITY_PARTS
from pd_eqx.state import Decomposition
from pd_eqx.step import Target
from pd_eqx.unembedding import logits_of


class Measured(NamedTuple):
    """Of some rows of a batch, all sites side by side in the order that was asked for.

    - `importances`: of each component at each position.
    - `activations`: `(x @ V[:, c]) · ‖U[c]‖`, the signed length of what the component would write. V and U have no
      scale of their own, only their product has.
    - `importance_sum`, `at_least`: over the positions: the sum, and how many are at or above each bin's lower edge.
    - `predicted`, `probability`: the likeliest next tokens, and their probabilities in parts of `PROBABILITY_PARTS`;
      None where the target does not answer with a distribution over tokens.
    """

    importances: Float[Array, "*lead C"]
    activations: Float[Array, "*lead C"]
    importance_sum: Float[Array, " C"]
    at_least: Int[Array, "bins C"]
    predicted: Int[Array, "*lead k"] | None
    probability: Int[Array, "*lead k"] | None


@partial(jax.jit, static_argnames=("sites", "bins", "predictions"))
def measure(
    decomposition: Decomposition,
    target: Target,
    inputs: Array,
    *,
    sites: tuple[str, ...],
    bins: int,
    predictions: int,
) -> Measured:
    """Measures some rows of a batch.

    **Errors:** `ValueError` for sites that see different positions.
    """
    seen = observe(decomposition, target, inputs)
    leads = {seen.importances.lower[site].shape[:-1] for site in sites}
    if len(leads) > 1:
        raise ValueError(
            f"the sites see different positions, {sorted(leads)}; harvest a run whose sites see the same ones"
        )
    (lead,) = leads
    V, U = decomposition.components.V, decomposition.components.U
    importances = jnp.concatenate([seen.importances.lower[site] for site in sites], axis=-1)
    activations = jnp.concatenate(
        [
            component_activations(seen.site_inputs[site], V[site])
            * jnp.linalg.norm(U[site], axis=-1)
            for site in sites
        ],
        axis=-1,
    )
    flat = importances.reshape(-1, importances.shape[-1])

    def at_least(edge: Array) -> Array:
        return jnp.sum((flat >= edge).astype(jnp.int32), axis=0)

    predicted = probability = None
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        logits = logits_of(seen.clean)
        if (
            logits.shape[:-1] != lead
        ):  # one answer for a whole sequence counts at each of its positions
            logits = jnp.broadcast_to(logits[..., None, :], (*lead, logits.shape[-1]))
        p, predicted = jax.lax.top_k(jax.nn.softmax(logits), min(predictions, logits.shape[-1]))
        probability = jnp.round(p * PROBABILITY_PARTS).astype(jnp.int32)
    return Measured(
        importances,
        activations,
        jnp.sum(flat, axis=0),
        jax.lax.map(at_least, jnp.arange(bins, dtype=flat.dtype) / bins),
        predicted,
        probability,
    )
