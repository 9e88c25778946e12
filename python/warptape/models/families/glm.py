"""GLM-4: half of each head is turned, neighbours together; gate and up are one matrix."""

from __future__ import annotations

from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import AROUND, Architecture, separate_names
from .llama import DEFAULTS, KEYS


def _glm_names(config: Any) -> NameMap:
    return separate_names(config, {}, gate_up=False)


def _glm4_names(config: Any) -> NameMap:
    after = {"attention_output_norm": "post_self_attn_layernorm", "mlp_output_norm": "post_mlp_layernorm"}
    return separate_names(config, after, gate_up=False)


_KEYS = {**KEYS, "qkv_bias": "attention_bias"}
_DEFAULTS = {
    **DEFAULTS,
    "qkv_bias": True,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "norm_eps": 1.5625e-07,
    "pad_token_id": 151329,
}
GLMS: dict[str, Architecture] = {
    "glm": Architecture(
        "GlmForCausalLM", _KEYS, _DEFAULTS, _glm_names, implied={"rotary_interleaved": True}, partial=0.5
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        _KEYS,
        _DEFAULTS,
        _glm4_names,
        implied={"rotary_interleaved": True, **AROUND},
        partial=0.5,
    ),
}
