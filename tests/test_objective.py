"""The objective and its terms, on a small decomposition."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import toy
from pd_eqx.adversary import (
    AdamAscent,
    PersistentAdversary,
    ProjectedGradient,
    Scope,
    SignAscent,
    Sources,
)
from pd_eqx.losses import Anneal, Frequency, KLDivergence, MeanSquaredError
from pd_eqx.masks import BinomialSource, OneSiteAtATime, StochasticSource, Unmasked
from pd_eqx.objective import (
    AdversarialTerm,
    Context,
    Faithfulness,
    ImportanceMinimality,
    MergedReconstruction,
    Objective,
    PersistentReconstruction,
    Reconstruction,
    RelativeFaithfulness,
    SmoothL0,
    Term,
)
from pd_eqx.schedule import Knot, Schedule, constant
from pd_eqx.sites import UnknownSiteError

KEY = jax.random.key(11)
MSE = MeanSquaredError()
EACH = PersistentAdversary(SignAscent(constant(0.125)), Scope(None))


def values(terms: Sequence[Term], **seen: object) -> dict[str, float]:
    objective = Objective(tuple(terms))
    context = dataclasses.replace(toy.context(objective), **seen)
    return {name: float(value) for name, value in objective(context, KEY)[1].items()}


def test_the_sum_is_weighted_and_the_values_are_not() -> None:
    objective = Objective((Faithfulness(0.5), ImportanceMinimality(0.25)))
    total, found = objective(toy.context(objective), KEY)
    expected = 0.5 * found["faithfulness"] + 0.25 * found["importance_minimality"]
    assert float(total) == pytest.approx(float(expected))
    assert found == {
        name: pytest.approx(value)
        for name, value in values([Faithfulness(3.0), ImportanceMinimality(7.0)]).items()
    }


def test_terms_share_no_name() -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        Objective((Faithfulness(), Faithfulness(2.0)))


def test_a_term_added_at_the_end_does_not_change_what_others_draw() -> None:
    first = Reconstruction("first", MSE)
    alone = values([first])["first"]
    assert values([first, Reconstruction("second", MSE)])["first"] == alone
    assert values([first, Reconstruction("second", MSE)])["second"] != alone


def test_samples_and_passes_are_averaged() -> None:
    once = Reconstruction("r", KLDivergence(), Unmasked())
    assert values([dataclasses.replace(once, samples=3)])["r"] == pytest.approx(values([once])["r"])
    by_site = dataclasses.replace(once, routing=OneSiteAtATime())
    objective = Objective((by_site,))
    context = toy.context(objective)
    sources = Unmasked().draw(KEY, context.importances.lower, lambda _: jnp.zeros(()))
    alone = [context.masked_distance(once.distance, sources, [{s: None}]) for s in context.sites]
    assert values([by_site])["r"] == pytest.approx(float(sum(alone, jnp.zeros(()))) / 2)


def test_relative_faithfulness_is_a_mean_over_sites() -> None:
    objective = Objective((RelativeFaithfulness(),))
    context = toy.context(objective)
    zero = jax.tree.map(jnp.zeros_like, context.components)
    # Without components each delta is the whole weight, whatever its size.
    weights = {**context.weights, "linear1": 10.0 * context.weights["linear1"]}
    assert values([RelativeFaithfulness()], components=zero, weights=weights) == {
        "relative_faithfulness": 1.0
    }


def test_exponents_and_widths_are_annealed_with_the_step() -> None:
    lp = ImportanceMinimality(1.0, Anneal(2.0, 1.0), Anneal(1e-2, 1e-4, 0.0, 0.5), "lp")
    smooth = SmoothL0(1.0, Anneal(1.0, 0.5), "smooth")
    at_half = ImportanceMinimality(1.0, 1.5, 1e-4, "lp"), SmoothL0(1.0, 0.75, "smooth")
    found = values([lp, smooth], step=jnp.int32(toy.TOTAL // 2))
    assert found == pytest.approx(values(at_half), rel=1e-6)
    assert found != pytest.approx(values([lp, smooth]), rel=1e-3)


def test_a_moving_average_is_carried_and_read() -> None:
    term = ImportanceMinimality(1.0, frequency=Frequency(0.5, 50, decay=0.9))
    objective = Objective((term, Faithfulness()))
    context = toy.context(objective)
    assert {name: set(a) for name, a in context.averages.items()} == {
        "importance_minimality": set(toy.COUNTS)
    }
    averages = objective.averaged(context)
    # On one and the same batch the debiased average is the batch's mean, at every step.
    plain = values([ImportanceMinimality(1.0, frequency=Frequency(0.5, 50))])
    for step in range(3):
        found = values([term], averages=context.averages, step=jnp.int32(step))
        assert found == pytest.approx(plain, rel=1e-5)
        context = dataclasses.replace(context, averages=objective.averaged(context))
    higher = {name: {s: 10.0 * m for s, m in a.items()} for name, a in averages.items()}
    assert values([term], averages=higher, step=jnp.int32(1))["importance_minimality"] > max(
        plain.values()
    )


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_term_about_some_sites_leaves_the_others_alone(decay: float | None) -> None:
    frequency = Frequency(2.0, 50, decay)
    one = ImportanceMinimality(1.0, name="one", frequency=frequency, sites=("linear1",))
    other = ImportanceMinimality(1.0, name="other", frequency=frequency, sites=("*2",))
    both = ImportanceMinimality(1.0, name="both", frequency=frequency)
    objective = Objective((one, other, both))
    context = toy.context(objective)
    if decay is not None:
        sites = {name: set(average) for name, average in context.averages.items()}
        assert sites == {"one": {"linear1"}, "other": {"linear2"}, "both": set(toy.COUNTS)}
        carried = objective.averaged(context)
        assert jax.tree.structure(carried) == jax.tree.structure(context.averages)
    found = values([one, other, both])
    assert found["one"] != pytest.approx(found["other"], rel=1e-3)
    assert found["one"] + found["other"] == pytest.approx(found["both"], rel=1e-6)


def test_a_term_about_a_site_that_is_not_decomposed_is_refused() -> None:
    term = ImportanceMinimality(1.0, sites=("linear1", "linear3"))
    with pytest.raises(UnknownSiteError, match=r"'linear3'.*nearest site is 'linear[12]'"):
        values([term])


def test_importances_see_noise_as_soon_as_one_source_is_binomial() -> None:
    assert not Objective((Reconstruction("r", MSE),)).importance_noise
    terms = Reconstruction("r", MSE), Reconstruction("b", MSE, BinomialSource())
    assert Objective(terms).importance_noise


def test_no_gradient_passes_through_a_fresh_ascent() -> None:
    """With the last sources held fixed, the gradient is the same: components do not learn to mislead."""
    fresh = ProjectedGradient(4, 0.2)
    objective = Objective((Reconstruction("r", MSE, fresh),))
    context = toy.context(objective)

    def value(components: object, source: object) -> Array:
        moved = dataclasses.replace(context, components=components)
        term = Reconstruction("r", MSE, source)  # pyright: ignore[reportArgumentType]
        return Objective((term,))(moved, KEY)[0]

    ends: list[Sources] = []

    @dataclasses.dataclass(frozen=True)
    class Recording(StochasticSource):
        def draw(self, key: PRNGKeyArray, importances: object, loss: object) -> Sources:
            ends.append(fresh.draw(key, importances, loss))  # pyright: ignore[reportArgumentType]
            return ends[-1]

    @dataclasses.dataclass(frozen=True)
    class Replayed(StochasticSource):
        def draw(self, key: PRNGKeyArray, importances: object, loss: object) -> Sources:
            return ends[0]

    value(context.components, Recording())
    climbing = jax.grad(value)(context.components, fresh)
    replayed = jax.grad(value)(context.components, Replayed())
    for one, other in zip(jax.tree.leaves(climbing), jax.tree.leaves(replayed), strict=True):
        assert jnp.allclose(one, other, rtol=1e-5, atol=1e-7)


def adversarial(objective: Objective, **seen: object) -> tuple[Sources, Sources]:
    """The only adversary's gradients of the weighted sum, and those of its own value."""
    context = dataclasses.replace(toy.context(objective), **seen)
    weighted = jax.grad(
        lambda sources: objective(dataclasses.replace(context, sources=sources), KEY)[0]
    )(context.sources)
    (own,) = objective.unweighted(weighted).values()
    return weighted["pgd"], own


def test_an_adversary_climbs_the_value_whatever_the_coefficient() -> None:
    def gradients(coefficient: float) -> tuple[Sources, Sources]:
        term = PersistentReconstruction("pgd", MSE, EACH, coefficient=coefficient)
        return adversarial(Objective((Faithfulness(), term)))

    small, large = gradients(0.25), gradients(4.0)
    assert toy.bits(small[0]) != toy.bits(large[0])
    assert toy.bits(small[1]) == toy.bits(large[1])


def test_an_adversary_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="'pgd' has the coefficient 0"):
        Objective((PersistentReconstruction("pgd", MSE, EACH, coefficient=0.0),))


def test_a_state_that_carries_too_little_or_too_much_is_refused() -> None:
    term = PersistentReconstruction("pgd", MSE, EACH)
    with pytest.raises(ValueError, match=r"adversaries holds \[\].*need \['pgd'\].*init_state"):
        Objective((term,)).check_carried({}, {})
    with pytest.raises(ValueError, match=r"averages holds \['old'\].*need \[\]"):
        Objective((Faithfulness(),)).check_carried({}, {"old": {}})


def merged(probability: Schedule) -> MergedReconstruction:
    return MergedReconstruction("pgd", MSE, EACH, probability)


def reached(own: Sources) -> set[int]:
    """The batch elements where the adversary's sources have a gradient."""
    touched = [jnp.any(jnp.asarray(g.component) != 0.0, axis=-1) for g in own.values()]
    return set(jnp.flatnonzero(jnp.any(jnp.stack(touched), axis=0)).tolist())


def everywhere() -> set[int]:
    """Elements where an adversary that meets all of them has a gradient; one of zeros may have none."""
    return reached(adversarial(Objective((PersistentReconstruction("pgd", MSE, EACH),)))[1])


def test_a_merged_term_sends_each_element_to_one_of_the_two() -> None:
    persistent = values([PersistentReconstruction("pgd", MSE, EACH)])
    assert values([merged(constant(1.0))]) == persistent
    always, never, sometimes = (
        reached(adversarial(Objective((merged(constant(p)),)))[1]) for p in (1.0, 0.0, 0.7)
    )
    assert always == everywhere()
    assert never == set()
    assert set() < sometimes < always


def test_the_probability_of_a_merged_term_is_scheduled() -> None:
    objective = Objective((merged(Schedule((Knot(0.0, 0.0), Knot(1.0, 1.0)))),))
    assert reached(adversarial(objective)[1]) == set()
    assert reached(adversarial(objective, step=jnp.int32(toy.TOTAL - 1))[1]) == everywhere()


@dataclasses.dataclass(frozen=True)
class Drawing(AdversarialTerm):
    """Its gradient is one uniform draw of its key."""

    name: str
    adversary: PersistentAdversary
    coefficient: float = 1.0

    def evaluate(self, context: Context, raw: Sources, key: PRNGKeyArray) -> Float[Array, ""]:
        component = raw["linear1"].component
        assert component is not None
        return jax.random.uniform(key) * jnp.sum(component)


def test_every_evaluation_draws_anew_warm_ups_included() -> None:
    adversary = PersistentAdversary(AdamAscent(constant(1e-3), b1=0.0, b2=0.0), warmups=1)
    term = Drawing("drawing", adversary)
    objective = Objective((term,))
    context = toy.context(objective)
    state = {"drawing": adversary.init(KEY, context.importances.lower)}
    moment = objective.warmed_up(context, state, KEY)["drawing"].opt_state.mu["linear1"].component
    (warming,) = set(jnp.ravel(moment).tolist())
    main = jax.grad(lambda raw: term.value(dataclasses.replace(context, sources=raw), KEY))(
        context.sources
    )["drawing"]["linear1"].component
    assert main is not None
    assert warming not in jnp.ravel(main).tolist()
