import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from evals import perfect
from pd_eqx.adversary import ProjectedGradient
from pd_eqx.evals.ablations import (
    CI_MASKED,
    STOCHASTIC,
    UNMASKED,
    Interpolated,
    RandomMasks,
    Rounded,
    Zeroed,
)
from pd_eqx.evals.observation import Observation, decomposed_sites, observe
from pd_eqx.losses import MeanSquaredError
from pd_eqx.masks import ConstantSource, OneSiteAtATime, SiteMask
from pd_eqx.unembedding import logits_of

KEY = jax.random.key(3)
SQUARED = MeanSquaredError()


def whole(mask: SiteMask) -> Array:
    assert mask.component is not None
    return mask.component


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observe(perfect.decomposition(0.8), perfect.target(), perfect.features())


def test_an_observation_knows_the_clean_forward_and_its_positions(seen: Observation) -> None:
    assert seen.lead == (64,)
    assert seen.positions == 64
    assert logits_of(seen.clean).tobytes() == perfect.target()(perfect.features()).tobytes()
    assert decomposed_sites(perfect.decomposition(), perfect.target()) == ["linear1", "linear2"]


def test_ci_masks_are_the_importances_and_leave_the_delta_out(seen: Observation) -> None:
    (masks,) = CI_MASKED.passes(seen, KEY, SQUARED)
    for site, ci in seen.importances.lower.items():
        assert whole(masks[site]).tobytes() == ci.tobytes()
        assert masks[site].delta is None


def test_unmasked_is_the_sum_of_components(seen: Observation) -> None:
    (masks,) = UNMASKED.passes(seen, KEY, SQUARED)
    weight = 0.8 * perfect.pentagon()
    expected = jax.nn.relu(perfect.features() @ weight @ weight.T - 0.1)
    assert jnp.allclose(logits_of(seen.ablated(masks)), expected, atol=1e-6)


def test_rounding_keeps_what_is_above_the_threshold_strictly(seen: Observation) -> None:
    importances = seen.importances.lower["linear1"]
    threshold = float(importances[importances > 0].min())
    (masks,) = Rounded(threshold).passes(seen, KEY, SQUARED)
    component = whole(masks["linear1"])
    assert set(jnp.unique(component).tolist()) == {0.0, 1.0}
    assert bool(jnp.all(component[importances == threshold] == 0.0))


def test_zeroed_leaves_the_biases_alone(seen: Observation) -> None:
    (masks,) = Zeroed().passes(seen, KEY, SQUARED)
    target = perfect.target()
    outputs = logits_of(seen.ablated(masks))
    assert jnp.array_equal(outputs, jnp.broadcast_to(jax.nn.relu(target.bias), outputs.shape))


def test_random_masks_do_not_look_at_importances(seen: Observation) -> None:
    other = observe(perfect.decomposition(0.8), perfect.target(), 0.5 * perfect.features())
    (masks,), (others,) = (RandomMasks().passes(s, KEY, SQUARED) for s in (seen, other))
    for site, mask in masks.items():
        first, second = whole(mask), whole(others[site])
        assert first.tobytes() == second.tobytes()
        assert float(first.min()) >= 0.0
        assert float(first.max()) < 1.0
    # Each site draws its own.
    assert not jnp.array_equal(whole(masks["linear1"]), whole(masks["linear2"]))


def test_one_site_at_a_time_is_a_pass_for_each(seen: Observation) -> None:
    passes = Interpolated(ConstantSource(0.5), OneSiteAtATime()).passes(seen, KEY, SQUARED)
    assert [list(masks) for masks in passes] == [["linear1"], ["linear2"]]


def test_an_adversary_climbs_the_distance_that_is_measured(seen: Observation) -> None:
    def distance(steps: int) -> float:
        adversary = Interpolated(ProjectedGradient(steps, 0.1))
        (masks,) = adversary.passes(seen, KEY, SQUARED)
        return float(SQUARED(seen.ablated(masks), seen.clean))

    start, end = distance(0), distance(20)
    (stochastic,) = STOCHASTIC.passes(seen, KEY, SQUARED)
    assert end > 1.2 * start
    assert end > float(SQUARED(seen.ablated(stochastic), seen.clean))
