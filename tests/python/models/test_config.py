"""Configs as Hugging Face publishes them, those that are written, and those that are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from model_configs import CONFIGS, SMALL
from warptape.models import DecoderConfig, EncoderConfig, RotaryScaling
from warptape.models.parts import ExpertsConfig, LatentConfig

# As in the folders of the models, before transformers 5.
LLAMA31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
MISTRAL: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
QWEN2: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = QWEN2 | {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
# As in the folders of the models.
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
MIXTRAL: dict[str, Any] = {
    **MISTRAL,
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201088,
}
_DEEPSEEK: dict[str, Any] = {
    "attention_bias": False,
    "ep_size": 1,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "v_head_dim": 128,
}
V2: dict[str, Any] = {
    **_DEEPSEEK,
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
V3: dict[str, Any] = {
    **_DEEPSEEK,
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}
GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_type": "cls_index",
    "vocab_size": 50257,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
PYTHIA: dict[str, Any] = {
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
PHI3: dict[str, Any] = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rope_scaling": None,
    "sliding_window": 2047,
    "vocab_size": 32064,
}


def test_gemma3() -> None:
    config = DecoderConfig.from_hf(GEMMA3)
    assert config.embedding_scale == math.sqrt(1152)
    assert config.attention_scale == 1 / 16
    assert (config.rope_theta, config.local_rope_theta) == (1000000, 10000)
    types = [config.layer_type(i) for i in range(26)]
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == [5, 11, 17, 23]


def test_pythia() -> None:
    config = DecoderConfig.from_hf(PYTHIA)
    assert config.rotary_width == 16
    assert config.parallel_residual and config.qkv_by_head and config.mlp_bias
    assert config.to_hf()["rotary_pct"] == 0.25


def test_rotary_layers_that_are_all_or_wrong() -> None:
    assert replace(CONFIGS["smollm3"], rotary_layers=(True,) * 3).rotary_layers is None
    for wrong in ((True,), (1, 0, 1), 3):
        with pytest.raises(ValueError, match="rotary_layers to be True or False for each of 3 layers"):
            replace(CONFIGS["smollm3"], rotary_layers=wrong)
    for change in ({"norm_placement": "inside"}, {"qk_norm": "none"}, {"logit_softcap": 0.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(CONFIGS["llama"], **change)
    with pytest.raises(ValueError, match=r"norm_placement to be .before., as its residual is parallel"):
        replace(CONFIGS["gpt-neox"], norm_placement="after")
    with pytest.raises(ValueError, match="num_attention_heads, as qkv_proj is sorted by heads"):
        replace(CONFIGS["gpt-neox"], num_key_value_heads=2)


def test_llama() -> None:
    config = DecoderConfig.from_hf(LLAMA31)
    assert config == DecoderConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RotaryScaling(rope_type="llama3", factor=8.0),
        bos_token_id=128000,
        eos_token_id=(128001, 128008, 128009),
    )
    renamed = {key: value for key, value in LLAMA31.items() if key not in ("rope_scaling", "rope_theta")}
    renamed["rope_parameters"] = {**LLAMA31["rope_scaling"], "rope_theta": 500000.0}  # transformers 5's
    assert DecoderConfig.from_hf(renamed) == config
    kept = {
        k: v for k, v in LLAMA31.items() if k not in ("pretraining_tp", "transformers_version", "use_cache")
    }
    written = config.to_hf()
    assert {k: written[k] for k in kept if k != "torch_dtype"} == {
        k: v for k, v in kept.items() if k != "torch_dtype"
    }


def test_others() -> None:
    mistral = DecoderConfig.from_hf(MISTRAL)
    assert mistral.sliding_window == 4096 and mistral.layer_type(31) == "sliding_attention"
    assert DecoderConfig.from_hf(MISTRAL | {"sliding_window": None}).layer_type(0) == "full_attention"
    qwen2 = DecoderConfig.from_hf(QWEN2)
    assert qwen2.qkv_bias and not qwen2.o_bias and qwen2.tie_word_embeddings and qwen2.sliding_window is None
    windowed = DecoderConfig.from_hf(QWEN2 | {"use_sliding_window": True})
    assert [windowed.layer_type(i) for i in (0, 20)] == ["full_attention"] * 2
    assert windowed.layer_type(21) == "sliding_attention" and windowed.sliding_window == 32768
    qwen3 = DecoderConfig.from_hf(QWEN3)
    assert qwen3.qk_norm and qwen3.head_dim == 128 and not qwen3.qkv_bias
    gpt2 = DecoderConfig.from_hf(GPT2)
    assert (gpt2.norm, gpt2.positions, gpt2.gated, gpt2.intermediate_size) == (
        "layer_norm",
        "learned",
        False,
        3072,
    )
    assert gpt2.tie_word_embeddings and gpt2.qkv_bias and gpt2.o_bias and gpt2.mlp_bias
    assert (gpt2.embedding_dropout, gpt2.residual_dropout, gpt2.attention_dropout) == (0.1, 0.1, 0.1)
    bert = EncoderConfig.from_hf(BERT)
    assert bert == EncoderConfig(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, pad_token_id=0
    )
    for config in (mistral, qwen2, windowed, qwen3, gpt2, bert):
        assert type(config).from_hf(config.to_hf()) == config


def test_published_mixtures() -> None:
    gemma = DecoderConfig.from_hf(GEMMA2)
    assert (gemma.attention_softcap, gemma.logit_softcap, gemma.attention_scale) == (50.0, 30.0, 1 / 16)
    assert [gemma.layer_type(i)[:4] for i in range(4)] == ["slid", "full"] * 2
    mixtral = DecoderConfig.from_hf(MIXTRAL)
    assert mixtral.experts == ExpertsConfig(count=8, per_token=2, width=14336, normalize=True)
    qwen = DecoderConfig.from_hf(QWEN3_MOE)
    assert qwen.experts == ExpertsConfig(count=128, per_token=8, width=768, normalize=True)
    assert DecoderConfig.from_hf(QWEN3_MOE | {"mlp_only_layers": [1]}).experts.layers[:3] == (
        True,
        False,
        True,
    )
    oss = DecoderConfig.from_hf(GPT_OSS)
    assert oss.attention_sinks and oss.sliding_window == 128 and oss.experts.limit == 7.0
    assert oss.rope_scaling is not None and not oss.rope_scaling.truncate
    lite, v3 = DecoderConfig.from_hf(V2), DecoderConfig.from_hf(V3)
    assert lite.latent == LatentConfig(kv_rank=512, plain_width=128, rotary_width=64, value_width=128)
    assert (lite.head_dim, lite.num_key_value_heads, lite.experts.shared_width) == (192, 16, 2816)
    assert lite.experts.layers[:2] == (False, True) and lite.experts.groups == 1
    assert v3.experts.groups == 8 and v3.experts.group_best == 2 and v3.experts.choice_bias
    assert v3.rope_scaling.amplitude == 1.0
    assert v3.rope_scaling.score_scale == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    for config in (gemma, mixtral, qwen, oss, lite, v3):
        assert DecoderConfig.from_hf(config.to_hf()) == config


@pytest.mark.parametrize("name", CONFIGS)
def test_written_configs_say_the_same(name: str) -> None:
    assert DecoderConfig.from_hf(CONFIGS[name].to_hf()) == CONFIGS[name]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"model_type": "mamba"},
            "unknown model_type 'mamba', which needs state space layers; nearest: llama; supported: deepseek",
        ),
        ({"model_type": None}, "unknown model_type None"),
        ({"model_type": ["llama"]}, "unknown model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config=.*gptq.* is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported: only 1.0"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "needs short_factor and long_factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0, 1.0]}},
            "rope_scaling to be of 64 short and long factors",
        ),
        (
            {"rope_scaling": {"type": "proportional", "factor": 2.0}},
            "'proportional' is not supported, only linear, dynamic, llama3, yarn, longrope",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": 1}}, "expected numbers above 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1}}, "beta_slow < beta_fast"),
        ({"model_type": "qwen3_next"}, "needs linear attention; nearest: qwen3_moe; supported"),
        (
            {"model_type": "other", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 9}
            | {"norm_topk_prob": True, "mamba_heads": 3},
            "'other'; nearest: qwen3_moe, without mamba_heads; supported",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "numbers above 0"),
        ({"rope_scaling": LLAMA31["rope_scaling"] | {"low_freq_factor": 4.0}}, "low_freq_factor < high"),
        ({"rope_scaling": [1]}, "rope_scaling to be a dict"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "by types of layers"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_theta": -1.0}, "rope_theta to be a finite number, not negative"),
        ({"rope_theta": 0}, "rope_theta to be above 0"),
        ({"hidden_act": "xielu"}, "hidden_act to be one of silu, gelu, gelu_new, gelu_pytorch_tanh, relu"),
        ({"hidden_size": "4096"}, "hidden_size to be a whole number above 0, got '4096'"),
        ({"hidden_size": True}, "hidden_size to be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": 1 << 60}, "vocab_size"),
        ({"num_hidden_layers": 1 << 39}, "num_hidden_layers to be at most 10000"),
        (
            {"num_attention_heads": 7, "head_dim": None},
            "num_attention_heads to be a divisor of hidden_size, 4096",
        ),
        ({"num_key_value_heads": 5}, "num_key_value_heads to be a divisor of num_attention_heads, 32"),
        ({"head_dim": 5}, "head_dim to be even"),
        ({"rms_norm_eps": float("nan")}, "norm_eps to be a finite number"),
        ({"rms_norm_eps": None}, "norm_eps to be a finite number"),
        ({"attention_bias": "yes"}, "qkv_bias to be True or False"),
        ({"attention_dropout": 1.5}, "attention_dropout to be a probability"),
        ({"eos_token_id": ["x"]}, "eos_token_id"),
    ],
)
def test_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DecoderConfig.from_hf(LLAMA31 | change)


def test_refused_of_others() -> None:
    for data, match in (
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
        (GEMMA3 | {"query_pre_attn_scalar": "256"}, "a gemma3_text config with a value of a wrong type"),
        (GEMMA3 | {"query_pre_attn_scalar": 0}, "a gemma3_text config with a value of a wrong type"),
        (GEMMA3 | {"hidden_size": None}, "a gemma3_text config with a value of a wrong type"),
        (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern to be a whole number above 0"),
        (PYTHIA | {"rotary_pct": 0.0}, "head_dim to be even in the part that rotary positions turn"),
        (PYTHIA | {"rotary_pct": "x"}, "rotary_factor to be a finite number"),
        (PHI3 | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "needs short_factor and long"),
        (PHI3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaling 'linear' is not supported"),
        (MIXTRAL | {"num_local_experts": 0}, "mixtral: ExpertsConfig: expected count to be a whole number"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "per_token to be at most the 8 experts"),
        (V3 | {"n_group": 3}, "groups to be a divisor of 256 experts"),
        (V3 | {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported: only 'sigmoid'"),
        (V3 | {"kv_lora_rank": "x"}, "deepseek_v3: LatentConfig: expected kv_rank to be a whole number"),
        (V3 | {"v_head_dim": 999}, "value_width to be at most a key's 192 numbers, got 999"),
        (V3 | {"moe_intermediate_size": None}, "a deepseek_v3 config with a value of a wrong type"),
        (V2 | {"topk_method": "other"}, "topk_method='other' is not supported"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention=True is not supported: only False"),
        (QWEN2 | {"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
        (QWEN2 | {"use_sliding_window": True, "layer_types": 3}, "layer_types"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": None}, "sliding_window"),
        (
            QWEN2 | {"use_sliding_window": True, "num_hidden_layers": 1 << 39},
            "num_hidden_layers to be at most",
        ),
        ({"model_type": "llama", "hidden_size": 8}, "needs vocab_size, intermediate_size, num_hidden_layers"),
        ([], "expected a dict"),
    ):
        with pytest.raises(ValueError, match=match):
            DecoderConfig.from_hf(data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="position_embedding_type='relative_key' is not supported"):
        EncoderConfig.from_hf(BERT | {"position_embedding_type": "relative_key"})
    with pytest.raises(ValueError, match="unknown model_type 'gpt2'; supported: bert"):  # nothing is near it
        EncoderConfig.from_hf(GPT2)
    with pytest.raises(ValueError, match="num_attention_heads to be a divisor"):
        EncoderConfig.from_hf(BERT | {"num_attention_heads": 7})


def test_what_an_architecture_cannot_have_is_not_written() -> None:
    for config, match in (
        (replace(CONFIGS["llama"], qk_norm=True), "a llama model cannot have qk_norm='head'"),
        (replace(CONFIGS["llama"], sliding_window=3), "cannot have sliding_window=3"),
        (replace(CONFIGS["llama"], qkv_bias=True), "cannot have"),  # it has one key for two of ours
        (replace(CONFIGS["gpt2"], num_key_value_heads=2), "num_key_value_heads=2"),
        (replace(CONFIGS["mistral"], layer_types=CONFIGS["qwen2"].layer_types), "layer_types="),
    ):
        with pytest.raises(ValueError, match=match):
            config.to_hf()


def test_one_way_to_say_it() -> None:
    def windows(kinds: tuple[str, ...]) -> DecoderConfig:
        return DecoderConfig(**SMALL, sliding_window=4, layer_types=kinds)

    assert windows(("sliding_attention",) * 3) == DecoderConfig(**SMALL, sliding_window=4)
    assert windows(("full_attention",) * 3) == DecoderConfig(**SMALL)
    config = DecoderConfig(**{**SMALL, "intermediate_size": None})
    assert (config.intermediate_size, config.head_dim, config.num_key_value_heads) == (96, 6, 4)


def test_llama3_frequencies() -> None:
    """By the scalar code that Meta published with Llama 3.1."""
    from warptape.models.rotary import Rotary

    scaling = RotaryScaling(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    expected = []
    for i in range(16):
        speed = 500.0 ** (-2 * i / 32)
        wave = 2 * math.pi / speed
        if wave < 64 / 4.0:
            expected.append(speed)
        elif wave > 64 / 1.0:
            expected.append(speed / 8.0)
        else:
            smooth = (64 / wave - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * speed / 8.0 + smooth * speed)
    assert len({round(a / 500.0 ** (-2 * i / 32), 6) for i, a in enumerate(expected)}) > 3  # all three cases
    found = Rotary(32, 500.0, scaling).frequencies().tolist()
    assert found == pytest.approx(expected, rel=1e-6)
