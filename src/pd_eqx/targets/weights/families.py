"""The families of published models: what their configurations mean and what their tensors are called.

A family is one `Family` value; adding one takes nothing else but a test. Names are those of the checkpoints that
people download, in either spelling of the configuration.
"""

import dataclasses
from collections.abc import Callable, Mapping

from pd_eqx.targets.transformer import (
    FusedByHeadQKV,
    FusedQKV,
    GatedMLP,
    LayerNorm,
    PlainMLP,
    RMSNorm,
    TransformerConfig,
)
from pd_eqx.targets.weights.reader import ConfigReader
from pd_eqx.targets.weights.source import WeightsError


@dataclasses.dataclass(frozen=True)
class Family:
    """How one family's published files map onto `Transformer`.

    - `config`: reads its configuration.
    - `prefix`: of every name but the head's; files of a bare model leave it out.
    - `embedding`, `positions`, `norm`, `head`: modules outside the layers; `positions` may be empty.
    - `layer`: the prefix of a layer, with `{}` for its index.
    - `matrices`, `norms`: module of each kind of matrix and of each norm, within a layer.
    - `transposed`: matrices are stored `[d_out, d_in]`.
    - `buffers`: endings of names that hold constants; such tensors are ignored.
    """

    config: Callable[[ConfigReader], TransformerConfig]
    prefix: str
    embedding: str
    norm: str
    layer: str
    matrices: Mapping[str, str]
    norms: Mapping[str, str]
    head: str = "lm_head"
    positions: str = ""
    transposed: bool = True
    buffers: tuple[str, ...] = ()


_ATTENTION = ("attn.q", "attn.k", "attn.v", "attn.o")


def _gated_config(
    reader: ConfigReader,
    biased: frozenset[str],
    *,
    kv_heads: int | None = None,
    head_width: int | None = None,
    qk_norm: bool = False,
) -> TransformerConfig:
    """What Llama and its descendants share; the arguments are defaults of the family."""
    width, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    head_width = reader.integer("head_dim", head_width or width // heads)
    return TransformerConfig(
        vocabulary=reader.integer("vocab_size"),
        width=width,
        depth=reader.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=reader.integer("num_key_value_heads", kv_heads or heads),
        head_width=head_width,
        mlp_width=reader.integer("intermediate_size"),
        norm=RMSNorm(reader.number("rms_norm_eps", 1e-6)),
        mlp=GatedMLP(reader.activation("hidden_act", "silu")),
        biased=biased,
        rotary=reader.rotary(head_width),
        qk_norm=qk_norm,
        tied=reader.flag("tie_word_embeddings", False),
    )


def _llama(reader: ConfigReader) -> TransformerConfig:
    attention = _ATTENTION if reader.flag("attention_bias", False) else ()
    mlp = ("mlp.gate", "mlp.up", "mlp.down") if reader.flag("mlp_bias", False) else ()
    return _gated_config(reader, frozenset((*attention, *mlp)))


def _refuse_windows(reader: ConfigReader) -> None:
    reader.require("use_sliding_window", False)
    for kind in reader.values.get("layer_types") or ():
        if kind != "full_attention":
            raise WeightsError(
                f"{reader.where}: key 'layer_types' holds {kind!r}, expected 'full_attention' everywhere"
            )


def _qwen2(reader: ConfigReader) -> TransformerConfig:
    _refuse_windows(reader)
    return _gated_config(reader, frozenset(("attn.q", "attn.k", "attn.v")), kv_heads=32)


def _qwen3(reader: ConfigReader) -> TransformerConfig:
    _refuse_windows(reader)
    biased = frozenset(_ATTENTION if reader.flag("attention_bias", False) else ())
    return _gated_config(reader, biased, kv_heads=32, head_width=128, qk_norm=True)


def _gpt2(reader: ConfigReader) -> TransformerConfig:
    reader.require("scale_attn_weights", True)
    reader.require("scale_attn_by_inverse_layer_idx", False)
    reader.require("add_cross_attention", False)
    width, heads = reader.integer("n_embd"), reader.integer("n_head")
    return TransformerConfig(
        vocabulary=reader.integer("vocab_size"),
        width=width,
        depth=reader.integer("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        mlp_width=reader.integer("n_inner", 4 * width),
        norm=LayerNorm(reader.number("layer_norm_epsilon", 1e-5)),
        mlp=PlainMLP(reader.activation("activation_function", "gelu_new")),
        qkv=FusedQKV(),
        biased=frozenset(("attn.qkv", "attn.o", "mlp.up", "mlp.down")),
        learned_positions=reader.integer("n_positions", 1024),
        tied=reader.flag("tie_word_embeddings", True),
    )


def _gpt_neox(reader: ConfigReader) -> TransformerConfig:
    width, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    attention = ("attn.qkv", "attn.o") if reader.flag("attention_bias", True) else ()
    fraction = reader.number("rotary_pct", 0.25)
    return TransformerConfig(
        vocabulary=reader.integer("vocab_size"),
        width=width,
        depth=reader.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        mlp_width=reader.integer("intermediate_size"),
        norm=LayerNorm(reader.number("layer_norm_eps", 1e-5)),
        mlp=PlainMLP(reader.activation("hidden_act", "gelu")),
        qkv=FusedByHeadQKV(),
        biased=frozenset((*attention, "mlp.up", "mlp.down")),
        rotary=reader.rotary(width // heads, fraction, base_key="rotary_emb_base"),
        parallel=reader.flag("use_parallel_residual", True),
        tied=reader.flag("tie_word_embeddings", False),
    )


def _llama_simple_mlp(reader: ConfigReader) -> TransformerConfig:
    width, heads = reader.integer("n_embd"), reader.integer("n_head")
    head_width = width // heads
    return TransformerConfig(
        vocabulary=reader.integer("vocab_size"),
        width=width,
        depth=reader.integer("n_layer"),
        heads=heads,
        kv_heads=reader.integer("n_key_value_heads", heads),
        head_width=head_width,
        mlp_width=reader.integer("n_intermediate", 4 * width),
        norm=RMSNorm(reader.number("rms_norm_eps", 1e-6)),
        mlp=PlainMLP(reader.activation("activation_function", "gelu_new")),
        rotary=reader.rotary(head_width, base_key="rotary_base"),
        tied=reader.flag("tie_word_embeddings", True),
    )


_LLAMA = Family(
    config=_llama,
    prefix="model.",
    embedding="embed_tokens",
    norm="norm",
    layer="layers.{}.",
    matrices={
        "attn.q": "self_attn.q_proj",
        "attn.k": "self_attn.k_proj",
        "attn.v": "self_attn.v_proj",
        "attn.o": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
    norms={
        "attn": "input_layernorm",
        "mlp": "post_attention_layernorm",
        "q": "self_attn.q_norm",
        "k": "self_attn.k_norm",
    },
    buffers=(".rotary_emb.inv_freq",),
)

# By `model_type`, as a configuration calls it.
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "qwen2": dataclasses.replace(_LLAMA, config=_qwen2),
    "qwen3": dataclasses.replace(_LLAMA, config=_qwen3),
    "gpt2": Family(
        config=_gpt2,
        prefix="transformer.",
        embedding="wte",
        positions="wpe",
        norm="ln_f",
        layer="h.{}.",
        matrices={
            "attn.qkv": "attn.c_attn",
            "attn.o": "attn.c_proj",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        },
        norms={"attn": "ln_1", "mlp": "ln_2"},
        transposed=False,
        buffers=(".attn.bias", ".attn.masked_bias"),
    ),
    "gpt_neox": Family(
        config=_gpt_neox,
        prefix="gpt_neox.",
        embedding="embed_in",
        norm="final_layer_norm",
        head="embed_out",
        layer="layers.{}.",
        matrices={
            "attn.qkv": "attention.query_key_value",
            "attn.o": "attention.dense",
            "mlp.up": "mlp.dense_h_to_4h",
            "mlp.down": "mlp.dense_4h_to_h",
        },
        norms={"attn": "input_layernorm", "mlp": "post_attention_layernorm"},
        buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    ),
    "llama_simple_mlp": Family(
        config=_llama_simple_mlp,
        prefix="transformer.",
        embedding="wte",
        norm="rms_f",
        layer="h.{}.",
        matrices={
            "attn.q": "attn.q_proj",
            "attn.k": "attn.k_proj",
            "attn.v": "attn.v_proj",
            "attn.o": "attn.o_proj",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.down_proj",
        },
        norms={"attn": "rms_1", "mlp": "rms_2"},
    ),
}


def find_family(reader: ConfigReader) -> Family:
    """The family that a configuration names.

    **Errors:** `WeightsError` for one that is not here.
    """
    model_type = str(reader.values.get("model_type"))
    if model_type not in FAMILIES:
        raise WeightsError(
            f"{reader.where}: key 'model_type' is {model_type!r}, expected one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
