"""The two small networks of golden files 05 to 07, and sources and routes that replay recorded draws."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from parity.golden import Golden
from parity.peer import mlp
from pd_eqx.ci.base import CausalImportances
from pd_eqx.ci.mlp import ComponentMLP, LayerwiseCI
from pd_eqx.components import Components
from pd_eqx.evals.observation import Observation
from pd_eqx.linear import LinearMap, capture, frozen
from pd_eqx.losses import Distance, KLDivergence, MeanSquaredError
from pd_eqx.masks import MaskSource, Routes, Routing, SiteSource
from pd_eqx.objective import Context
from pd_eqx.sites import Site
from pd_eqx.targets.base import Target
from pd_eqx.targets.tms import TMS
from pd_eqx.unembedding import Outputs

DISTANCES: Mapping[str, Distance] = {"tms": MeanSquaredError(), "seq": KLDivergence()}


class TwoLayers(Target):
    """`fc2(relu(fc1(x)))`, with biases."""

    fc1: Float[Array, "d_in d_hidden"]
    fc2: Float[Array, "d_hidden d_out"]
    bias1: Float[Array, " d_hidden"]
    bias2: Float[Array, " d_out"]

    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(name, *weight.shape) for name, weight in self.weights().items())

    def weights(self) -> dict[str, Float[Array, "_ _"]]:
        return {"fc1": self.fc1, "fc2": self.fc2}

    def __call__(self, inputs: Array, linear: LinearMap = frozen) -> Float[Array, "..."]:
        hidden = jax.nn.relu(linear("fc1", inputs, self.fc1) + self.bias1)
        return linear("fc2", hidden, self.fc2) + self.bias2


def read_tms(golden: Golden, prefix: str) -> TMS:
    arrays = golden.under(prefix)
    hidden = [arrays[name].T for name in sorted(arrays) if name.startswith("hidden_layers")]
    return TMS(
        arrays["linear1.weight"].T,
        tuple(hidden),
        arrays["linear2.weight"].T,
        arrays["linear2.bias"],
    )


def read_target(golden: Golden, model: str) -> Target:
    """The target `tms` or `seq`; the peer's weights are `[d_out, d_in]`."""
    if model == "tms":
        return read_tms(golden, "tms/target")
    arrays = golden.under("seq/target")
    return TwoLayers(
        arrays["fc1.weight"].T, arrays["fc2.weight"].T, arrays["fc1.bias"], arrays["fc2.bias"]
    )


def read_components(golden: Golden, model: str) -> Components:
    return Components(V=golden.under(f"{model}/V"), U=golden.under(f"{model}/U"))


def component_mlps(params: Mapping[str, Array]) -> LayerwiseCI:
    """A component MLP for each site, from arrays `<site>/layers.<n>.{W,b}`."""
    sites = sorted({name.partition("/")[0] for name in params})
    return LayerwiseCI(sites={site: ComponentMLP(mlp(params, f"{site}/layers")) for site in sites})


def context(
    target: Target,
    components: Components,
    ci: Mapping[str, Array],
    inputs: Array,
    clean: Outputs,
    **rest: object,
) -> Context:
    """A context with these lower importances, its sites in the order of the forward pass."""
    lower = {site.name: ci[site.name] for site in target.sites()}
    fields = {"step": jnp.int32(0), "total_steps": 1, **rest}
    importances = CausalImportances(lower=lower, upper={}, logits={})
    return Context(
        target=target,
        weights=target.weights(),
        inputs=inputs,
        clean=clean,
        components=components,
        importances=importances,
        **fields,  # pyright: ignore[reportArgumentType]
    )


def observation(
    target: Target, components: Components, ci: Mapping[str, Array], inputs: Array
) -> Observation:
    """What evaluation sees of a batch with these lower importances."""
    clean, site_inputs, site_outputs = capture(target, inputs)
    return Observation(
        target=target,
        components=components,
        inputs=inputs,
        clean=clean,
        site_inputs=site_inputs,
        site_outputs=site_outputs,
        importances=CausalImportances(lower=dict(ci), upper={}, logits={}),
    )


@dataclasses.dataclass(frozen=True)
class RecordedSource(MaskSource):
    """The recorded sources of one mask sample after another."""

    samples: Iterator[dict[str, SiteSource]]

    def draw(
        self, key: PRNGKeyArray, importances: Mapping[str, Array], loss: object
    ) -> dict[str, SiteSource]:
        return next(self.samples)


@dataclasses.dataclass(frozen=True)
class RecordedRouting(Routing):
    """The recorded routes of one evaluation after another."""

    evaluations: Iterator[Routes]

    def passes(
        self, key: PRNGKeyArray, sites: Sequence[str], lead: tuple[int, ...]
    ) -> list[Routes]:
        return [next(self.evaluations)]


def packed(source: SiteSource) -> Array:
    """A source in the peer's layout, the delta's last: `[*scope, C]` or `[*scope, C + 1]`."""
    assert source.component is not None
    if source.delta is None:
        return source.component
    return jnp.concatenate([source.component, source.delta[..., None]], -1)


def unpacked(array: Array, delta: bool) -> SiteSource:
    """The reverse of `packed`."""
    return SiteSource(array[..., :-1], array[..., -1]) if delta else SiteSource(array)
