"""Golden parity of masks and routes: both kinds of sources, the delta channel, the three routings.

The arrays of draws have a leading axis of mask samples, of length 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parity.golden import Golden, golden_keys
from pd_eqx.masks import (
    AllSites,
    OneSiteAtATime,
    Routes,
    SiteSource,
    UniformSubset,
    interpolate,
    uniform_subset,
)

GOLDEN = "03_masks_routing"
SITES = ("a", "b", "c")
CASES = sorted({key.split("/draws/")[0] for key in golden_keys(GOLDEN, "B*/draws/*")})


def first_sample(golden: Golden, prefix: str) -> dict[str, np.ndarray]:
    """The only mask sample of the recorded draws under a prefix, by site."""
    dtype = np.float64 if golden.precision == "x64" else np.float32
    return {site: golden.numpy(f"{prefix}/{site}")[0].astype(dtype) for site in SITES}


def routes_of(golden: Golden, case: str) -> Routes:
    """The case's routes, from its recorded draws."""
    router = case.rpartition("/")[2]
    if router == "all":
        (routes,) = AllSites().passes(jax.random.key(0), SITES, ())
        return routes
    if router == "uniform_k":
        k, noise = (golden.numpy(f"{case}/draws/{name}")[0] for name in ("route_k", "route_noise"))
        return uniform_subset(jnp.asarray(k), jnp.asarray(noise), SITES)
    draws = first_sample(golden, f"{case}/draws/route_u")
    return {site: jnp.asarray(draws[site] < 0.35) for site in SITES}


@pytest.mark.parametrize("case", CASES)
def test_masks_and_routes(golden: Golden, case: str) -> None:
    lead, sampling, channel, _ = case.split("/")
    draws = first_sample(golden, f"{case}/draws/src")
    if sampling == "binomial":
        assert all(set(draw.ravel().tolist()) <= {0.0, 1.0} for draw in draws.values())
    has_delta = channel == "delta"
    deltas = first_sample(golden, f"{case}/draws/delta_src") if has_delta else {}
    sources = {
        site: SiteSource(jnp.asarray(draws[site]), jnp.asarray(deltas[site]) if has_delta else None)
        for site in SITES
    }
    masks = jax.jit(interpolate)(golden.under(f"{lead}/ci"), sources, routes_of(golden, case))
    assert tuple(masks) == SITES
    for site, mask in masks.items():
        golden.check(f"{case}/mask/{site}", mask.component, "A")
        if has_delta:
            golden.check(f"{case}/dmask/{site}", mask.delta, "A")
        else:
            assert mask.delta is None
        if mask.route is None:
            assert case.endswith("/all")
        else:
            golden.check(f"{case}/draws/route/{site}", np.asarray(mask.route)[None], "A")


def test_how_often_a_uniform_subset_routes(golden: Golden) -> None:
    sites = ("a", "b", "c", "d")
    (routes,) = UniformSubset().passes(jax.random.key(3), sites, (20000,))
    routed = jnp.stack([jnp.asarray(routes[site]) for site in sites]).astype(jnp.result_type(float))
    golden.check("stats/uniform_k_marginal", jnp.mean(routed, 1), "S")
    counts = jnp.bincount(jnp.sum(routed, 0).astype(int), length=5)
    shares = counts / jnp.sum(counts).astype(jnp.result_type(float))
    golden.check("stats/uniform_k_count_hist", shares, "S")


def test_one_site_at_a_time_is_the_peers_layer_router(golden: Golden) -> None:
    passes = OneSiteAtATime().passes(jax.random.key(0), SITES, (2, 3))
    (of_b,) = [routes for routes in passes if "b" in routes]
    assert of_b["b"] is None
    for site in SITES:
        golden.check(f"layer_router_b/{site}", jnp.full((2, 3), site in of_b), "A")
