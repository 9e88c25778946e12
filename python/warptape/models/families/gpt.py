"""GPT-2, and those with its layer norms and MLP and rotary positions: GPT-NeoX (Pythia), StarCoder2."""

from __future__ import annotations

from typing import Any

from ...distributed.checkpoint import GPT2, LLAMA, NameMap
from .declare import BOTH_BIASES, NO_TOKENS, SIZES, TOKENS, Architecture, same, separate_names


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
            **{f"layers.*.{name}.*": f"h.*.{hf_name}.*" for name, hf_name in inside.items()},
            "norm.*": "ln_f.*",
        },
        transpose=GPT2.transpose,
        prefix=GPT2.prefix,
        ignore=GPT2.ignore,
    )


def _neox_names(config: Any) -> NameMap:
    inside = {
        "self_attn.qkv_proj": "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    return NameMap(
        {
            "embed_tokens.*": "embed_in.*",
            **{f"layers.*.{name}.*": f"layers.*.{hf_name}.*" for name, hf_name in inside.items()},
            "norm.*": "final_layer_norm.*",
            "lm_head.*": "embed_out.*",
        },
        prefix="gpt_neox.",
        ignore=(
            *LLAMA.ignore,
            *(f"layers.*.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
        ),
    )


def _starcoder_names(config: Any) -> NameMap:
    return separate_names(config, {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}, gate_up=False)


_LAYER_NORMS = {"norm": "layer_norm", "gated": False}
_ROTARY_KEYS = {
    **SIZES,
    **same("max_position_embeddings", "tie_word_embeddings", "initializer_range"),
    **TOKENS,
}
GPTS: dict[str, Architecture] = {
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
            **same("initializer_range", "tie_word_embeddings"),
            **TOKENS,
        },
        {
            "intermediate_size": None,
            "hidden_act": "gelu_new",
            "norm_eps": 1e-5,
            **dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.1),
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            **NO_TOKENS,
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
        rotary=False,
    ),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM",
        {
            **_ROTARY_KEYS,
            **BOTH_BIASES,
            "parallel_residual": "use_parallel_residual",
            "attention_dropout": "attention_dropout",
            "norm_eps": "layer_norm_eps",
            **dict.fromkeys(("embedding_dropout", "residual_dropout"), "hidden_dropout"),
        },
        {
            "hidden_act": "gelu",
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
            **NO_TOKENS,
            "qkv_bias": True,
            "o_bias": True,
            "parallel_residual": True,
            "norm_eps": 1e-5,
            **dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.0),
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        _neox_names,
        implied={**_LAYER_NORMS, "mlp_bias": True, "qkv_by_head": True},
        partial=0.25,
        rotary_keys=("rotary_emb_base", "rotary_pct"),
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        {
            **_ROTARY_KEYS,
            **same("num_key_value_heads", "sliding_window", "attention_dropout"),
            **same("embedding_dropout", "residual_dropout"),
            **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), "use_bias"),
            "norm_eps": "norm_epsilon",
        },
        {
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "initializer_range": 0.018042,
            **NO_TOKENS,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "num_key_value_heads": 2,
            "sliding_window": None,
            "norm_eps": 1e-5,
            **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
            **dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.0),
        },
        _starcoder_names,
        implied=_LAYER_NORMS,
    ),
}
