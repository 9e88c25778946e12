"""GGUF files that are written: as the gguf package reads them, as a conversion of ours in the tests has them,
and the same model when it is read back."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from golden import tokenizers as recorded
from model_configs import CONFIGS, build, tokens
from quantized_files import GGUF_MODELS, gguf_arrays, gguf_metadata
from warptape.inference import __main__ as commands
from warptape.inference.gguf_export import KINDS, save_gguf
from warptape.inference.tokenizer import Tokenizer
from warptape.models import Decoder, DecoderConfig, RotaryScaling, gguf_codes
from warptape.models.gguf import GGUFFile
from warptape.models.gguf_codes import MAKERS, quantized

gguf = pytest.importorskip("gguf")
LLAMA3 = RotaryScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=8192)
PLAIN: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3},
    "qwen2": {"sliding_window": None, "layer_types": None},
    "qwen3": {},
    **GGUF_MODELS,
}


def model_of(name: str, **more: Any) -> Decoder:
    config = replace(CONFIGS[name], **{**PLAIN[name], **more})
    wt.manual_seed(0)
    return Decoder(config).eval()


@pytest.mark.parametrize("name", PLAIN)
def test_each_family_comes_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    model = model_of(name)
    save_gguf(model, path)
    read = gguf.GGUFReader(path)
    expected = gguf_arrays(model)
    assert {t.name for t in read.tensors} == expected.keys()
    for t in read.tensors:
        assert t.tensor_type == gguf.GGMLQuantizationType.F32
        # What norms have beside 1, and tables of rotary positions, are rounded in another order.
        assert np.allclose(t.data, expected[t.name], rtol=1e-6, atol=0), t.name
    for key, value in gguf_metadata(model.config).items():
        got = read.fields[key].contents()
        assert got == (pytest.approx(value) if isinstance(value, float) else value), key
    again = Decoder.from_pretrained(path)
    if "norm_plus_one" in model.config.norm:
        assert wt.allclose(again(tokens()), model(tokens()), rtol=1e-5, atol=1e-5)
    else:
        assert wt.equal(again(tokens()), model(tokens()))
    save_gguf(again, tmp_path / "y.gguf")
    assert (tmp_path / "y.gguf").read_bytes() == path.read_bytes() or "plus_one" in model.config.norm
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.gguf", "y.gguf"]


def test_settings_without_a_place(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"before")
    for name, named in (
        ("gpt2", "a gpt2 model has no GGUF file; those of deepseek_v2"),
        ("mistral", "no place for sliding_window=5"),
    ):
        with pytest.raises(ValueError, match=named):
            save_gguf(build(name), tmp_path / "x.gguf")
    with pytest.raises(ValueError, match="kind 'Q8_K' cannot be written, only F32, F16"):
        save_gguf(build("qwen3"), tmp_path / "x.gguf", "Q8_K")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"before"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MAKERS])
def test_kinds(kind: str, tmp_path: Path) -> None:
    """Matrices as the gguf package quantises them; and numbers as it means them."""
    path = tmp_path / "x.gguf"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    wt.manual_seed(0)
    model = Decoder(
        DecoderConfig(vocab_size=40, max_position_embeddings=32, num_key_value_heads=1, **sizes)
    ).eval()
    save_gguf(model, path, kind)
    type_ = gguf.GGMLQuantizationType[kind]
    read = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, array in gguf_arrays(model).items():
        want = type_ if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        assert read[name].tensor_type == want
        assert np.array_equal(read[name].data, gguf.quantize(array, want)), name
    again = Decoder.from_pretrained(path, dtype=wt.float32)
    kept = gguf.dequantize(read["output.weight"].data, type_)
    assert np.array_equal(again.lm_head.weight.detach().numpy(), kept)
    half = model.to(wt.bfloat16)
    save_gguf(half, path)
    assert wt.equal(Decoder.from_pretrained(path).lm_head.weight, half.lm_head.weight)


# ---- kinds that this package quantises: the package gguf says what their blocks mean ----


def numbers(seed: int = 0, rows: int = 32, width: int = 512) -> np.ndarray:
    """Of weights: some rows normal, some with long tails."""
    rng = np.random.default_rng(seed)
    both = (rng.standard_normal((rows // 2, width)), rng.standard_t(4, (rows // 2, width)))
    return (np.concatenate(both) * 0.02).astype(np.float32)


def error_of(kind: str, x: np.ndarray) -> float:
    """Root mean square of what is lost, of that of the numbers."""
    type_ = gguf.GGMLQuantizationType[kind]
    codes = quantized(kind, x) if kind in MAKERS else gguf.quantize(x, type_)
    lost = gguf.dequantize(codes, type_).astype(np.float64) - x
    return float(np.sqrt((lost**2).mean() / (x.astype(np.float64) ** 2).mean()))


@pytest.mark.parametrize("kind", MAKERS)
def test_own_kinds(kind: str, tmp_path: Path) -> None:
    """A file is read back, here and by the gguf package, as the same numbers to the bit."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 2}
    wt.manual_seed(0)
    config = DecoderConfig(vocab_size=40, max_position_embeddings=32, num_key_value_heads=1, **sizes)
    model, path, type_ = Decoder(config).eval(), tmp_path / "x.gguf", gguf.GGMLQuantizationType[kind]
    save_gguf(model, path, kind)
    read = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, array in gguf_arrays(model).items():
        if array.ndim == 1:
            assert read[name].tensor_type == gguf.GGMLQuantizationType.F32
            continue
        assert read[name].tensor_type == type_ and np.array_equal(read[name].data, quantized(kind, array))
        theirs = gguf.dequantize(read[name].data, type_)
        assert np.array_equal(GGUFFile(path).read(name).numpy(), theirs), name
        assert np.abs(theirs - array).max() < 0.5 * np.abs(array).max()
    head = gguf.dequantize(read["output.weight"].data, type_)
    again = Decoder.from_pretrained(path, dtype=wt.float32)
    assert np.array_equal(again.lm_head.weight.detach().numpy(), head)


@pytest.mark.parametrize("kind", MAKERS)
def test_codes_are_nearly_the_best(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a search over many more scales, and beside kinds with as many bits."""
    x = numbers()
    found = error_of(kind, x)
    monkeypatch.setattr(gguf_codes, "TRIES", np.linspace(-1.5, 1.5, 25))
    monkeypatch.setattr(gguf_codes, "ROUNDS", 3)
    monkeypatch.setattr(gguf_codes, "NEAR", tuple((i - 2, j - 2) for i in range(5) for j in range(5)))
    assert found <= 1.03 * error_of(kind, x)
    worse = {"Q3_K": "Q2_K", "Q4_K": "Q4_0", "IQ4_NL": "Q4_0", "Q5_K": "Q5_0", "Q6_K": "Q5_K"}.get(kind)
    assert worse is None or found < error_of(worse, x)
    assert found < {"Q2_K": 0.3, "Q3_K": 0.18}.get(kind, 0.1)


@pytest.mark.parametrize("kind", MAKERS)
def test_numbers_at_the_edges(kind: str) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    x = np.zeros((9, 256), np.float32)
    x[1], x[2], x[3, 5], x[4, 5] = 0.25, -0.25, 3.0, -3.0
    x[5, ::2], x[6, :128], x[7] = -1.0, 1.0, np.linspace(0, 7, 256)
    x[8] = np.float32(1e-30)
    back = gguf.dequantize(quantized(kind, x), type_)
    assert np.array_equal(back[0], x[0]) and np.isfinite(back).all()
    assert np.abs(back[1:8] - x[1:8]).max() < 0.7
    assert np.abs(back[1] - 0.25).max() < 2e-3 and abs(back[3, 5] - 3) < 0.01 and abs(back[4, 5] + 3) < 0.01
    assert np.array_equal(quantized(kind, x), np.concatenate([quantized(kind, row[None]) for row in x]))
    for value, match in ((np.nan, "not finite"), (np.inf, "not finite"), (3e38, "too large")):
        with pytest.raises(ValueError, match=match):
            quantized(kind, np.full((1, 256), value, np.float32))


@pytest.mark.parametrize("name", ["byte pairs", "byte pairs, no space first", "tekken", "cl100k_base"])
def test_tokenizers_come_back(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    case = recorded.cases()[name]
    recorded.write_case(tmp_path, case)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    own = Tokenizer(tmp_path)
    count = max(json.loads(own.library_json())["model"]["vocab"].values()) + 3
    end = own.encode(own.templates()[1]["eos_token"], add_special_tokens=False)[0]
    model = model_of("qwen3", vocab_size=count, eos_token_id=(end, 3))
    save_gguf(model, tmp_path / "x.gguf", tokenizer=own)
    again = Tokenizer(tmp_path / "x.gguf", count)
    rng = random.Random(3)
    for text in case["texts"] + [recorded.random_text(rng) for _ in range(50)]:
        assert again.encode(text) == own.encode(text)
        assert again.decode(own.encode(text)) == own.decode(own.encode(text))
    assert again.templates()[0] == {"default": "D", "tool_use": "T"}
    assert again.templates()[1].items() <= own.templates()[1].items()
    assert {end, 3} <= {*Decoder.from_pretrained(tmp_path / "x.gguf").config.eos_token_id}
    save_gguf(model, tmp_path / "y.gguf", tokenizer=again)
    assert (tmp_path / "y.gguf").read_bytes() == (tmp_path / "x.gguf").read_bytes()


def test_tokenizers_without_a_name(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for name, match in (("unigram", "type 'Unigram' are not supported"), ("o200k_base", "no merges lead to")):
        (tmp_path / name).mkdir()
        recorded.write_case(tmp_path / name, recorded.cases()[name])
        with pytest.raises(ValueError, match=match):
            save_gguf(model_of("qwen3"), tmp_path / "x.gguf", tokenizer=Tokenizer(tmp_path / name))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of("qwen3").save_pretrained(tmp_path)
    out = tmp_path / "x.gguf"
    assert commands.main(["pack", str(tmp_path), str(out), "--quantization", "F16"]) == 0
    assert "x.gguf: " in capsys.readouterr().out
    assert Decoder.from_pretrained(out).lm_head.weight.dtype == wt.float16
    assert commands.main(["pack", str(tmp_path), str(out), "--quantization", "int4"]) == 1
    assert "kind 'int4' cannot be written" in capsys.readouterr().err
