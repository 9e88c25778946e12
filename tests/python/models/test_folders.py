"""Hugging Face's folders: read, written, and refused when something in them is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
from model_configs import BERT, CONFIGS, MODERN, V, build, tokens
from warptape.distributed.checkpoint import CheckpointException
from warptape.inference.linear import pack_
from warptape.models import Decoder, Encoder
from warptape.utils import safetensors as st


def equal(a: Any, b: Any) -> bool:
    """Two models, to the bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(
        wt.equal(value, other[name]) and value.dtype == other[name].dtype for name, value in mine.items()
    )


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / st.SINGLE)


def rewrite(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    safetensors.numpy.save_file(contiguous, folder / st.SINGLE, {"format": "pt"})


@pytest.mark.parametrize("size", ["5GB", 4000])
@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip(name: str, size: Any, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / st.INDEX).exists() == (size == 4000)
    again = Decoder.from_pretrained(tmp_path)
    assert equal(model, again) and again.config == model.config and not again.training
    assert (again.lm_head.weight is again.embed_tokens.weight) == model.config.tie_word_embeddings
    assert wt.equal(again(tokens()), model(tokens()))
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        assert p.requires_grad == q.requires_grad


def test_names_and_shapes_are_theirs(tmp_path: Path) -> None:
    model = build("gpt2")
    model.save_pretrained(tmp_path)
    found = arrays_of(tmp_path)
    inside = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    names = {f"h.{i}.{part}.{kind}" for i in range(3) for part in inside for kind in ("weight", "bias")}
    names |= {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"}
    assert found.keys() == {f"transformer.{name}" for name in names}  # and no head, which is tied
    of = model.layers[1]
    for theirs, ours in (("attn.c_attn", of.self_attn.qkv_proj), ("mlp.c_proj", of.mlp.down_proj)):
        assert np.array_equal(found[f"transformer.h.1.{theirs}.weight"], ours.weight.detach().numpy().T)
    model = build("qwen2")
    model.save_pretrained(tmp_path)
    found = arrays_of(tmp_path)
    inside = ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight")
    inside += tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias"))
    inside += tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    names = {f"model.layers.{i}.{part}" for i in range(3) for part in inside}
    assert found.keys() == names | {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    of, at = model.layers[2], "model.layers.2"
    parts = [found[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert [len(part) for part in parts] == [24, 12, 12]
    assert np.array_equal(np.concatenate(parts), of.self_attn.qkv_proj.weight.detach().numpy())
    both = [found[f"{at}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    assert np.array_equal(np.concatenate(both), of.mlp.gate_up_proj.weight.detach().numpy())
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["Qwen2ForCausalLM"] and written["torch_dtype"] == "float32"


def test_other_ways_to_say_it(tmp_path: Path) -> None:
    """Names without prefix, masks of old files, and the tied head's weight beside the embedding."""
    model = build("gpt2")
    model.save_pretrained(tmp_path)
    bare = {name.removeprefix("transformer."): array for name, array in arrays_of(tmp_path).items()}
    bare["h.0.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.float32))
    bare["h.0.attn.masked_bias"] = np.array(-1e4, np.float32)
    rewrite(tmp_path, bare)
    assert equal(Decoder.from_pretrained(tmp_path), model)
    rewrite(tmp_path, bare | {"lm_head.weight": bare["wte.weight"]})
    assert equal(Decoder.from_pretrained(tmp_path), model)
    rewrite(tmp_path, bare | {"lm_head.weight": bare["wte.weight"] + 1})
    with pytest.raises(CheckpointException, match=r"lm_head.weight is one parameter with another here"):
        Decoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_dtypes(name: str, tmp_path: Path) -> None:
    model = build(name).bfloat16()
    model.save_pretrained(tmp_path)
    same = Decoder.from_pretrained(tmp_path)
    assert equal(model, same)
    wide = Decoder.from_pretrained(tmp_path, dtype=wt.float32)
    assert equal(wide.bfloat16(), model)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": "int8"}))
    with pytest.raises(ValueError, match=r"config.json: dtype 'int8' is not supported, only float32"):
        Decoder.from_pretrained(tmp_path)
    meta = Decoder.from_pretrained(tmp_path, dtype=wt.float16, device="meta")
    assert meta.norm.weight.is_meta and meta.norm.weight.dtype == wt.float16


def test_saving_over_what_is_there(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path, max_shard_size=4000)
    build("gpt2").save_pretrained(tmp_path)
    assert equal(Decoder.from_pretrained(tmp_path), build("gpt2"))
    build("qwen3").save_pretrained(tmp_path, max_shard_size="4KB")
    assert equal(Decoder.from_pretrained(tmp_path), build("qwen3"))
    for wrong in ("4 stones", "", "GB", "-1MB"):
        with pytest.raises(ValueError, match="expected a size as 500MB or 5GB"):
            build("llama").save_pretrained(tmp_path, max_shard_size=wrong)
    assert equal(Decoder.from_pretrained(tmp_path), build("qwen3"))


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    arrays = arrays_of(tmp_path)

    def refused(change: dict[str, Any], match: str) -> None:
        rewrite(tmp_path, {name: a for name, a in (arrays | change).items() if a is not None})
        with pytest.raises(CheckpointException, match=match) as error:
            Decoder.from_pretrained(tmp_path)
        assert str(tmp_path) in str(error.value)

    at = "model.layers.1"
    refused({"model.norm.weight": None}, "norm.weight is missing there")
    refused({f"{at}.self_attn.k_proj.weight": None}, "layers.1.self_attn.k_proj.weight is missing there")
    refused(
        {"model.layers.3.x": arrays["model.norm.weight"]}, "called model.layers.3.x, in model.safetensors"
    )
    refused({f"{at}.self_attn.q_proj.bias": np.zeros(24, "f4")}, "nothing here is called .*q_proj.bias")
    wrong = np.zeros((41, 24), "f4")
    refused(
        {"lm_head.weight": wrong}, r"lm_head.weight is \[41, 24\] there and \[40, 24\] here, in model.saf"
    )
    refused({"model.norm.weight": np.zeros((24, 1), "f4")}, r"norm.weight is \[24, 1\] there and \[24\] here")
    refused({"model.norm.weight": np.zeros(24, "i4")}, "norm.weight is I32 there and torch.float32 here")
    # Of one size with what fits, but not part by part.
    rows = {part: arrays[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv"}
    swapped = {f"{at}.self_attn.{a}_proj.weight": rows[b] for a, b in (("q", "k"), ("k", "q"))}
    refused(swapped, "layers.1.self_attn.qkv_proj.weight: .* do not fit together")
    turned = {f"{at}.mlp.down_proj.weight": arrays[f"{at}.mlp.down_proj.weight"].T}
    refused(turned, r"\[36, 24\] there and \[24, 36\] here")
    half = {f"{at}.self_attn.v_proj.weight": rows["v"].astype("f2")}
    refused(half, "do not fit together")


def test_damaged_folders(tmp_path: Path) -> None:
    model = build("mistral")
    model.save_pretrained(tmp_path, max_shard_size=8000)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    whole, index = shard.read_bytes(), (tmp_path / st.INDEX).read_text()

    def refused(match: str, kind: type[Exception] = CheckpointException) -> None:
        with pytest.raises(kind, match=match):
            Decoder.from_pretrained(tmp_path)

    for size in (0, 7, 50, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:size])
        refused(shard.name)
    shard.write_bytes((1 << 60).to_bytes(8, "little") + whole[8:])
    refused(shard.name)
    shard.write_bytes(whole + b"x")
    refused(shard.name)
    shard.unlink()
    refused(shard.name)
    shard.write_bytes(whole)
    for text in ("{", "[]", '{"weight_map": {"a": "../x.safetensors"}}'):
        (tmp_path / st.INDEX).write_text(text)
        refused("model.safetensors.index.json is no index")
    (tmp_path / st.INDEX).unlink()
    refused("expected model.safetensors or model.safetensors.index.json")
    (tmp_path / st.INDEX).write_text(index)
    assert equal(Decoder.from_pretrained(tmp_path), model)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for text in ("", "{", "[]", "3", "[" * 100_000, "\xff"):
        path.write_bytes(text.encode("latin-1"))
        refused("config.json is no config", ValueError)
    for change, match in (
        (
            {"model_type": "mpt"},
            "config.json: DecoderConfig: unknown model_type 'mpt'; nearest: mistral; supported: deepseek",
        ),
        ({"num_hidden_layers": 2}, "nothing here is called model.layers.2"),
        ({"num_hidden_layers": 4}, "layers.3.input_layernorm.weight is missing there"),
        ({"num_key_value_heads": 4}, "do not fit together"),
        ({"vocab_size": 41}, r"embed_tokens.weight is \[40, 24\] there and \[41, 24\] here"),
        ({"vocab_size": 1 << 39}, "embed_tokens.weight is|cannot allocate"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises((ValueError, wt.OutOfMemoryError), match=match):
            Decoder.from_pretrained(tmp_path)
    path.unlink()
    refused("config.json", FileNotFoundError)
    refused("config.json", OSError)


def bert() -> Encoder:
    wt.manual_seed(0)
    model = Encoder(BERT)
    with wt.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(wt.randn(p.shape) * 0.2)
    return model.eval()


def test_encoder_round_trip(tmp_path: Path) -> None:
    model, x = bert(), wt.randint(0, V, (2, 7))
    model.save_pretrained(tmp_path, max_shard_size=3000)
    again = Encoder.from_pretrained(tmp_path)
    assert equal(model, again) and again.config == BERT
    got, expected = again(x), model(x)
    assert wt.equal(got.last_hidden_state, expected.last_hidden_state)
    assert wt.equal(got.pooler_output, expected.pooler_output)
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    with pytest.raises(CheckpointException, match=shards[0].name):
        Encoder.from_pretrained(tmp_path)


def test_encoders_of_other_times_and_tasks(tmp_path: Path) -> None:
    model = bert()
    model.save_pretrained(tmp_path)
    arrays = arrays_of(tmp_path)
    assert "bert.encoder.layer.1.attention.self.query.weight" in arrays
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): a
        for name, a in arrays.items()
    }
    assert len(old) == len(arrays) and "bert.embeddings.LayerNorm.gamma" in old
    old["bert.embeddings.position_ids"] = np.arange(12)[None]
    old["cls.predictions.transform.LayerNorm.gamma"] = old["cls.predictions.bias"] = np.zeros(3, "f4")
    old["cls.seq_relationship.weight"] = np.zeros((2, 16), "f4")
    rewrite(tmp_path, old)
    assert equal(Encoder.from_pretrained(tmp_path), model)
    without = {name.removeprefix("bert."): a for name, a in arrays.items() if "pooler" not in name}
    rewrite(tmp_path, without | {"classifier.weight": np.zeros((2, 16), "f4")})
    plain = Encoder.from_pretrained(tmp_path)
    assert plain.pooler is None and plain(wt.zeros(1, 2, dtype=wt.int64)).pooler_output is None
    rewrite(tmp_path, without | {"pooler.dense.weight": np.zeros((16, 16), "f4")})
    with pytest.raises(CheckpointException, match=r"pooler\.dense\.bias is missing there"):
        Encoder.from_pretrained(tmp_path)


def test_what_an_encoder_computes() -> None:
    model, x = bert(), wt.randint(0, V, (3, 9), generator=wt.Generator().manual_seed(2))
    whole = model(x)
    assert whole.last_hidden_state.shape == (3, 9, 16) and whole.pooler_output.shape == (3, 16)
    mask = wt.ones(3, 9, dtype=wt.int64)
    assert wt.allclose(model(x, attention_mask=mask).last_hidden_state, whole.last_hidden_state, atol=1e-5)
    mask[1, 5:] = 0
    padded = model(x, attention_mask=mask)
    short = model(x[1:2, :5])
    assert wt.allclose(padded.last_hidden_state[1, :5], short.last_hidden_state[0], atol=1e-5)
    assert not wt.allclose(padded.last_hidden_state[1, :5], whole.last_hidden_state[1, :5], atol=1e-2)
    assert wt.allclose(padded.last_hidden_state[0], whole.last_hidden_state[0], atol=1e-5)
    types = wt.zeros_like(x)
    assert wt.equal(model(x, token_type_ids=types).last_hidden_state, whole.last_hidden_state)
    types[:, 4:] = 1
    other = model(x, token_type_ids=types).last_hidden_state
    assert not wt.allclose(other, whole.last_hidden_state, atol=1e-2)
    assert wt.equal(model(x, positions=wt.arange(9)).last_hidden_state, whole.last_hidden_state)
    for given, error, match in (
        ({"attention_mask": mask[:, :8]}, wt.ShapeError, r"expected attention_mask \[3, 9\]"),
        ({"token_type_ids": types + 2}, IndexError, "out of bounds"),
        ({"positions": wt.arange(9) + 9}, IndexError, "out of bounds"),
    ):
        with pytest.raises(error, match=match):
            model(x, **given)
    with pytest.raises(wt.ShapeError, match=r"expected tokens \[B, T\]"):
        model(x[0])
    with pytest.raises(ValueError, match="13 tokens are more than its positions, 12"):
        model(wt.zeros(1, 13, dtype=wt.int64))


def test_an_encoder_trains() -> None:
    model, x = bert().train(), wt.randint(0, V, (8, 6), generator=wt.Generator().manual_seed(2))
    wanted, losses = (x[:, 0] % 2), []
    head = wt.nn.Linear(16, 2)
    optimizer = wt.optim.AdamW([*model.parameters(), *head.parameters()], lr=2e-3)
    for step in range(60):
        optimizer.zero_grad()
        out = model(x)
        loss = wt.nn.functional.cross_entropy(head(out.pooler_output), wanted)
        (loss + 0.01 * out.last_hidden_state.square().mean()).backward()
        if step == 0:
            for name, p in model.named_parameters():
                assert p.grad is not None and bool((p.grad != 0).any()), name
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses


def modern() -> Encoder:
    wt.manual_seed(0)
    return Encoder(MODERN).eval()


def test_what_modernbert_computes(tmp_path: Path) -> None:
    """A token sees those near by, in all layers but each third; padding changes nothing."""
    model, x = modern(), wt.randint(0, V, (3, 20), generator=wt.Generator().manual_seed(2))
    whole = model(x)
    assert whole.pooler_output is None and whole.last_hidden_state.shape == (3, 20, 24)
    mask = wt.ones(3, 20, dtype=wt.int64)
    mask[1, 5:] = 0
    padded, short = model(x, attention_mask=mask), model(x[1:2, :5])
    assert wt.allclose(padded.last_hidden_state[1, :5], short.last_hidden_state[0], atol=1e-5)
    near = Encoder(replace(MODERN, num_hidden_layers=1, layer_types=("sliding_attention",))).eval()
    other = x.clone()
    other[:, 10] = (other[:, 10] + 1) % V
    changed = (near(x).last_hidden_state != near(other).last_hidden_state).any(-1).any(0)
    assert changed.nonzero().flatten().tolist() == [*range(7, 14)]
    model.save_pretrained(tmp_path)
    again = Encoder.from_pretrained(tmp_path)
    assert again.config == MODERN and equal(again, model)
    assert wt.equal(again(x).last_hidden_state, whole.last_hidden_state)
    with pytest.raises(ValueError, match="a modernbert model has no token types"):
        model(x, token_type_ids=wt.zeros_like(x))
    with pytest.raises(ValueError, match="25 tokens are more than its positions, 24"):
        model(wt.zeros(1, 25, dtype=wt.int64))


@pytest.mark.parametrize("make", [bert, modern])
def test_batched_texts_are_what_they_are_alone(make: Any) -> None:
    """To the bit, once linear layers are packed: rows do not depend on how many there are."""
    model = make()
    pack_(model)
    most = model.config.max_position_embeddings
    x = wt.randint(0, V, (5, most), generator=wt.Generator().manual_seed(2))
    with wt.no_grad():
        whole = model(x).last_hidden_state
        for i in range(len(x)):
            assert wt.equal(model(x[i : i + 1]).last_hidden_state[0], whole[i])
