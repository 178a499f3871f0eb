"""Golden parity of whole training steps of TMS 5-2: losses, importances, gradients, and parameters after the step.

The peer stores tied targets' components once under two names: both names' Adam steps then move the one matrix. Nothing
here is stored twice, so for those variants the test adds up the two steps itself, and what is compared
is each loss, gradient and Adam step on the way.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

from parity.golden import Golden
from parity.models import RecordedSource, component_mlps, context, read_tms
from pd_eqx.adversary import Sources
from pd_eqx.ci.base import CausalImportances
from pd_eqx.components import Components, weight_deltas
from pd_eqx.linear import capture
from pd_eqx.losses import MeanSquaredError, faithfulness
from pd_eqx.masks import AllSites, OneSiteAtATime, Routing, SiteSource
from pd_eqx.objective import Context, ImportanceMinimality, Objective, Reconstruction, Term
from pd_eqx.optimizers import AdamW, Optimizers
from pd_eqx.schedule import constant, decaying
from pd_eqx.state import Decomposition, TrainingItem, TrainState
from pd_eqx.step import make_train_step
from pd_eqx.targets.tms import TMS

GOLDEN = "12_tms_step"
LEFT_OUT = {
    "untied_bf16_autocast/*": "the peer's default precision, for information: autocast is not emulated"
}
TOTAL = 10_000
SITES = ("linear1", "linear2")
STEPS = {"untied": 3, "untied_zero_bias": 2, "tied": 3, "tied_warm200": 1}
EVERY_STEP = [(variant, step) for variant, steps in STEPS.items() for step in range(steps)]
ADAM = AdamW(decaying(1e-3))
OPTIMIZERS = Optimizers(ADAM, ADAM)

Parameters = Mapping[str, Array]


class RecordedBatches(eqx.Module):
    """The recorded batch of each step."""

    inputs: Float[Array, "steps batch features"]

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, "batch features"]:
        return self.inputs[step]


def decomposition(parameters: Parameters) -> Decomposition:
    """From the peer's names: `V/<site>`, `U/<site>`, `ci_fn/<site>/<layer>`."""
    parts: dict[str, dict[str, Array]] = {"V": {}, "U": {}, "ci_fn": {}}
    for name, array in parameters.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = array
    return Decomposition(Components(parts["V"], parts["U"]), component_mlps(parts["ci_fn"]))


def named(product: Decomposition, names: Iterator[str]) -> dict[str, Array]:
    """The reverse of `decomposition`."""
    leaves: dict[str, Array] = {}
    for name in names:
        part, site, *layer = name.split("/")
        if part == "ci_fn":
            of_site = product.ci_fn.sites[site]  # pyright: ignore[reportAttributeAccessIssue]
            _, number, kind = layer[0].split(".")
            dense = of_site.layers[int(number) // 2]
            leaves[name] = dense.weight if kind == "W" else dense.bias
        else:
            leaves[name] = getattr(product.components, part)[site]
    return leaves


def batch(golden: Golden, variant: str, step: int) -> Array:
    return golden["batch_ties" if variant == "untied_zero_bias" else f"batch/{step}"]


def before(golden: Golden, variant: str, step: int) -> Parameters:
    """The parameters that a step starts from, by the peer's account."""
    if step > 0:
        return golden.under(f"{variant}/step{step - 1}/params")
    parameters = golden.under(f"{variant}/init")
    if golden.keys(f"{variant}/after_warmup/*"):
        parameters = {**parameters, **golden.under(f"{variant}/after_warmup")}
    return parameters


# By loss: the sources of one step, or of all of them along a first axis.
Draws = dict[str, Sources]
ROUTINGS: Mapping[str, Routing] = {
    "StochasticReconLoss": AllSites(),
    "StochasticReconLayerwiseLoss": OneSiteAtATime(),
}


def read_draws(golden: Golden, at: str) -> Draws:
    draws: Draws = {}
    for loss in ROUTINGS:
        of_loss = golden.under(f"{at}/draws/{loss}")
        draws[loss] = {s: SiteSource(of_loss[f"src/{s}"], of_loss[f"delta_src/{s}"]) for s in SITES}
    return draws


@dataclasses.dataclass(frozen=True)
class ReplayedReconstruction(Term):
    """A reconstruction term that replays the sources recorded for each step."""

    name: str
    sources: Sources
    coefficient: float = 1.0

    def value(self, context: Context, key: PRNGKeyArray) -> Float[Array, ""]:
        now = jax.tree.map(lambda source: source[context.step], self.sources)
        replayed = RecordedSource(iter([now]))
        term = Reconstruction(self.name, MeanSquaredError(), replayed, ROUTINGS[self.name])
        return term.value(context, key)


def objective(draws: Draws) -> Objective:
    """The peer's objective; the draws have a first axis of steps."""
    return Objective(
        (
            ImportanceMinimality(3e-3, name="ImportanceMinimalityLoss"),
            *(ReplayedReconstruction(loss, sources) for loss, sources in draws.items()),
        )
    )


@jax.jit
def gradients(
    target: TMS, inputs: Array, draws: Draws, parameters: Parameters
) -> tuple[dict[str, Array], CausalImportances, Parameters]:
    """Each term's value and their weighted sum, the importances, and the sum's gradients."""
    of_one_step = jax.tree.map(lambda draw: draw[None], draws)

    def loss(
        parameters: Parameters,
    ) -> tuple[Array, tuple[dict[str, Array], CausalImportances]]:
        product = decomposition(parameters)
        clean, site_inputs, _ = capture(target, inputs)
        importances = product.ci_fn(site_inputs, product.components)
        seen = context(target, product.components, importances.lower, inputs, clean)
        seen = eqx.tree_at(lambda c: c.importances, seen, importances)
        total, values = objective(of_one_step)(seen, jax.random.key(0))
        return total, ({**values, "total": total}, importances)

    (_, (values, importances)), grads = jax.value_and_grad(loss, has_aux=True)(parameters)
    return values, importances, grads


@pytest.mark.parametrize(("variant", "step"), EVERY_STEP)
def test_losses_importances_and_gradients(golden: Golden, variant: str, step: int) -> None:
    at = f"{variant}/step{step}"
    target, inputs = read_tms(golden, f"{variant}/target"), batch(golden, variant, step)
    values, importances, grads = gradients(
        target, inputs, read_draws(golden, at), before(golden, variant, step)
    )
    golden.check(f"{at}/target_out", target(inputs), "A")
    golden.check_under(f"{at}/loss", values, "A")
    golden.check_under(f"{at}/ci_lower", importances.lower, "A")
    golden.check_under(f"{at}/ci_upper", importances.upper, "A")
    golden.check_under(f"{at}/pre_sigmoid", importances.logits, "A")
    golden.check_under(f"{at}/grad", grads, "C")


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_float32(golden: Golden) -> None:
    target, inputs = read_tms(golden, "untied/target"), batch(golden, "untied", 0)
    values, _, grads = gradients(
        target, inputs, read_draws(golden, "untied/step0"), before(golden, "untied", 0)
    )
    golden.check_under("untied_f32/step0/loss", values, "B")
    golden.check_under("untied_f32/step0/grad", grads, "B")


@pytest.mark.parametrize("precision", ["x64"], indirect=True)
@pytest.mark.parametrize("variant", ["untied", "untied_zero_bias"])
def test_the_train_step_from_step_to_step(golden: Golden, variant: str) -> None:
    target, steps = read_tms(golden, f"{variant}/target"), range(STEPS[variant])
    by_step = [read_draws(golden, f"{variant}/step{step}") for step in steps]
    draws = jax.tree.map(lambda *of_steps: jnp.stack(of_steps), *by_step)
    batches = RecordedBatches(jnp.stack([batch(golden, variant, step) for step in steps]))
    train_step = make_train_step(objective(draws), OPTIMIZERS, TOTAL)
    initial = before(golden, variant, 0)
    product = decomposition(initial)
    training = TrainingItem(
        ADAM.init(product.components), ADAM.init(product.ci_fn), {}, jnp.int32(0)
    )
    state = jax.tree.map(jnp.copy, TrainState(product, training))
    for step in steps:
        at = f"{variant}/step{step}"
        state, metrics = train_step(state, target, batches, jax.random.key(0), 1)
        golden.check(f"{at}/lr", metrics["lr/components"], "A")
        golden.check(f"{at}/lr", metrics["lr/ci_fn"], "A")
        golden.check(f"{at}/loss/total", metrics["loss/total"], "A")
        golden.check_under(f"{at}/params", named(state.decomposition, iter(initial)), "C")


def tied(before: Components, after: Components, decay: float = 0.0) -> Components:
    """Both names' steps on the one matrix, one after the other: `linear1`'s, then its twin's in `linear2`.

    `decay` is the factor that each step shrinks the matrix by, less one; the second shrinks what the first left.
    """

    def shared(matrix: Array, first: Array, second: Array) -> Array:
        return (1.0 - decay) * first + second.T - (1.0 - decay) * matrix

    V = shared(before.V["linear1"], after.V["linear1"], after.U["linear2"])
    U = shared(before.U["linear1"], after.U["linear1"], after.V["linear2"])
    return Components({"linear1": V, "linear2": U.T}, {"linear1": U, "linear2": V.T})


@pytest.mark.parametrize("precision", ["x64"], indirect=True)
@pytest.mark.parametrize("variant", ["tied", "tied_warm200"])
def test_adam_steps_of_tied_storage_add_up(golden: Golden, variant: str) -> None:
    product = decomposition(before(golden, variant, 0))
    states = ADAM.init(product.components), ADAM.init(product.ci_fn)
    updated = jax.jit(ADAM.update, static_argnums=4)
    for step in range(STEPS[variant]):
        at = f"{variant}/step{step}"
        grads = decomposition(golden.under(f"{at}/grad"))
        components, of_components, metrics = updated(
            grads.components, states[0], product.components, jnp.int32(step), TOTAL
        )
        ci_fn, of_ci_fn, _ = updated(grads.ci_fn, states[1], product.ci_fn, jnp.int32(step), TOTAL)
        states = of_components, of_ci_fn
        product = Decomposition(tied(product.components, components), ci_fn)
        golden.check(f"{at}/lr", metrics["lr"], "A")
        names = iter(golden.under(f"{variant}/init"))
        golden.check_under(f"{at}/params", named(product, names), "C")


@pytest.mark.parametrize("precision", ["x64"], indirect=True)
def test_warm_up_of_tied_storage(golden: Golden) -> None:
    target = read_tms(golden, "tied_warm200/target")
    components = decomposition(golden.under("tied_warm200/init")).components
    optimizer = AdamW(constant(0.01), weight_decay=0.1)

    def once(index: Array, carry: tuple[Components, object]) -> tuple[Components, object]:
        components, opt_state = carry
        grads = jax.grad(lambda c: faithfulness(weight_deltas(c, target.weights())))(components)
        moved, opt_state, _ = optimizer.update(grads, opt_state, components, index, 200)
        return tied(components, moved, 0.01 * 0.1), opt_state

    components, _ = jax.lax.fori_loop(0, 200, once, (components, optimizer.init(components)))
    golden.check_under("tied_warm200/after_warmup/V", components.V, "D")
    golden.check_under("tied_warm200/after_warmup/U", components.U, "D")
