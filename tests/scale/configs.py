"""Small runs whose numbers must not depend on the number of devices, with persistent adversaries of every scope.

Adversaries climb by Adam with an `eps` far above rounding, and optimizers have one too: what divides a gradient of
nearly zero by itself makes a step of a last bit, on one device as on eight.
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
TINY_LM = HERE.parent / "golden/hf/tiny/llama_gqa"
STEPS = 50

_ADVERSARY = """  - kind: persistent_reconstruction
    name: {name}
    coefficient: 0.5
    distance: {distance}
    adversary:
      ascent: {{kind: adam, lr: {{kind: constant, value: 0.02}}, eps: 1e-3}}
      scope: {scope}
      warmups: {warmups}
"""

_REST = """optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}, eps: 1e-4}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}, eps: 1e-4}
log_every: 10
checkpoint: {every: 50, keep_last: 1}
evaluation: {every: null, batches: 1, pgd_steps: 1}
"""

_MINIMALITY = """objective:
  - {kind: faithfulness}
  - kind: importance_minimality
    coefficient: 1e-2
    p: 1.0
    frequency: {weight: 1.0, reference: 1000, decay: 0.9}
  - {kind: importance_minimality, name: plain_frequency, coefficient: 1e-2, frequency: {weight: 1.0, reference: 1000}}
"""

_TMS = """name: tms
seed: 3
steps: 50
target: {kind: tms, n_features: 6, n_hidden: 4, training: {steps: 1000, batch_size: 512}}
sites: {linear1: 8, linear2: 16}
ci_fn: {kind: component_mlp, hidden: [6]}
data: {kind: sparse_features, batch_size: 32, probability: 0.2}
"""

_RESID_MLP = """name: resid_mlp
seed: 3
steps: 50
target:
  kind: resid_mlp
  n_features: 12
  d_embed: 24
  n_neurons: 8
  training: {steps: 400, batch_size: 256, probability: 0.1, max_loss: 10.0, min_response: 0.0}
sites: {layers.0.mlp_in: 16, layers.0.mlp_out: 8}
ci_fn: {kind: shared_mlp, hidden: [16]}
data: {kind: sparse_features, batch_size: 32, probability: 0.1, low: -1.0}
"""

_LM = """name: tiny_lm
seed: 3
steps: 50
target: {{kind: pretrained, model: {model}}}
sites: {{"layers.*.mlp.up": 8, "layers.*.attn.o": 16}}
ci_fn: {{kind: shared_mlp, hidden: [16]}}
data: {{kind: corpus, path: {corpus}, length: 12, batch_size: 8}}
"""


def _adversary(name: str, scope: str, distance: str, warmups: int = 0) -> str:
    return _ADVERSARY.format(name=name, scope=scope, distance=distance, warmups=warmups)


def write(kind: str, folder: Path, mesh: str = "{replica: null}") -> Path:
    """The configuration of one kind of target, with whatever it reads, in a folder."""
    of_toys = (
        _adversary("c", "{letters: c}", "mse", 1)
        + _adversary("bc", "{letters: bc}", "mse", 1)
        + _adversary("repeated", "{letters: c, repeat: 4}", "mse")
    )
    of_lm = "".join(
        _adversary(letters, f"{{letters: {letters}}}", "kl") for letters in ("c", "bc", "sc", "bsc")
    )
    match kind:
        case "tms":
            text = _TMS + _MINIMALITY + of_toys + _REST
        case "resid_mlp":
            text = _RESID_MLP + _MINIMALITY + of_toys + _REST
        case "lm":
            corpus = folder / "ids.npy"
            np.save(corpus, np.random.default_rng(0).integers(0, 50, 20_000))
            text = _LM.format(model=TINY_LM, corpus=corpus) + _MINIMALITY + of_lm + _REST
        case _:
            raise ValueError(kind)
    path = folder / f"{kind}.yaml"
    path.write_text(f"{text}mesh: {mesh}\n")
    return path
