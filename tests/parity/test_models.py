"""Folders of random models against transformers: what it wrote is read here, what is written here it reads.

Each architecture in two configs: its plainest, and one with the options that it has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.models import Decoder, DecoderConfig, Encoder, EncoderConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

VOCABULARY, CONTEXT, PROMPTS, NEW = 96, 64, 20, 32
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,  # so that likeliest tokens differ from each other
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
}
PADDED = {"pad_token_id": None}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 4.0,
}
MIXTURE = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 28}
YARN_UNCUT = YARN | {"truncate": False}
LATENT = SMALL | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "first_k_dense_replace": 1,
}
V3 = LATENT | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2-untied": (
        "GPT2",
        GPT2 | {"n_inner": 100, "tie_word_embeddings": False, "activation_function": "relu"},
    ),
    "llama2": ("Llama", SMALL),
    "llama3": (
        "Llama",
        GROUPED | {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama-linear": ("Llama", GROUPED | {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 9}),
    "mistral-full": ("Mistral", GROUPED | {"sliding_window": None, "hidden_act": "gelu"}),
    "qwen2": ("Qwen2", GROUPED | {"tie_word_embeddings": True}),
    "qwen2-sliding": ("Qwen2", GROUPED | SLIDING),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 12}),
    "qwen3-sliding": ("Qwen3", GROUPED | SLIDING | {"head_dim": 16, "attention_bias": True}),
    "llama-yarn": ("Llama", GROUPED | {"rope_parameters": YARN}),
    "phi3": ("Phi3", GROUPED | PADDED),
    "phi3-sliding": (
        "Phi3",
        GROUPED
        | PADDED
        | {"sliding_window": 9, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "smollm3": ("SmolLM3", GROUPED | PADDED | {"num_hidden_layers": 5}),
    "smollm3-biases": (
        "SmolLM3",
        GROUPED
        | PADDED
        | {"no_rope_layers": [0, 1, 0], "attention_bias": True, "tie_word_embeddings": False},
    ),
    "olmo2": ("Olmo2", GROUPED),
    "olmo2-biases": ("Olmo2", SMALL | {"attention_bias": True, "rms_norm_eps": 1e-3}),
    "olmo3": ("Olmo3", GROUPED | {"sliding_window": 9, "num_hidden_layers": 4}),
    "olmo3-yarn": (
        "Olmo3",
        GROUPED
        | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "granite": ("Granite", GROUPED | MULTIPLIERS),
    "granite-biases": ("Granite", GROUPED | MULTIPLIERS | {"attention_bias": True, "mlp_bias": True}),
    "granite4": (
        "GraniteMoeHybrid",
        GROUPED
        | MULTIPLIERS
        | {
            "intermediate_size": 56,
            "shared_intermediate_size": 56,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
        }
        | {"layer_types": ["attention"] * 3, "position_embedding_type": "rope", "mamba_n_heads": 1},
    ),
    "gemma": ("Gemma", GROUPED | PADDED | {"head_dim": 12}),
    "gemma-untied": (
        "Gemma",
        SMALL
        | PADDED
        | {"num_key_value_heads": 6, "head_dim": 8, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "gemma3": (
        "Gemma3Text",
        GROUPED
        | PADDED
        | {"head_dim": 12, "num_hidden_layers": 7, "sliding_window": 9, "query_pre_attn_scalar": 20},
    ),
    "gemma3-capped": (
        "Gemma3Text",
        GROUPED
        | PADDED
        | {"head_dim": 16, "sliding_window": 5, "final_logit_softcapping": 3.0}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            }
        },
    ),
    "gemma2": ("Gemma2", GROUPED | PADDED | {"head_dim": 12, "sliding_window": 9}),
    "gemma2-capped": (
        "Gemma2",
        GROUPED
        | PADDED
        | {"head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": 5, "attention_bias": True}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "mixtral": ("Mixtral", GROUPED | {"num_local_experts": 4}),
    "mixtral-sliding": (
        "Mixtral",
        GROUPED | {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9, "head_dim": 12},
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        MIXTURE | {"num_experts": 5, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2},
    ),
    "qwen2-moe-normed": (
        "Qwen2Moe",
        MIXTURE
        | {"num_experts": 6, "shared_expert_intermediate_size": 20, "mlp_only_layers": [2]}
        | {"norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True, "sliding_window": 7},
    ),
    "qwen3-moe": ("Qwen3Moe", MIXTURE | {"num_experts": 8, "head_dim": 12, "norm_topk_prob": True}),
    "qwen3-moe-sliding": (
        "Qwen3Moe",
        MIXTURE
        | {"num_experts": 4, "attention_bias": True, "mlp_only_layers": [0], "head_dim": 8}
        | {"use_sliding_window": True, "sliding_window": 7},
    ),
    "gpt-oss": (
        "GptOss",
        GROUPED
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 9}
        | {"rope_parameters": YARN_UNCUT, "num_hidden_layers": 4},
    ),
    "gpt-oss-clamped": (
        "GptOss",
        GROUPED
        | {"num_local_experts": 6, "num_experts_per_tok": 4, "head_dim": 12, "sliding_window": 5}
        | {"attention_bias": False, "swiglu_limit": 1.0, "swiglu_alpha": 1.2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "deepseek-v2": ("DeepseekV2", LATENT),
    "deepseek-v2-grouped": (
        "DeepseekV2",
        LATENT
        | {"q_lora_rank": 20, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {"attention_bias": True, "routed_scaling_factor": 3.0, "n_shared_experts": 1},
    ),
    "deepseek-v3": ("DeepseekV3", V3),
    "deepseek-v3-yarn": (
        "DeepseekV3",
        V3
        | {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False, "attention_bias": True}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "phi3-longrope": (
        "Phi3",
        GROUPED
        | PADDED
        | {"original_max_position_embeddings": CONTEXT}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "factor": 1.5,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [2.0, 2.1, 2.2, 2.3],
            }
        },
    ),
    "gpt-neox": ("GPTNeoX", SMALL),
    "gpt-neox-serial": (
        "GPTNeoX",
        SMALL
        | {"use_parallel_residual": False, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_theta": 1e3, "partial_rotary_factor": 1.0, "rope_type": "default"}},
    ),
    "glm": ("Glm", GROUPED | PADDED | {"head_dim": 16}),
    "glm4": ("Glm4", GROUPED | PADDED | {"head_dim": 12, "attention_bias": False}),
    "starcoder2": ("Starcoder2", GROUPED),
    "starcoder2-sliding": (
        "Starcoder2",
        GROUPED | {"sliding_window": 9, "use_bias": False, "tie_word_embeddings": False},
    ),
}
BERTS: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "bert-types": SMALL | {"type_vocab_size": 3, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randomise(model: Any) -> Any:
    """Biases and norms have random values too: zeros and ones would hide one that is left out."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model.eval()


def theirs(case: str, folder: Path, **options: Any) -> Any:
    name, config = CASES[case]
    torch.manual_seed(0)
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name.removesuffix('Text')}ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**config)
    config._attn_implementation = "eager"
    model = randomise(getattr(transformers, head)(config))
    model.save_pretrained(folder, **options)
    return model


def prompts(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, VOCABULARY, (count, length))


def near(ours: wt.Tensor, expected: Any, relative: float = 1e-4) -> None:
    expected = expected.detach().numpy()
    error = np.abs(ours.detach().numpy() - expected).max() / np.abs(expected).max()
    assert error <= relative, f"relative error {error}"


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    other = theirs(case, tmp_path)
    tokens = prompts(2, 40)
    with torch.no_grad():
        near(Decoder.from_pretrained(tmp_path)(wt.from_numpy(tokens)), other(torch.from_numpy(tokens)).logits)


def greedy(model: Any, tokens: Any, count: int) -> tuple[Any, Any]:
    """Their likeliest tokens [B, T + count], and at each new one the gap between the two best logits."""
    gaps = []
    with torch.no_grad():
        past = model(tokens, use_cache=True)
        for _ in range(count):
            best = past.logits[:, -1].topk(2)
            gaps.append(best.values[:, 0] - best.values[:, 1])
            step = best.indices[:, :1]
            tokens = torch.cat([tokens, step], 1)
            past = model(step, past_key_values=past.past_key_values, use_cache=True)
    return tokens.numpy(), torch.stack(gaps, 1).numpy()


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens(case: str, tmp_path: Path) -> None:
    other = theirs(case, tmp_path)
    model, equal = Decoder.from_pretrained(tmp_path), 0
    for length in (1, 5, 12, 30):
        tokens = prompts(PROMPTS // 4, length)
        expected, gaps = greedy(other, torch.from_numpy(tokens), NEW)
        got = model.generate(wt.from_numpy(tokens), NEW).numpy()
        for mine, other_row, gap in zip(got, expected, gaps):
            differs = np.flatnonzero(mine != other_row)
            # After a token that was a matter of rounding the rest is another text.
            assert differs.size == 0 or gap[differs[0] - length] < 1e-4, (mine, other_row, gap)
            equal += differs.size == 0
    assert equal >= PROMPTS - 1, "near ties are rare; most sequences are equal throughout"


@pytest.mark.parametrize("case", CASES)
def test_written_folders_are_read_by_transformers(case: str, tmp_path: Path) -> None:
    other = theirs(case, tmp_path / "theirs", max_shard_size="20KB")  # several files and their index
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    model = Decoder.from_pretrained(tmp_path / "theirs")
    for size in ("5GB", 20_000):
        folder = tmp_path / str(size)
        model.save_pretrained(folder, max_shard_size=size)
        assert (folder / "model.safetensors.index.json").exists() == (size == 20_000)
        again, told = type(other).from_pretrained(folder, output_loading_info=True)
        assert not any(told.values()), told
        state = again.state_dict()
        assert state.keys() == other.state_dict().keys()
        for name, value in other.state_dict().items():
            assert torch.equal(state[name], value), name
        tokens = torch.from_numpy(prompts(2, 40))
        again.config._attn_implementation = "eager"
        with torch.no_grad():
            assert torch.equal(again.eval()(tokens).logits, other(tokens).logits)  # the config is the same


@pytest.mark.parametrize("case", ["gpt2", "llama3"])
def test_bfloat16(case: str, tmp_path: Path) -> None:
    other = theirs(case, tmp_path).bfloat16()
    other.save_pretrained(tmp_path)
    model = Decoder.from_pretrained(tmp_path)
    assert model.lm_head.weight.dtype == wt.bfloat16
    assert Decoder.from_pretrained(tmp_path, dtype=wt.float32).lm_head.weight.dtype == wt.float32
    model.save_pretrained(tmp_path / "back")
    again = type(other).from_pretrained(tmp_path / "back", dtype="auto")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), other.parameters()))
    tokens = prompts(2, 20)
    expected = other.float()(torch.from_numpy(tokens)).logits
    near(model(wt.from_numpy(tokens)).float(), expected, 0.05)


def test_gradients(tmp_path: Path) -> None:
    other = theirs("qwen3-sliding", tmp_path)
    model, tokens = Decoder.from_pretrained(tmp_path), prompts(2, 20)
    other(torch.from_numpy(tokens)).logits.logsumexp(-1).sum().backward()
    model(wt.from_numpy(tokens)).logsumexp(-1).sum().backward()
    layer, of = model.layers[1].self_attn, other.model.layers[1].self_attn
    parts = [getattr(of, f"{part}_proj").weight.grad for part in "qkv"]
    near(layer.qkv_proj.weight.grad, torch.cat(parts))
    near(layer.q_norm.weight.grad, of.q_norm.weight.grad)
    near(model.embed_tokens.weight.grad, other.model.embed_tokens.weight.grad)


def bert(case: str, kind: str = "BertModel") -> Any:
    torch.manual_seed(0)
    return randomise(getattr(transformers, kind)(transformers.BertConfig(**BERTS[case])))


@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta"])
def test_roberta(name: str, tmp_path: Path) -> None:
    """Texts of several lengths, padded: positions count the tokens that are no padding."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL | {"type_vocab_size": 1, "layer_norm_eps": 1e-5})
    other = randomise(getattr(transformers, f"{name}Model")(config))
    other.save_pretrained(tmp_path / "theirs")
    model = Encoder.from_pretrained(tmp_path / "theirs")
    tokens = prompts(3, CONTEXT - 2)
    tokens[tokens == 1] = 2
    mask = np.arange(CONTEXT - 2) < np.array([[CONTEXT - 2], [11], [1]])
    tokens = np.where(mask, tokens, 1)
    with torch.no_grad():
        expected = other(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    got = model(wt.from_numpy(tokens), attention_mask=wt.from_numpy(mask))
    near(got.last_hidden_state, expected.last_hidden_state)
    near(got.pooler_output, expected.pooler_output)
    model.save_pretrained(tmp_path / "ours")
    again = getattr(transformers, f"{name}Model").from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert torch.equal(
            again(torch.from_numpy(tokens)).last_hidden_state, other(torch.from_numpy(tokens))[0]
        )
    with pytest.raises(ValueError, match=f"{CONTEXT} tokens are more than its positions, {CONTEXT - 2}"):
        model(wt.zeros(1, CONTEXT, dtype=wt.int64))


MODERN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "other keys": {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "hidden_activation": "relu",
                   "local_attention": 9,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "all full": {"layer_types": ["full_attention"] * 3},
}  # fmt: skip


@pytest.mark.parametrize("case", MODERN)
def test_modernbert(case: str, tmp_path: Path) -> None:
    """Padded texts of several lengths, longer than the window; and what is written back."""
    torch.manual_seed(0)
    sizes = {key: value for key, value in SMALL.items() if key != "max_position_embeddings"}
    sizes |= {"local_attention": 6, "pad_token_id": 0, "max_position_embeddings": CONTEXT, **MODERN[case]}
    other = randomise(transformers.ModernBertModel(transformers.ModernBertConfig(**sizes)))
    other.config._attn_implementation = "eager"
    other.save_pretrained(tmp_path / "theirs")
    model, tokens = Encoder.from_pretrained(tmp_path / "theirs"), prompts(3, 30)
    mask = (np.arange(30) < np.array([[30], [11], [1]])).astype(np.int64)
    for given in ({}, {"attention_mask": mask}):
        with torch.no_grad():
            expected = other(torch.from_numpy(tokens), **{k: torch.from_numpy(v) for k, v in given.items()})
        got = model(wt.from_numpy(tokens), **{k: wt.from_numpy(v) for k, v in given.items()})
        there = mask.astype(bool) if given else np.ones_like(mask, bool)
        found = got.last_hidden_state.detach().numpy()[there]
        wanted = expected.last_hidden_state.numpy()[there]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    model.save_pretrained(tmp_path / "back")
    again, told = transformers.ModernBertModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told.values()), told
    for key in ("layer_types", "local_attention", "rope_parameters"):
        if case != "all full" and not (case == "other keys" and key == "local_attention"):
            assert getattr(again.config, key) == getattr(other.config, key)
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("case", BERTS)
def test_bert(case: str, tmp_path: Path) -> None:
    other = bert(case)
    other.save_pretrained(tmp_path / "theirs")
    model = Encoder.from_pretrained(tmp_path / "theirs")
    tokens, rng = prompts(3, 30), np.random.default_rng(3)
    types = rng.integers(0, other.config.type_vocab_size, tokens.shape)
    mask = (np.arange(30) < np.array([[30], [11], [1]])).astype(np.int64)
    for mine, given in (({}, {}), ({"token_type_ids": types, "attention_mask": mask},) * 2):
        with torch.no_grad():
            expected = other(torch.from_numpy(tokens), **{k: torch.from_numpy(v) for k, v in given.items()})
        got = model(wt.from_numpy(tokens), **{k: wt.from_numpy(v) for k, v in mine.items()})
        near(got.last_hidden_state, expected.last_hidden_state)
        near(got.pooler_output, expected.pooler_output)
    model.save_pretrained(tmp_path / "back", max_shard_size=50_000)
    again, told = transformers.BertModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told.values()), told
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


def test_bert_of_another_task(tmp_path: Path) -> None:
    """Its head is left out, and it has no pooler."""
    other = bert("bert", "BertForMaskedLM")
    other.save_pretrained(tmp_path)
    model, tokens = Encoder.from_pretrained(tmp_path), prompts(2, 9)
    got = model(wt.from_numpy(tokens))
    assert got.pooler_output is None and model.config.pooler is False
    near(got.last_hidden_state, other.bert(torch.from_numpy(tokens)).last_hidden_state)


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification"])
@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "ModernBert"])
def test_heads(name: str, task: str, tmp_path: Path) -> None:
    """Of padded texts, and of the same without padding in one row; and what is written back."""
    torch.manual_seed(0)
    sizes = SMALL | ({"local_attention": 6, "classifier_pooling": "mean"} if name == "ModernBert" else {})
    sizes |= {"pad_token_id": 1, "id2label": {0: "a", 1: "b", 2: "c"}, "max_position_embeddings": CONTEXT}
    kind = getattr(transformers, f"{name}For{task}")
    other = randomise(kind(getattr(transformers, f"{name}Config")(**sizes)))
    other.config._attn_implementation = "eager"
    other.save_pretrained(tmp_path / "theirs")
    model, lengths = Encoder.from_pretrained(tmp_path / "theirs"), (30, 11, 1)
    tokens = prompts(3, 30)
    tokens[tokens == 1] = 2
    mask = np.arange(30) < np.array(lengths)[:, None]
    tokens = np.where(mask, tokens, 1)
    with torch.no_grad():
        expected = other(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    padded = model(wt.from_numpy(tokens), attention_mask=wt.from_numpy(mask)).logits
    row = model(wt.from_numpy(tokens[mask][None]), lengths=lengths).logits
    wanted = expected.logits if task.startswith("Sequence") else expected.logits[torch.from_numpy(mask)]
    near(row if task.startswith("Sequence") else row[0], wanted, 1e-5)
    near(padded if task.startswith("Sequence") else padded[wt.from_numpy(mask)], wanted, 1e-5)
    model.save_pretrained(tmp_path / "ours")
    again, told = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()) and again.config.id2label == other.config.id2label, told
    state = other.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in again.state_dict().items())


@pytest.mark.parametrize("case", CASES)
def test_configs(case: str, tmp_path: Path) -> None:
    """What a config does not say means what it means to transformers."""
    theirs(case, tmp_path)
    config = Decoder.from_pretrained(tmp_path).config
    written = json.loads((tmp_path / "config.json").read_text())
    kind = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    assert type(config).from_hf(kind) == config == type(config).from_hf(written)
    again = transformers.AutoConfig.for_model(**config.to_hf()).to_dict()
    # What was derived, as the inner width of GPT-2's MLP, is written out.
    changed = {key for key, value in kind.items() if again.get(key) != value and value is not None}
    assert changed <= {"architectures", "dtype", "transformers_version", "_name_or_path", "torch_dtype"}


def test_defaults() -> None:
    """Of configs with nothing but sizes."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    llama = {key: SMALL[key] for key in (*sizes, "max_position_embeddings")}
    gpt2 = {key: value for key, value in GPT2.items() if key.startswith(("n_", "vocab"))}
    of = {"gpt2": gpt2, "llama": llama, "mistral": llama | {"num_attention_heads": 8}}
    of |= dict.fromkeys(("qwen2", "qwen3"), llama | {"num_attention_heads": 32, "hidden_size": 64})
    for kind, few in [*of.items(), ("bert", {key: SMALL[key] for key in sizes})]:
        config_class = EncoderConfig if kind == "bert" else DecoderConfig
        whole = transformers.AutoConfig.for_model(kind, **few).to_dict()
        assert config_class.from_hf({"model_type": kind, **few}) == config_class.from_hf(whole)
    few = {"model_type": "qwen2", **of["qwen2"], "num_hidden_layers": 30, "use_sliding_window": True}
    whole = transformers.AutoConfig.for_model(**few).to_dict()
    assert DecoderConfig.from_hf(few) == DecoderConfig.from_hf(whole)


def test_recorded_numbers(tmp_path: Path) -> None:
    """What tests/golden compares with is what transformers computes now."""
    from golden import models, record_models

    for name, numbers in models.recorded().items():
        assert np.allclose(record_models.computed(name, tmp_path / name), numbers, rtol=1e-4, atol=1e-4)
