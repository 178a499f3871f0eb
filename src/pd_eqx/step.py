"""The train step: donates its state, takes the target as an argument, and runs any number of updates.

One executable serves every number of updates a dispatch, because the trip count is an argument. N updates
in one call therefore equal N calls bit for bit, which two executables would not promise. A step that
closed over the target would bake its weights into the executable; a step that kept a PRNG key in the state
would tie the result to where it was resumed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pd_eqx.ci.base import CIFunction
from pd_eqx.components import Components, init_components, weight_deltas
from pd_eqx.linear import capture
from pd_eqx.losses import faithfulness
from pd_eqx.objective import Context, Objective
from pd_eqx.optimizers import Optimizer, Optimizers
from pd_eqx.sites import Site
from pd_eqx.state import Decomposition, TrainingItem, TrainState

Metrics = dict[str, Float[Array, ""]]


@runtime_checkable
class Target(Protocol):
    """A frozen network, as a pytree of arrays and static fields; see `pd_eqx.targets.base.Target`."""

    def sites(self) -> tuple[Site, ...]: ...
    def weights(self) -> dict[str, Array]: ...
    def __call__(self, inputs: Array, linear: Any = ..., /) -> Array: ...


@runtime_checkable
class BatchSource(Protocol):
    """Batches as a pure function of key and step; a pytree, passed to the step as an argument."""

    def __call__(self, key: PRNGKeyArray, step: Int[Array, ""], /) -> Array: ...


@runtime_checkable
class TrainStep(Protocol):
    """`(state, target, batches, key, n_updates) → (state, metrics of the last update)`; donates `state`.

    Stops early at the first update whose loss or gradient is not finite; `state.training.step` then falls short.
    """

    def __call__(
        self, state: TrainState, target: Any, batches: Any, key: PRNGKeyArray, n_updates: int = 1, /
    ) -> tuple[TrainState, Metrics]: ...

    def lower(self, *args: Any) -> jax.stages.Lowered: ...


def init_state(
    key: PRNGKeyArray,
    target: Target,
    counts: Mapping[str, int],
    init_ci_fn: Callable[[PRNGKeyArray, Components], CIFunction],
    optimizers: Optimizers,
) -> TrainState:
    """A fresh state at step 0.

    **Arguments:**

    - `key`: of the initial parameters.
    - `counts`: number of components by site, as `select_sites` gives them.
    - `init_ci_fn`: makes the causal-importance function for given components.

    Run it under `jax.jit` (or `eqx.filter_eval_shape`, for the abstract state): eager scalars would sit on one
    device beside sharded leaves.
    """
    key_components, key_ci = jax.random.split(key)
    components = init_components(key_components, target.sites(), counts)
    ci_fn = init_ci_fn(key_ci, components)
    training = TrainingItem(
        components_opt_state=optimizers.components.init(components),
        ci_fn_opt_state=optimizers.ci_fn.init(ci_fn),
        adversaries={},
        step=jnp.zeros((), jnp.int32),
    )
    return TrainState(Decomposition(components, ci_fn), training)


def make_train_step(objective: Objective, optimizers: Optimizers, total_steps: int) -> TrainStep:
    """The jitted step of a run of `total_steps` updates.

    **Returns:** a function `(state, target, batches, key, n_updates)` that donates `state` and returns the new
    state and the last update's metrics: `loss/total`, `loss/<term>`, `grad_norm/<group>`, `lr/<group>`.
    `key` is the run's: update `s` draws from `fold_in(key, s)` alone.
    """

    def update(
        state: TrainState, target: Target, batches: BatchSource, key: PRNGKeyArray
    ) -> tuple[TrainState, Metrics]:
        step = state.training.step
        key_batch, key_terms = jax.random.split(jax.random.fold_in(key, step))
        inputs = batches(key_batch, step)
        clean, site_inputs, _ = jax.lax.stop_gradient(capture(target, inputs))
        sites = state.decomposition.components.V
        weights = {site: weight for site, weight in target.weights().items() if site in sites}

        def loss(decomposition: Decomposition) -> tuple[Array, dict[str, Array]]:
            importances = decomposition.ci_fn(site_inputs, decomposition.components)
            context = Context(
                target=target,
                weights=weights,
                inputs=inputs,
                clean=clean,
                components=decomposition.components,
                importances=importances,
                sources={},
                step=step,
                total_steps=total_steps,
            )
            return objective(context, key_terms)

        (total, values), grads = jax.value_and_grad(loss, has_aux=True)(state.decomposition)
        components, components_opt_state, of_components = optimizers.components.update(
            grads.components,
            state.training.components_opt_state,
            state.decomposition.components,
            step,
            total_steps,
        )
        ci_fn, ci_fn_opt_state, of_ci_fn = optimizers.ci_fn.update(
            grads.ci_fn,
            state.training.ci_fn_opt_state,
            state.decomposition.ci_fn,
            step,
            total_steps,
        )
        metrics: Metrics = {"loss/total": total}
        metrics |= {f"loss/{name}": value for name, value in values.items()}
        metrics |= {f"{name}/components": value for name, value in of_components.items()}
        metrics |= {f"{name}/ci_fn": value for name, value in of_ci_fn.items()}
        training = TrainingItem(
            components_opt_state, ci_fn_opt_state, state.training.adversaries, step + 1
        )
        return TrainState(Decomposition(components, ci_fn), training), metrics

    def run(
        state: TrainState,
        target: Target,
        batches: BatchSource,
        key: PRNGKeyArray,
        n_updates: Int[Array, ""],
    ) -> tuple[TrainState, Metrics]:
        shapes = eqx.filter_eval_shape(update, state, target, batches, key)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def unfinished(carry: tuple[Array, TrainState, Metrics]) -> Array:
            done, _, metrics = carry
            finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
            return (done < n_updates) & finite

        def once(carry: tuple[Array, TrainState, Metrics]) -> tuple[Array, TrainState, Metrics]:
            done, state, _ = carry
            state, metrics = update(state, target, batches, key)
            return done + 1, state, metrics

        _, state, metrics = jax.lax.while_loop(unfinished, once, (jnp.int32(0), state, nothing))
        return state, metrics

    return jax.jit(run, donate_argnums=0)


def make_faithfulness_warmup(optimizer: Optimizer, total_steps: int) -> Callable[..., Any]:
    """A jitted `(components, opt_state, weights, first, n_updates) → (components, opt_state, loss)`.

    Moves the components alone, down the faithfulness loss alone, before the first step of a run; the optimizer's
    state is then thrown away. Donates the components and the optimizer's state.

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

    return jax.jit(run, donate_argnums=(0, 1))
