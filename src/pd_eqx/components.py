"""Components: the rank-one matrices `V[:, c] ⊗ U[c, :]` that a site's weight is written as a sum of.

Everything is right-multiplied: `x @ W`, `W [d_in, d_out]`, `V [d_in, C]`, `U [C, d_out]`.
"""

import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pd_eqx.sites import Site
from pd_eqx.stream import SiteInput, Stream

# The underscores bind no axis name: each site has its own sizes.
SiteMatrices = dict[str, Float[Array, "_ _"]]


class Components(eqx.Module):
    """The components of every decomposed site.

    - `V`: input directions `[d_in, C]` by site name.
    - `U`: output directions `[C, d_out]` by site name.
    """

    V: SiteMatrices
    U: SiteMatrices

    @property
    def counts(self) -> dict[str, int]:
        """The number of components `C` of each site."""
        return {site: V.shape[1] for site, V in self.V.items()}


def init_components(
    key: PRNGKeyArray,
    sites: Sequence[Site],
    counts: Mapping[str, int],
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Components:
    """Random components, independent of the target's weights: `V ~ N(0, 1/d_in)`, `U ~ N(0, 1/C)`.

    **Arguments:**

    - `key`: a PRNG key; each site folds in its place among the sorted names, so its draw does not
      depend on the order in which sites were listed.
    - `sites`: the target's sites.
    - `counts`: `C` by site name; other sites are left out.
    - `dtype`: of V and U.

    **Errors:** `ValueError` for a name in `counts` that is not a site, for a `C` below one, or where there is
    nothing to decompose.

    Source: golden numbers `09_ci_fns`, `init_stats`.
    """
    shapes = {site.name: site for site in sites}
    unknown = sorted(set(counts) - set(shapes))
    if unknown:
        raise ValueError(
            f"components asked for {unknown}, but the target's sites are {list(shapes)}"
        )
    if not counts:
        raise ValueError(f"no site to decompose; the target's sites are {list(shapes)}")
    empty = {name: count for name, count in counts.items() if count < 1}
    if empty:
        raise ValueError(f"each decomposed site needs 1 or more components, found {empty}")
    V: dict[str, Array] = {}
    U: dict[str, Array] = {}
    for index, name in enumerate(sorted(counts)):
        site, count = shapes[name], counts[name]
        key_v, key_u = jax.random.split(jax.random.fold_in(key, index))
        V[name] = jax.random.normal(key_v, (site.d_in, count), dtype) / math.sqrt(site.d_in)
        U[name] = jax.random.normal(key_u, (count, site.d_out), dtype) / math.sqrt(count)
    return Components(V=V, U=U)


def component_activations(x: SiteInput, V: Float[Array, "d_in C"], /) -> Float[Array, "*lead C"]:
    """How much of each component an input holds: `x @ V`, or the rows `V[x]` of an integer `x [*lead]`."""
    if isinstance(x, Stream):
        return x @ V
    return V[x] if jnp.issubdtype(x.dtype, jnp.integer) else x @ V


def weight_deltas(components: Components, weights: Mapping[str, Array]) -> SiteMatrices:
    """What the components leave unexplained: `Δ = W − V @ U [d_in, d_out]` for each decomposed site.

    Differentiable in the components. `weights` may hold more sites than are decomposed.
    """
    return {site: weights[site] - V @ components.U[site] for site, V in components.V.items()}
