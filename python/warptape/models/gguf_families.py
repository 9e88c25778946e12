"""Families of decoders as GGUF files have them: what metadata mean, and names and order of tensors.

Keys and names are those of the gguf package; what they mean is in llama.cpp's conversion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..core import Tensor
from ..distributed.checkpoint import NameMap
from .config import FULL, SLIDING, DecoderConfig
from .parts import ExpertsConfig, LatentConfig
from .rotary import RotaryScaling

Fields = dict[str, Any]
Of = Mapping[str, Any]  # metadata without the architecture's name before them


class Family(NamedTuple):
    """An architecture of theirs.

    Args:
        architecture: ours.
        fields: from metadata and the fields that all have: fields of its config.
        rename: our pattern below a layer -> theirs, instead of those that most have.
        eps: the key of what norms add.
        interleaved: whether the halves of each head of queries and keys lie row by row, and are put back.
        by_head: whether queries, keys and values of all heads follow each other, and are sorted by heads.
        plus_one: whether norms have their weights and 1.
        also: others of ours, which its metadata say.
    """

    architecture: str
    fields: Callable[[Of, Fields], Fields] = lambda of, fields: {}
    rename: Mapping[str, str | tuple[str, ...]] = {}
    eps: str = "attention.layer_norm_rms_epsilon"
    interleaved: bool = False
    by_head: bool = False
    plus_one: bool = False
    also: tuple[str, ...] = ()


# ---- fields ----


def _implied(**fields: Any) -> Callable[[Of, Fields], Fields]:
    return lambda of, known: dict(fields)


def _windows(of: Of, known: Fields, every: int) -> Fields:
    """Layers with a window: a list, or all but each so many-th."""
    window, layers = of.get("attention.sliding_window"), known["num_hidden_layers"]
    pattern = of.get("attention.sliding_window_pattern", every)
    if not window:
        return {}
    if not isinstance(pattern, list):
        pattern = [bool((i + 1) % pattern) for i in range(layers)]
    return {
        "sliding_window": window,
        "layer_types": tuple(SLIDING if each else FULL for each in pattern[:layers]),
    }


def _experts(of: Of, **more: Any) -> ExpertsConfig:
    return ExpertsConfig(
        count=of["expert_count"],
        per_token=of["expert_used_count"],
        width=of.get("expert_feed_forward_length", of["feed_forward_length"]),
        **more,
    )


def _llama(of: Of, known: Fields) -> Fields:
    if not of.get("expert_count"):
        return {}
    return {"architecture": "mixtral", "experts": _experts(of, normalize=True)}


def _qwen2_moe(of: Of, known: Fields) -> Fields:
    shared = of.get("expert_shared_feed_forward_length", 0)
    return {"experts": _experts(of, shared_width=shared, shared_gate=shared > 0)}


def _qwen3_moe(of: Of, known: Fields) -> Fields:
    return {"qk_norm": "head", "experts": _experts(of, normalize=True)}


def _gemma(of: Of, known: Fields) -> Fields:
    return {
        "norm": "rms_norm_plus_one",
        "hidden_act": "gelu_pytorch_tanh",
        "embedding_scale": math.sqrt(known["hidden_size"]),
    }


def _sandwich(of: Of, known: Fields, largest: int) -> Fields:
    """Of Gemma 2 and 3, whose largest models, told by their layers, scale scores by the width of a head that
    hidden_size gives."""
    width = known["head_dim"]
    if known["num_hidden_layers"] == largest:
        width = known["hidden_size"] // known["num_attention_heads"]
    return {
        **_gemma(of, known),
        "norm_placement": "around",
        "attention_scale": 1 / math.sqrt(width),
        "logit_softcap": of.get("final_logit_softcapping"),
    }


def _gemma2(of: Of, known: Fields) -> Fields:
    softcap = of.get("attn_logit_softcapping", 50.0)
    return {
        **_sandwich(of, known, 46),
        "logit_softcap": of.get("final_logit_softcapping", 30.0),
        "attention_softcap": softcap,
        **_windows(of, known, 2),
    }


def _gemma3(of: Of, known: Fields) -> Fields:
    return {
        **_sandwich(of, known, 62),
        "qk_norm": "head",
        "rope_theta": of.get("rope.freq_base", 1e6),
        "local_rope_theta": of.get("rope.freq_base_swa", 1e4),
        **_windows(of, known, 6),
    }


def _phi3(of: Of, known: Fields) -> Fields:
    window = of.get("attention.sliding_window")
    return {"sliding_window": window or None}


def _smollm3(of: Of, known: Fields) -> Fields:
    return {"rotary_layers": tuple(bool((i + 1) % 4) for i in range(known["num_hidden_layers"]))}


def _olmo2(of: Of, known: Fields) -> Fields:
    windows = _windows(of, known, 4)
    more = {"architecture": "olmo3", "local_rope_theta": known.get("rope_theta", 1e4)} if windows else {}
    return {"norm_placement": "after", "qk_norm": "all", **windows, **more}


def _granite(of: Of, known: Fields) -> Fields:
    return {
        "embedding_scale": of.get("embedding_scale", 1.0),
        "residual_scale": of.get("residual_scale", 1.0),
        "attention_scale": of.get("attention.scale"),
        "logit_scale": 1 / of.get("logit_scale", 1.0),
    }


def _layer_norms(act: str, **more: Any) -> Fields:
    return {"norm": "layer_norm", "gated": False, "hidden_act": act, "mlp_bias": True, **more}


def _neox(of: Of, known: Fields) -> Fields:
    parallel = of.get("use_parallel_residual", True)
    return _layer_norms("gelu", qkv_by_head=True, parallel_residual=parallel)


def _gpt_oss(of: Of, known: Fields) -> Fields:
    return {
        "attention_sinks": True,
        **_windows(of, known, 2),
        "experts": _experts(of, scores="chosen", bias=True, alternating=True, limit=7.0),
    }


def _deepseek2(of: Of, known: Fields) -> Fields:
    keys = of.get("attention.key_length_mla") or of["attention.key_length"]
    turned, layers = of["rope.dimension_count"], known["num_hidden_layers"]
    values = of.get("attention.value_length_mla") or of["attention.value_length"]
    width, dense = of["expert_feed_forward_length"], of.get("leading_dense_block_count", 0)
    sigmoid = of.get("expert_gating_func", 1) == 2
    groups = of.get("expert_group_count", 1)
    experts = _experts(
        of,
        layers=tuple(i >= dense for i in range(layers)),
        shared_width=of.get("expert_shared_count", 0) * width,
        scores="sigmoid" if sigmoid else "softmax",
        normalize=of.get("expert_weights_norm", False),
        scale=of.get("expert_weights_scale", 1.0),
        choice_bias=sigmoid,
        groups=groups,
        groups_kept=of.get("expert_group_used_count", 1),
        group_best=2 if sigmoid else 1,
    )
    return {
        "architecture": "deepseek_v3" if sigmoid else "deepseek_v2",
        "rotary_interleaved": True,
        "num_key_value_heads": None,
        "latent": LatentConfig(
            kv_rank=of["attention.kv_lora_rank"],
            query_rank=of.get("attention.q_lora_rank"),
            plain_width=keys - turned,
            rotary_width=turned,
            value_width=values,
        ),
        "experts": experts,
    }


_AFTER = {"attention_output_norm": "post_attention_norm", "mlp_output_norm": "post_ffw_norm"}
_LATENT = {
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_norm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj": "attn_kv_a_mqa",
    "self_attn.kv_a_norm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
#: By their names. Mistral's and Falcon 3's models are llama's to them, and Mixtral's those with experts.
FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _llama, interleaved=True, also=("mistral", "mixtral")),
    "qwen2": Family("qwen2", _implied(qkv_bias=True)),
    "qwen3": Family("qwen3", _implied(qk_norm="head")),
    "qwen2moe": Family("qwen2_moe", _qwen2_moe),
    "qwen3moe": Family("qwen3_moe", _qwen3_moe),
    "gemma": Family("gemma", _gemma, plus_one=True),
    "gemma2": Family("gemma2", _gemma2, _AFTER, plus_one=True),
    "gemma3": Family("gemma3_text", _gemma3, _AFTER, plus_one=True),
    "phi3": Family("phi3", _phi3, {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}),
    "smollm3": Family("smollm3", _smollm3, interleaved=True),
    "olmo2": Family("olmo2", _olmo2, _AFTER, also=("olmo3",)),
    "granite": Family("granite", _granite, interleaved=True),
    "gptneox": Family(
        "gpt_neox",
        _neox,
        {"self_attn.qkv_proj": "attn_qkv"},
        eps="attention.layer_norm_epsilon",
        by_head=True,
    ),
    "glm4": Family(
        "glm4",
        _implied(rotary_interleaved=True, norm_placement="around"),
        {**_AFTER, "mlp.gate_up_proj": "ffn_up"},
    ),
    "starcoder2": Family(
        "starcoder2",
        lambda of, known: _layer_norms("gelu_pytorch_tanh"),
        eps="attention.layer_norm_epsilon",
    ),
    "gpt-oss": Family("gpt_oss", _gpt_oss, {"post_attention_layernorm": "post_attention_norm"}),
    "deepseek2": Family("deepseek_v2", _deepseek2, _LATENT, also=("deepseek_v3",)),
}

# ---- names ----

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.down_proj": "ffn_down",
    "mlp.up_proj": "ffn_up",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_gate": "ffn_gate_inp_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
}


def names_of(config: DecoderConfig, family: Family) -> NameMap:
    """Of a decoder's tensors. Of what has several experts each one's slice is named, `name[i]`.

    Args:
        config: says how many experts there are, and sizes of what is joined.
        family: whose files.
    """
    joined: dict[str, str | tuple[str, ...]] = {
        "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
        "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
        "mlp.shared_mlp.gate_up_proj": ("ffn_gate_shexp", "ffn_up_shexp"),
        **_LAYER,
        **family.rename,
    }
    rename: dict[str, str | tuple[str, ...]] = {
        "embed_tokens.*": "token_embd.*",
        "norm.*": "output_norm.*",
        "lm_head.*": "output.*",
        "layers.*.self_attn.sinks": "blk.*.attn_sinks.weight",
        "layers.*.mlp.choice_bias": "blk.*.exp_probs_b.bias",
    }
    for name, gguf_name in joined.items():
        each = (gguf_name,) if isinstance(gguf_name, str) else gguf_name
        rename[f"layers.*.{name}.*"] = tuple(f"blk.*.{stem}.*" for stem in each)
    if (experts := config.experts) is not None:
        gate_up = ("gate_up",) if experts.alternating else ("gate", "up")
        for name, parts in (("gate_up_proj", gate_up), ("down_proj", ("down",))):
            rename[f"layers.*.mlp.experts.{name}.*"] = tuple(
                f"blk.*.ffn_{part}_exps.*[{i}]" for i in range(experts.count) for part in parts
            )
    ignore = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"]
    if experts is not None and experts.alternating:
        ignore += ["blk.*.ffn_gate_exps.*", "blk.*.ffn_up_exps.*"]  # which are made one
    if config.latent is not None:
        ignore += ["blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight"]
    return NameMap(rename, ignore=tuple(ignore))


# ---- rotary scaling ----


def yarn_of(of: Of, original: int, truncate: bool) -> RotaryScaling:
    """The scaling of a file that says "yarn".

    Args:
        of: its metadata.
        original: tokens of the first training's context, if the file does not say.
        truncate: as of RotaryScaling, for which there is no key.
    """
    stretch = of.get("rope.scaling.yarn_log_multiplier")
    both = None if not stretch else round(stretch * 10, 4)  # DeepSeek's two numbers are equal
    return RotaryScaling(
        rope_type="yarn",
        factor=of["rope.scaling.factor"],
        original_max_position_embeddings=of.get("rope.scaling.original_context_length", original),
        beta_fast=of.get("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=of.get("rope.scaling.yarn_beta_slow", 1.0),
        truncate=truncate,
        mscale=both,
        mscale_all_dim=both,
    )


# ---- order ----


def ordered(family: Family, head_dim: int, name: str, x: Tensor) -> Tensor:
    """Rows [O, ..] as our model has them.

    Args:
        family: whose file.
        head_dim: width of a head.
        name: of the tensor in the file.
        x: its values, or what belongs to them row by row.
    """
    if family.interleaved and (".attn_q." in name or ".attn_k." in name):
        halves = x.reshape(x.shape[0] // head_dim, head_dim // 2, 2, -1)
        return halves.transpose(1, 2).reshape(x.shape)
    if family.by_head and ".attn_qkv." in name:
        return x.reshape(3, x.shape[0] // (3 * head_dim), head_dim, -1).transpose(0, 1).reshape(x.shape)
    return x
