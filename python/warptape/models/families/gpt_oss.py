"""gpt-oss: attention with sinks, windows in every second layer, and clamped experts with biases."""

from __future__ import annotations

from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import BOTH_BIASES, Architecture, separate_names
from .llama import DEFAULTS, KEYS


def _names(config: Any) -> NameMap:
    """Matrices of all experts are one tensor there, [E, inputs, outputs]."""
    names, at = separate_names(config, {}), "layers.*.mlp.experts"

    def slices(name: str) -> tuple[str, ...]:
        return tuple(f"{at}.{name}[{i}]" for i in range(config.experts.count))

    each = ("gate_up_proj", "down_proj")
    rename = {f"{at}.{name}.weight": slices(name) for name in each}
    rename |= {f"{at}.{name}.bias": slices(f"{name}_bias") for name in each}
    return NameMap(
        {**rename, **names.rename},
        transpose=tuple(f"{at}.{name}" for name in each),
        prefix=names.prefix,
        ignore=names.ignore,
        sizes=names.sizes,
    )


_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
GPT_OSS: dict[str, Architecture] = {
    "gpt_oss": Architecture(
        "GptOssForCausalLM",
        {
            **KEYS,
            **BOTH_BIASES,
            "sliding_window": "sliding_window",
            "experts.count": "num_local_experts",
            "experts.per_token": "num_experts_per_tok",
            "experts.width": "intermediate_size",
            "experts.limit": "swiglu_limit",
            "experts.alpha": "swiglu_alpha",
        },
        {
            **DEFAULTS,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "norm_eps": 1e-5,
            "qkv_bias": True,
            "o_bias": True,
            "sliding_window": 128,
            "experts.count": 128,
            "experts.per_token": 4,
            "experts.limit": 7.0,
            "experts.alpha": 1.702,
        },
        _names,
        implied={
            "attention_sinks": True,
            "experts.scores": "chosen",
            "experts.bias": True,
            "experts.alternating": True,
        },
        full_every=2,
        theta=150000.0,
        scaling=_YARN,
    ),
}
