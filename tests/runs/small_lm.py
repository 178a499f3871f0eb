"""A language model that is trained and taken apart in under a minute, with all that a large one would have."""

from pathlib import Path

from pd_eqx.data.corpus import prepare_corpus
from pd_eqx.data.text import TextFile
from pd_eqx.data.tokenizer import byte_tokenizer

SMALL_LM = """
name: small-lm
seed: 3
steps: 40
target:
  kind: language_model
  cache: false
  vocabulary: 257
  width: 16
  depth: 2
  heads: 2
  mlp_width: 24
  training: {corpus: CORPUS, length: 12, held_out: 6, batch_size: 8, steps: 60, max_loss: 5.5}
sites: {"layers.*.attn.[qv]": 5, "layers.*.mlp.*": 7}
ci_fn: {kind: transformer, d_model: 8, n_blocks: 1, n_heads: 2, hidden: [10]}
data: {kind: corpus, path: CORPUS, length: 12, batch_size: 4, held_out: 6}
objective:
  - {kind: importance_minimality, coefficient: 1e-3, frequency: {weight: 0.5, reference: 48, decay: 0.9}}
  - kind: reconstruction
    name: stochastic
    distance: kl
    source: {kind: stochastic}
    routing: {kind: uniform_subset}
  - kind: persistent_reconstruction
    name: adversarial
    distance: kl
    adversary:
      ascent: {kind: adam, lr: {kind: constant, value: 0.01}}
      scope: {letters: bsc}
      warmups: 1
optimizers:
  components: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
  ci_fn: {kind: adamw, lr: {kind: decaying, value: 3e-3}}
faithfulness_warmup: {steps: 10, optimizer: {kind: adamw, lr: {kind: constant, value: 1e-2}}}
log_every: 5
max_updates_per_dispatch: 2
checkpoint: {every: 10, keep_last: 3}
evaluation: {every: 20, batches: 2, pgd_steps: 2}
"""


def small_corpus(folder: Path) -> Path:
    """A corpus of bytes, of a text with something to learn."""
    text = folder / "text.txt"
    text.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in range(60)))
    prepare_corpus(folder / "corpus", [TextFile(text)], byte_tokenizer())
    return folder / "corpus"


def small_lm(corpus: Path) -> str:
    """The configuration, on a corpus."""
    return SMALL_LM.replace("CORPUS", str(corpus))
