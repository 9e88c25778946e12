"""Gemma, Gemma 2, Gemma 3's text: norms multiply by 1 + weight, and embeddings are scaled by their width."""

from __future__ import annotations

import math
from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import AROUND, BOTH_BIASES, NO_BIASES, Architecture, Read, separate_names
from .llama import DEFAULTS, KEYS, llama_names


def _sandwich_names(config: Any) -> NameMap:
    return separate_names(
        config,
        {
            "attention_output_norm": "post_attention_layernorm",
            "post_attention_layernorm": "pre_feedforward_layernorm",
            "mlp_output_norm": "post_feedforward_layernorm",
        },
    )


_DEFAULTS = {
    **DEFAULTS,
    **NO_BIASES,
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_IMPLIED = {
    "norm": "rms_norm_plus_one",
    "embedding_scale": lambda data: math.sqrt(data["hidden_size"]),
}
_ROOT = Read(lambda scalar: 1 / math.sqrt(scalar), lambda scale: round(1 / scale**2))
_SANDWICH_KEYS = {
    **KEYS,
    **BOTH_BIASES,
    "hidden_act": "hidden_activation",
    "sliding_window": "sliding_window",
    "attention_scale": "query_pre_attn_scalar",
    "logit_softcap": "final_logit_softcapping",
}
_SANDWICH_DEFAULTS = {
    **_DEFAULTS,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "attention_scale": 256,
}
GEMMAS: dict[str, Architecture] = {
    "gemma": Architecture(
        "GemmaForCausalLM",
        {**KEYS, **BOTH_BIASES},
        {**_DEFAULTS, "num_key_value_heads": 16},
        llama_names,
        implied=_IMPLIED,
        only={"use_bidirectional_attention": False},
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        {**_SANDWICH_KEYS, "attention_softcap": "attn_logit_softcapping"},
        {**_SANDWICH_DEFAULTS, "logit_softcap": 30.0, "attention_softcap": 50.0},
        _sandwich_names,
        implied={**_IMPLIED, **AROUND},
        read={"attention_scale": _ROOT},
        only={"use_bidirectional_attention": False},
        full_every=2,
    ),
    "gemma3_text": Architecture(
        "Gemma3ForCausalLM",
        _SANDWICH_KEYS,
        {**_SANDWICH_DEFAULTS, "logit_softcap": None},
        _sandwich_names,
        implied={**_IMPLIED, **AROUND, "qk_norm": "head"},
        read={"attention_scale": _ROOT},
        only={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        full_every=6,
        theta=1e6,
        local_theta=1e4,
    ),
}
