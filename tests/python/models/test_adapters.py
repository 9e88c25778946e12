"""LoRA adapters in PEFT's folders: what they add, merged and apart, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
from model_configs import CONFIGS, build, tokens
from warptape.distributed.checkpoint import CheckpointException
from warptape.inference.linear import pack_
from warptape.models import load_adapter
from warptape.models.adapters import AdapterConfigError

Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def near(a: wt.Tensor, b: wt.Tensor) -> bool:
    return bool((a - b).abs().max() <= 2e-5 * b.abs().max())


def make(stems: dict[str, tuple[int, int]], rank: int = 3) -> Pairs:
    """A and B for layers of [outputs, inputs]."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: (rng.standard_normal(shape) * 0.2).astype(np.float32)
    return {
        stem: (draw(rank + i, n_in), draw(n_out, rank + i))
        for i, (stem, (n_out, n_in)) in enumerate(stems.items())
    }


def write(folder: Path, pairs: Pairs, **config: Any) -> None:
    arrays = {}
    for stem, (a, b) in pairs.items():
        arrays[f"base_model.model.{stem}.lora_A.weight"] = a
        arrays[f"base_model.model.{stem}.lora_B.weight"] = b
    safetensors.numpy.save_file(arrays, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


LLAMA = make(
    {
        "model.layers.0.self_attn.q_proj": (24, 24),
        "model.layers.0.self_attn.v_proj": (12, 24),
        "model.layers.1.self_attn.k_proj": (12, 24),
        "model.layers.1.mlp.up_proj": (36, 24),
        "model.layers.2.mlp.down_proj": (24, 36),
        "model.layers.2.self_attn.o_proj": (24, 24),
    }
)
# Our layer, and its rows, of each of theirs.
PLACES = {
    "model.layers.0.self_attn.q_proj": ("layers.0.self_attn.qkv_proj", 0, 24),
    "model.layers.0.self_attn.v_proj": ("layers.0.self_attn.qkv_proj", 36, 48),
    "model.layers.1.self_attn.k_proj": ("layers.1.self_attn.qkv_proj", 24, 36),
    "model.layers.1.mlp.up_proj": ("layers.1.mlp.gate_up_proj", 36, 72),
    "model.layers.2.mlp.down_proj": ("layers.2.mlp.down_proj", 0, 24),
    "model.layers.2.self_attn.o_proj": ("layers.2.self_attn.o_proj", 0, 24),
}


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, lambda stem, rank: 6 / rank),
        ({"use_rslora": True}, lambda stem, rank: 6 / rank**0.5),
        (
            {"alpha_pattern": {"q_proj": 1, "layers.1.mlp.up_proj": 5}},
            lambda stem, rank: (1 if "q_proj" in stem else 5 if "up_proj" in stem else 6) / rank,
        ),
    ],
)
def test_values(config: dict[str, Any], scale: Any, tmp_path: Path) -> None:
    """The weights of the formula, and the same outputs from a layer that has it apart."""
    write(tmp_path, LLAMA, **config)
    model, want = build("llama"), build("llama")
    with wt.no_grad():
        for stem, (a, b) in LLAMA.items():
            name, begin, end = PLACES[stem]
            want.get_submodule(name).weight[begin:end] += wt.tensor(scale(stem, len(a)) * (b @ a))
        plain = model(tokens())
        adapter = load_adapter(model, tmp_path)
        assert adapter.factors.keys() == {name for name, _, _ in PLACES.values()}
        assert wt.equal(model(tokens()), plain)  # until it is used
        adapter.merge()
        for (name, p), q in zip(model.named_parameters(), want.parameters()):
            assert wt.allclose(p, q, rtol=1e-5, atol=1e-6), name
        merged = model(tokens())
        assert near(merged, want(tokens())) and not wt.allclose(merged, plain, rtol=1e-2)
        adapter.remove()
        assert wt.equal(model(tokens()), plain)
        adapter.attach()
        assert near(model(tokens()), want(tokens()))
        with pytest.raises(RuntimeError, match=r"already attached; remove\(\) it first"):
            adapter.merge()
        adapter.remove()
        assert wt.equal(model(tokens()), plain)


def test_packed_layers(tmp_path: Path) -> None:
    """Apart from weights that are packed; these cannot be merged with."""
    write(tmp_path, LLAMA)
    want, model = build("llama"), pack_(build("llama"))
    load_adapter(want, tmp_path).merge()
    adapter = load_adapter(model, tmp_path)
    with pytest.raises(RuntimeError, match="merge it before the model's weights are packed"):
        adapter.merge()
    adapter.attach()
    with wt.no_grad():
        assert near(model(tokens()), want(tokens()))


def test_gpt2_and_bfloat16(tmp_path: Path) -> None:
    pairs = make({"transformer.h.1.attn.c_attn": (72, 24), "transformer.h.0.mlp.c_proj": (24, 36)})
    write(tmp_path, pairs, fan_in_fan_out=True)
    model = build("gpt2").bfloat16()
    adapter = load_adapter(model, tmp_path)
    a, b = pairs["transformer.h.1.attn.c_attn"]
    got = adapter.factors["layers.1.self_attn.qkv_proj"]
    assert got.a.dtype == wt.bfloat16 and wt.equal(got.a, wt.tensor(a).bfloat16())
    assert wt.equal(got.b, (wt.tensor(b) * 2).bfloat16())
    before = model.layers[1].self_attn.qkv_proj.weight.float()
    adapter.merge()
    after = model.layers[1].self_attn.qkv_proj.weight.float()
    assert (
        near(after - before, wt.tensor(2 * (b @ a)))
        or (after - before - wt.tensor(2 * (b @ a))).abs().max() < 0.02
    )


def test_what_is_refused(tmp_path: Path) -> None:
    model = build("llama")

    def refused(match: str, error: type[Exception] = CheckpointException) -> None:
        with pytest.raises(error, match=match):
            load_adapter(model, tmp_path)

    refused("adapter_config.json", FileNotFoundError)
    for config, match in (
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported: only 'LORA'"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save="),
        ({"lora_alpha": "much"}, "expected lora_alpha"),
    ):
        write(tmp_path, LLAMA, **config)
        refused(match, ValueError)
    write(tmp_path, make({"model.layers.7.self_attn.q_proj": (24, 24)}))
    refused("no linear layer here is called model.layers.7.self_attn.q_proj")
    write(tmp_path, make({"model.layers.0.self_attn.q_proj": (24, 20)}))
    refused(r"q_proj is \[24, 20\] there and \[24, 24\] here")
    write(tmp_path, {"model.layers.0.self_attn.q_proj": (np.zeros((3, 24)), np.zeros((24, 2)))})
    refused(r"expected lora_A \[r, I\] and lora_B \[O, r\]")
    safetensors.numpy.save_file({"x.lora_embedding_A": np.zeros(3)}, tmp_path / "adapter_model.safetensors")
    refused("x.lora_embedding_A is no LoRA matrix of a linear layer")
    write(tmp_path, LLAMA)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused("is it truncated")
    for config, missing in (
        ("{}", ("peft_type", "lora_alpha")),
        ('{"r": 3, "lora_alpha": 6}', ("peft_type",)),
        ('{"peft_type": "LORA", "lora_alpha": null}', ("lora_alpha",)),
    ):
        (tmp_path / "adapter_config.json").write_text(config)
        with pytest.raises(
            AdapterConfigError, match=f"adapter_config.json lacks {', '.join(missing)}:"
        ) as of:
            load_adapter(model, tmp_path)
        assert of.value.missing == missing
    (tmp_path / "adapter_config.json").write_text("[1]")
    refused("is no config", ValueError)
    assert CONFIGS["llama"].num_key_value_heads == 2  # which PLACES supposes
