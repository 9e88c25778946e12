"""Hugging Face's architectures: what their configs' keys mean here, and what their tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..distributed.checkpoint import GPT2, LLAMA, NameMap
from .rotary import RotaryScaling


@dataclass(frozen=True)
class Architecture:
    """How one of their architectures says what our config says.

    Args:
        name: what is in `architectures` of its config.
        keys: our field -> their key. A key without a default must be there.
        defaults: our field -> what an absent key means to transformers.
        implied: our fields that it has no key for.
        only: their keys that change results -> the only value that is supported, which an absent key means.
        names: from a config to the map of its tensors' names.
        by_layer: whether it says which layers have a sliding window.
    """

    name: str
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    names: Callable[[Any], NameMap]
    implied: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    by_layer: bool = False


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


# ---- names of tensors ----


def _llama_names(config: Any) -> NameMap:
    at, width = "layers.*.self_attn", config.head_dim
    key_rows = config.num_key_value_heads * width
    return NameMap(
        {
            f"{at}.qkv_proj.*": tuple(f"{at}.{part}_proj.*" for part in "qkv"),
            "layers.*.mlp.gate_up_proj.*": ("layers.*.mlp.gate_proj.*", "layers.*.mlp.up_proj.*"),
        },
        prefix=LLAMA.prefix,
        ignore=LLAMA.ignore,
        sizes={
            f"{at}.qkv_proj.*": (config.num_attention_heads * width, key_rows, key_rows),
            "layers.*.mlp.gate_up_proj.*": (config.intermediate_size,) * 2,
        },
    )


def _gpt2_names(config: Any) -> NameMap:
    inside = {
        "input_layernorm": "ln_1",
        "self_attn.qkv_proj": "attn.c_attn",
        "self_attn.o_proj": "attn.c_proj",
        "post_attention_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    }
    return NameMap(
        {
            "embed_tokens.*": "wte.*",
            "embed_positions.*": "wpe.*",
            **{f"layers.*.{ours}.*": f"h.*.{theirs}.*" for ours, theirs in inside.items()},
            "norm.*": "ln_f.*",
        },
        transpose=GPT2.transpose,
        prefix=GPT2.prefix,
        ignore=GPT2.ignore,
    )


def _bert_names(config: Any) -> NameMap:
    at, layer = "layers.*.self_attn", "encoder.layer.*"
    inside = {
        "self_attn.o_proj": "attention.output.dense",
        "post_attention_layernorm": "attention.output.LayerNorm",
        "mlp.up_proj": "intermediate.dense",
        "mlp.down_proj": "output.dense",
        "post_mlp_layernorm": "output.LayerNorm",
    }
    parts = ("query", "key", "value")
    return NameMap(
        {
            "embed_tokens.*": "embeddings.word_embeddings.*",
            "embed_positions.*": "embeddings.position_embeddings.*",
            "embed_token_types.*": "embeddings.token_type_embeddings.*",
            "embed_norm.*": "embeddings.LayerNorm.*",
            f"{at}.qkv_proj.*": tuple(f"{layer}.attention.self.{part}.*" for part in parts),
            **{f"layers.*.{ours}.*": f"{layer}.{theirs}.*" for ours, theirs in inside.items()},
            "pooler.*": "pooler.dense.*",
        },
        prefix="bert.",
        # Heads of what it was trained for are not part of an encoder.
        ignore=(
            "embeddings.position_ids",
            "classifier.*",
            "qa_outputs.*",
            "cls.*.*",
            "cls.*.*.*",
            "cls.*.*.*.*",
        ),
        sizes={f"{at}.qkv_proj.*": (config.hidden_size,) * 3},
        older={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    )


# ---- keys of configs ----

_TOKENS = _same("bos_token_id", "eos_token_id", "pad_token_id")
_NO_TOKENS = dict.fromkeys(_TOKENS)
_SIZES = _same(
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
)
_LLAMA_KEYS = {
    **_SIZES,
    **_same("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings"),
    **_same("initializer_range", "attention_dropout"),
    **_TOKENS,
    "norm_eps": "rms_norm_eps",
}
_LLAMA_DEFAULTS = {
    "hidden_act": "silu",
    "num_key_value_heads": None,
    "head_dim": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "norm_eps": 1e-6,
    **_NO_TOKENS,
}
_BOTH_BIASES = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
_NO_BIASES = {"qkv_bias": False, "o_bias": False}
_LLAMA_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
DECODERS: dict[str, Architecture] = {
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        {
            "vocab_size": "vocab_size",
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
            "hidden_act": "activation_function",
            "norm_eps": "layer_norm_epsilon",
            "embedding_dropout": "embd_pdrop",
            "residual_dropout": "resid_pdrop",
            "attention_dropout": "attn_pdrop",
            **_same("initializer_range", "tie_word_embeddings"),
            **_TOKENS,
        },
        {
            "intermediate_size": None,
            "hidden_act": "gelu_new",
            "norm_eps": 1e-5,
            **dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.1),
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            **_NO_TOKENS,
            **dict.fromkeys(("bos_token_id", "eos_token_id"), 50256),
        },
        _gpt2_names,
        implied={
            "norm": "layer_norm",
            "positions": "learned",
            "gated": False,
            **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
        },
        only={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "llama": Architecture(
        "LlamaForCausalLM",
        {**_LLAMA_KEYS, **_BOTH_BIASES, "mlp_bias": "mlp_bias"},
        {**_LLAMA_DEFAULTS, **_LLAMA_TOKENS, **_NO_BIASES, "mlp_bias": False},
        _llama_names,
    ),
    "mistral": Architecture(
        "MistralForCausalLM",
        {**_LLAMA_KEYS, "sliding_window": "sliding_window"},
        {**_LLAMA_DEFAULTS, **_LLAMA_TOKENS, "num_key_value_heads": 8, "sliding_window": 4096},
        _llama_names,
    ),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        _LLAMA_KEYS,
        {**_LLAMA_DEFAULTS, "num_key_value_heads": 32},
        _llama_names,
        implied={"qkv_bias": True},
        by_layer=True,
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        {**_LLAMA_KEYS, **_BOTH_BIASES},
        {**_LLAMA_DEFAULTS, **_NO_BIASES, "num_key_value_heads": 32, "head_dim": 128},
        _llama_names,
        implied={"qk_norm": True},
        by_layer=True,
    ),
}
ENCODERS: dict[str, Architecture] = {
    "bert": Architecture(
        "BertModel",
        {
            **_SIZES,
            **_same("max_position_embeddings", "type_vocab_size", "initializer_range", "pad_token_id"),
            "norm_eps": "layer_norm_eps",
            "residual_dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
        },
        {
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "pad_token_id": 0,
            "norm_eps": 1e-12,
            "hidden_act": "gelu",
            **dict.fromkeys(("residual_dropout", "attention_dropout"), 0.1),
        },
        _bert_names,
        only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    ),
}
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
MOST_LAYERS = 10_000
_ONLY = {"quantization_config": None, "partial_rotary_factor": 1.0}  # of all


def read(who: str, table: Mapping[str, Architecture], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config of the class `who` from their dict. Raises ValueError."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{who}: expected a dict, as in a config.json, got {type(data).__name__}")
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in table:
        raise ValueError(f"{who}: unknown model_type {kind!r:.40}; supported: {', '.join(sorted(table))}")
    of = table[kind]
    for key, value in {**_ONLY, **of.only}.items():
        given = data.get(key)
        if given is not None and given != value:
            only = f"only {value!r}" if value is not None else "leave it out"
            raise ValueError(f"{who}: {kind} with {key}={given!r:.80} is not supported: {only}")
    absent = [key for name, key in of.keys.items() if key not in data and name not in of.defaults]
    if absent:
        raise ValueError(f"{who}: a {kind} config needs {', '.join(absent)}")
    out = {name: data.get(key, of.defaults.get(name)) for name, key in of.keys.items()}
    out.update(of.implied, architecture=kind)
    if "rms_norm_eps" in of.keys.values():
        out.update(_read_rotary(who, data))
    if of.by_layer:
        out.update(_read_window(data, data["num_hidden_layers"]))
    return out


def _read_rotary(who: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters as transformers 5 writes them, or rope_theta and rope_scaling as those before did."""
    given = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{who}: expected rope_scaling to be a dict, got {given!r:.80}")
    if given.get("partial_rotary_factor") not in (None, 1.0):
        raise ValueError(f"{who}: partial_rotary_factor is not supported: only 1.0")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"{who}: rope_parameters by types of layers are not supported, only one for all")
    theta = given.get("rope_theta", data.get("rope_theta", 10000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    known = _SCALING if kind == "llama3" else _SCALING[:1]
    numbers = {key: given[key] for key in known if key in given}
    if kind == "llama3":
        numbers.setdefault("original_max_position_embeddings", data.get("max_position_embeddings"))
    try:
        return {"rope_theta": theta, "rope_scaling": RotaryScaling(rope_type=kind, **numbers)}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who}: {error}") from error


def _read_window(data: Mapping[str, Any], layers: Any) -> dict[str, Any]:
    """Qwen's: from layer max_window_layers on, unless layer_types says it for each."""
    if not data.get("use_sliding_window", False) or type(layers) is not int or layers > MOST_LAYERS:
        return {}  # the config refuses what is no number of layers
    types, first = data.get("layer_types"), data.get("max_window_layers", 28)
    if types is None and type(first) is int:
        types = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return {"sliding_window": data.get("sliding_window", 4096), "layer_types": types}


def write(of: Architecture, config: Any) -> dict[str, Any]:
    """Their dict of a config."""
    out: dict[str, Any] = {"architectures": [of.name], "model_type": config.architecture}
    for name, key in of.keys.items():
        value = getattr(config, name)
        out[key] = list(value) if isinstance(value, tuple) else value
    if "rms_norm_eps" in out:
        # As all versions read it.
        out["rope_theta"] = config.rope_theta
        out["rope_scaling"] = _written_scaling(config.rope_scaling)
    if of.by_layer and config.sliding_window is not None:
        types = [config.layer_type(i) for i in range(config.num_hidden_layers)]
        out.update(use_sliding_window=True, sliding_window=config.sliding_window, layer_types=types)
        out["max_window_layers"] = (types + ["sliding_attention"]).index("sliding_attention")
    return out


def _written_scaling(scaling: RotaryScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    out = asdict(scaling)
    return out if scaling.rope_type == "llama3" else {key: out[key] for key in ("rope_type", "factor")}
