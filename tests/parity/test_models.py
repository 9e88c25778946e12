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
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
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
