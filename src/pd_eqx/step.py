"""The train step: donates its state, takes the target as an argument, and runs any number of updates.

One executable serves every number of updates a dispatch, because the trip count is an argument. N updates
in one call therefore equal N calls bit for bit, which two executables would not promise. A step that
closed over the target would bake its weights into the executable; a step that kept a PRNG key in the state
would tie the result to where it was resumed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pd_eqx.adversary import AdversaryState, Sources
from pd_eqx.ci.base import CIFunction
from pd_eqx.components import Components, init_components, weight_deltas
from pd_eqx.linear import capture
from pd_eqx.losses import faithfulness
from pd_eqx.objective import Average, Context, Objective
from pd_eqx.optimizers import Optimizer, Optimizers, global_norm
from pd_eqx.precision import as_dtype
from pd_eqx.sharding import Layout
from pd_eqx.sites import Site
from pd_eqx.state import Decomposition, TrainingItem, TrainState
from pd_eqx.stream import SiteInput
from pd_eqx.unembedding import Outputs

Metrics = dict[str, Float[Array, ""]]


@runtime_checkable
class Target(Protocol):
    """A frozen network, as a pytree of arrays and static fields; see `pd_eqx.targets.base.Target`."""

    def sites(self) -> tuple[Site, ...]:
        """The weight matrices that can be decomposed."""
        ...

    def weights(self) -> dict[str, Array]:
        """The weight of each site."""
        ...

    def __call__(self, inputs: Array, linear: Any = ..., /) -> Outputs:
        """The forward pass, with `linear` for each site."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """Batches as a pure function of key and step; a pytree, passed to the step as an argument."""

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""], /) -> Array:
        """The batch of one step."""
        ...


@runtime_checkable
class TrainStep(Protocol):
    """`(state, target, batches, key, n_updates) → (state, metrics of the last update)`; donates `state`.

    Stops early at the first update whose loss or gradient is not finite, without making it: the state that comes
    back is the last good one, and its `training.step` falls short.
    """

    def __call__(
        self, state: TrainState, target: Any, batches: Any, key: PRNGKeyArray, n_updates: int = 1, /
    ) -> tuple[TrainState, Metrics]:
        """Makes `n_updates` updates."""
        ...

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """The step lowered for arguments like these, to be compiled ahead of time."""
        ...


def init_state(
    key: PRNGKeyArray,
    target: Target,
    counts: Mapping[str, int],
    init_ci_fn: Callable[[PRNGKeyArray, Components], CIFunction],
    optimizers: Optimizers,
    *,
    objective: Objective | None = None,
    batches: BatchSource | None = None,
) -> TrainState:
    """A fresh state at step 0.

    **Arguments:**

    - `key`: of the initial parameters and sources.
    - `counts`: number of components by site, as `select_sites` gives them.
    - `init_ci_fn`: makes the causal-importance function for given components.
    - `objective`, `batches`: for what terms carry from step to step (persistent adversaries, moving averages). Of
      the batches only shapes are read, and nothing is computed. Without them the state carries nothing of the kind.

    Run it under `jax.jit` (or `eqx.filter_eval_shape`, for the abstract state): eager scalars would sit on one
    device beside sharded leaves.

    **Errors:** `ValueError` where the batch is no multiple of an adversary's sources, or where only one of
    `objective` and `batches` is given.
    """
    if (objective is None) != (batches is None):
        raise ValueError("give both `objective` and `batches`, or neither: terms' states need both")
    key_components, key_ci = jax.random.split(key)
    components = init_components(key_components, target.sites(), counts)
    ci_fn = init_ci_fn(key_ci, components)
    adversaries: dict[str, AdversaryState] = {}
    averages: dict[str, Average] = {}
    if objective is not None and batches is not None:
        shapes = jax.eval_shape(_first_importances, key, target, batches, ci_fn, components)
        adversaries = objective.init_adversaries(jax.random.fold_in(key, 2), shapes)
        averages = objective.init_averages(shapes)
    training = TrainingItem(
        components_opt_state=optimizers.components.init(components),
        ci_fn_opt_state=optimizers.ci_fn.init(ci_fn),
        adversaries=adversaries,
        step=jnp.zeros((), jnp.int32),
        averages=averages,
    )
    return TrainState(Decomposition(components, ci_fn), training)


def _first_importances(
    key: PRNGKeyArray,
    target: Target,
    batches: BatchSource,
    ci_fn: CIFunction,
    components: Components,
) -> dict[str, Array]:
    _, site_inputs, _ = capture(target, batches(key, jnp.int32(0)), components.V)
    return ci_fn(site_inputs, components).lower


def make_train_step(
    objective: Objective,
    optimizers: Optimizers,
    total_steps: int,
    *,
    compute_dtype: jax.typing.DTypeLike | None = None,
    layout: Layout | None = None,
    out_shardings: Any = None,
) -> TrainStep:
    """The jitted step of a run of `total_steps` updates.

    **Arguments:**

    - `compute_dtype`: of the forward passes; see `pd_eqx.precision`. None computes in the dtypes of the target and
      of its batches. Parameters, moments, importances, losses and faithfulness keep theirs.
    - `layout`: where the batch, what is computed of it, and its importances lie; None leaves it to XLA.
    - `out_shardings`: as for `jax.jit`, of the new state and the metrics. On a mesh they must be the state's own, or
      the next call would meet a state that it was not compiled for.

    **Returns:** a function `(state, target, batches, key, n_updates)` that donates `state` and returns the new
    state and the last update's metrics: `loss/total`, `loss/<term>`, `grad_norm/<group>`, `lr/<group>`, and
    `grad_norm/components/<site>`; for each persistent adversary also `grad_norm/<term>`, of its sources.
    `key` is the run's: update `s` draws from `fold_in(key, s)` alone.

    An update whose metrics are not all finite is not made: the state stays as the last good update left it,
    the metrics are the bad update's, and no further one is tried. `non_finite` reads them.
    """

    def update(
        state: TrainState, target: Target, batches: BatchSource, key: PRNGKeyArray
    ) -> tuple[TrainState, Metrics]:
        decomposition, training = state.decomposition, state.training
        objective.check_carried(training.adversaries, training.averages)
        step = training.step
        key_update = jax.random.fold_in(key, step)
        key_batch, key_terms = jax.random.split(key_update)
        key_noise = jax.random.fold_in(key_update, 2)
        inputs = as_dtype(batches(key_batch, step), compute_dtype)
        inputs = inputs if layout is None else layout.with_batch(inputs)
        forward = as_dtype(target, compute_dtype)
        sites = decomposition.components.V
        captured = capture(forward, inputs, sites, streams=True)
        clean, site_inputs, _ = jax.lax.stop_gradient(captured)
        if layout is not None:
            clean, site_inputs = layout.with_batch((clean, site_inputs))
        weights = {site: weight for site, weight in target.weights().items() if site in sites}

        def context_of(trained: Decomposition, sources: dict[str, Sources]) -> Context:
            noise = None
            if objective.importance_noise:
                noise = _importance_noise(key_noise, trained, site_inputs)
            importances = trained.ci_fn(site_inputs, trained.components, noise)
            return Context(
                target=forward,
                weights=weights,
                inputs=inputs,
                clean=clean,
                components=trained.components,
                importances=importances if layout is None else layout.with_components(importances),
                step=step,
                total_steps=total_steps,
                sources=sources,
                averages=training.averages,
            )

        def loss(trained: Decomposition, sources: dict[str, Sources]) -> tuple[Array, Any]:
            context = context_of(trained, sources)
            total, values = objective(context, key_terms)
            return total, (values, objective.averaged(context))

        adversaries = training.adversaries
        if adversaries:
            fixed = context_of(decomposition, {})
            adversaries = objective.warmed_up(fixed, adversaries, key_terms)
        sources = objective.raw_sources(adversaries)
        (total, (values, averages)), (grads, source_grads) = jax.value_and_grad(
            loss, argnums=(0, 1), has_aux=True
        )(decomposition, sources)
        source_grads = objective.unweighted(source_grads)
        adversaries = objective.ascended(adversaries, source_grads, step, total_steps)
        components, components_opt_state, of_components = optimizers.components.update(
            grads.components,
            training.components_opt_state,
            decomposition.components,
            step,
            total_steps,
        )
        ci_fn, ci_fn_opt_state, of_ci_fn = optimizers.ci_fn.update(
            grads.ci_fn, training.ci_fn_opt_state, decomposition.ci_fn, step, total_steps
        )
        metrics: Metrics = {"loss/total": total}
        metrics |= {f"loss/{name}": value for name, value in values.items()}
        metrics |= {f"{name}/components": value for name, value in of_components.items()}
        metrics |= {f"{name}/ci_fn": value for name, value in of_ci_fn.items()}
        for site in sites:
            of_site = (grads.components.V[site], grads.components.U[site])
            metrics[f"grad_norm/components/{site}"] = global_norm(of_site)
        metrics |= {f"grad_norm/{name}": global_norm(g) for name, g in source_grads.items()}
        updated = TrainState(
            Decomposition(components, ci_fn),
            TrainingItem(components_opt_state, ci_fn_opt_state, adversaries, step + 1, averages),
        )
        finite = _all_finite(metrics)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
        return kept, metrics

    # Traced once, for its metrics' shapes and for the loop: a transformer's takes seconds.
    traced = jax.jit(update, inline=True)

    def run(
        state: TrainState,
        target: Target,
        batches: BatchSource,
        key: PRNGKeyArray,
        n_updates: Int[Array, ""],
    ) -> tuple[TrainState, Metrics]:
        shapes = jax.eval_shape(traced, state, target, batches, key)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def unfinished(carry: tuple[Array, TrainState, Metrics]) -> Array:
            done, _, metrics = carry
            return (done < n_updates) & _all_finite(metrics)

        def once(carry: tuple[Array, TrainState, Metrics]) -> tuple[Array, TrainState, Metrics]:
            done, state, _ = carry
            state, metrics = traced(state, target, batches, key)
            return done + 1, state, metrics

        _, state, metrics = jax.lax.while_loop(unfinished, once, (jnp.int32(0), state, nothing))
        return state, metrics

    return jax.jit(run, donate_argnums=0, out_shardings=out_shardings)


def non_finite(metrics: Mapping[str, Any]) -> list[str]:
    """The names of the metrics that are not finite, those of single terms and sites before sums over them.

    A loss names its term and `grad_norm/components/<site>` its site; the totals, which are not finite either, come
    last.
    """
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    sums = ("loss/total", "grad_norm/components", "grad_norm/ci_fn")
    return sorted(bad, key=lambda name: (name in sums, not name.startswith("loss/"), name))


def _all_finite(metrics: Metrics) -> Bool[Array, ""]:
    return jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))


def _importance_noise(
    key: PRNGKeyArray, decomposition: Decomposition, site_inputs: dict[str, SiteInput]
) -> dict[str, Array]:
    """Uniform noise of the logits' shapes; each site folds in its place."""
    logits = jax.eval_shape(decomposition.ci_fn.logits, site_inputs, decomposition.components)
    return {
        site: jax.random.uniform(jax.random.fold_in(key, index), logit.shape, logit.dtype)
        for index, (site, logit) in enumerate(logits.items())
    }


def make_faithfulness_warmup(
    optimizer: Optimizer, total_steps: int, out_shardings: Any = None
) -> Callable[..., Any]:
    """A jitted `(components, opt_state, weights, first, n_updates) → (components, opt_state, loss)`.

    Moves the components alone, down the faithfulness loss alone, before the first step of a run; the optimizer's
    state is then thrown away. Donates the components and the optimizer's state. `out_shardings` is as for `jax.jit`.

    Source: golden numbers `08_optim_schedules`, `fwarm`.
    """

    def run(
        components: Components,
        opt_state: Any,
        weights: dict[str, Array],
        first: Int[Array, ""],
        n_updates: Int[Array, ""],
    ) -> tuple[Components, Any, Array]:
        def loss(components: Components) -> Array:
            return faithfulness(weight_deltas(components, weights))

        def once(
            index: Array, carry: tuple[Components, Any, Array]
        ) -> tuple[Components, Any, Array]:
            components, opt_state, _ = carry
            value, grads = jax.value_and_grad(loss)(components)
            components, opt_state, _ = optimizer.update(
                grads, opt_state, components, first + index, total_steps
            )
            return components, opt_state, value

        zero = jnp.zeros((), jnp.result_type(float))
        return jax.lax.fori_loop(0, n_updates, once, (components, opt_state, zero))

    return jax.jit(run, donate_argnums=(0, 1), out_shardings=out_shardings)
