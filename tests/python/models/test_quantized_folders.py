"""Folders of GPTQ's and AWQ's: what their numbers mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from model_configs import SMALL, tokens
from quantized_files import edit, quantised_folder
from warptape.distributed.checkpoint import CheckpointException
from warptape.models import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    **{**SMALL, "hidden_size": 32, "intermediate_size": 64},
    num_key_value_heads=2,
    qkv_bias=True,
    architecture="qwen2",
)


@pytest.mark.parametrize(
    ("method", "bits", "settings"),
    [
        ("gptq", 4, {}),
        ("gptq", 4, {"desc_act": True}),
        ("gptq", 8, {"desc_act": False, "checkpoint_format": "gptq_v2"}),
        ("gptq", 2, {"desc_act": False, "checkpoint_format": "gptq"}),
        ("awq", 4, {"version": "GEMM", "zero_point": True}),
    ],
)
def test_folders(method: str, bits: int, settings: dict[str, Any], tmp_path: Path) -> None:
    meant = quantised_folder(tmp_path, method, bits, CONFIG, **settings)
    model = Decoder.from_pretrained(tmp_path)
    layer = model.layers[1]
    at = "model.layers.1"
    qkv = np.concatenate([meant[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert np.array_equal(layer.self_attn.qkv_proj.weight.detach().numpy(), qkv)
    assert np.array_equal(layer.mlp.down_proj.weight.detach().numpy(), meant[f"{at}.mlp.down_proj.weight"])
    assert np.isfinite(model(tokens()).detach().numpy()).all()


def test_one_group(tmp_path: Path) -> None:
    """group_size -1: one scale for all inputs of an output."""
    quantised_folder(tmp_path, "gptq", 4, CONFIG)
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    for name in list(arrays):
        if name.endswith((".scales", ".qzeros")):
            arrays[name] = arrays[name][:1]
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    edit(tmp_path, group_size=-1)
    got = Decoder.from_pretrained(tmp_path).layers[0].self_attn.o_proj.weight.detach().numpy()
    stem = "model.layers.0.self_attn.o_proj"
    q = (
        arrays[f"{stem}.qweight"].view(np.uint32)[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None]
        & 15
    )
    zeros = arrays[f"{stem}.qzeros"].view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    numbers = q.reshape(32, 32).astype(np.float32) - zeros.reshape(1, 32) - 1
    assert np.array_equal(got, (numbers * arrays[f"{stem}.scales"].astype(np.float32)).T)


def test_what_is_refused(tmp_path: Path) -> None:
    quantised_folder(tmp_path, "gptq", 4, CONFIG, desc_act=False)
    path = tmp_path / "model.safetensors"
    whole, stem = safetensors.numpy.load_file(path), "model.layers.2.mlp.down_proj"

    def refused(match: str, **changed: np.ndarray | None) -> None:
        arrays = whole | {f"{stem}.{part}": array for part, array in changed.items()}
        safetensors.numpy.save_file({n: a for n, a in arrays.items() if a is not None}, path)
        with pytest.raises(CheckpointException, match=match):
            Decoder.from_pretrained(tmp_path)

    refused(f"{stem}.scales is missing there", scales=None)
    refused(f"{stem}.scales is .*float16.* which does not fit qweight", scales=np.zeros((7, 32), np.float16))
    refused(f"{stem}.qzeros is .*float32", qzeros=np.zeros((8, 4), np.float32))
    refused(f"{stem}.g_idx names groups that there are not", g_idx=np.full(64, 8, np.int32))
    refused(
        "mlp.down_proj.weight is .32, 64. here, and there .* .32, 32.",
        qweight=np.zeros((4, 32), np.int32),
        scales=np.zeros((4, 32), np.float16),
        qzeros=np.zeros((4, 4), np.int32),
        g_idx=np.zeros(32, np.int32),
    )
    refused("down_proj.weight is missing there", qweight=None, qzeros=None, scales=None, g_idx=None)
    refused("nothing here is called .*down_proj.bias", bias=np.zeros(32, np.float32))
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(CheckpointException, match="is it truncated"):
        Decoder.from_pretrained(tmp_path)
    path.write_bytes(data)
    for settings, match in (
        ({"bits": 3}, "expected bits of 2, 4 or 8"),
        ({"bits": 4, "group_size": "all"}, "and a group_size"),
        (
            {"group_size": 8, "quant_method": "quip"},
            "expected quant_method to be one of gptq, awq, .*, got 'quip'",
        ),
        ({"quant_method": "awq", "version": "gemv"}, "version 'gemv' of AWQ is not supported: only gemm"),
    ):
        edit(tmp_path, **settings)
        with pytest.raises(ValueError, match=match):
            Decoder.from_pretrained(tmp_path)
