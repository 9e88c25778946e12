"""Folders of matrices in few bits beside GPTQ's and AWQ's: what their numbers mean, by NumPy, and what is
refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from model_configs import CONFIGS, SMALL, tokens
from quantized_files import edit, pack
from warptape.distributed.checkpoint import CheckpointException
from warptape.inference import QuantLinear
from warptape.models import Decoder, DecoderConfig
from warptape.models.quantized import source_of
from warptape.utils.safetensors import load_file, save_file

CONFIG = DecoderConfig(
    **{**SMALL, "hidden_size": 64, "intermediate_size": 96},
    num_key_value_heads=2,
    qkv_bias=True,
    architecture="qwen2",
)
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FLOAT4 = np.concatenate([FLOAT4, -FLOAT4])
Stored = tuple[dict[str, Any], np.ndarray]  # what lies there by endings of names, and what it means


def float8_blocks(rng: np.random.Generator, o: int, i: int) -> Stored:
    numbers = wt.tensor(rng.standard_normal((o, i)).astype(np.float32) * 50).to(wt.float8_e4m3fn)
    scales = rng.random((-(-o // 24), -(-i // 40))).astype(np.float32)
    whole = np.repeat(np.repeat(scales, 24, 0), 40, 1)[:o, :i]
    return {"weight": numbers, "weight_scale_inv": scales}, numbers.float().numpy() * whole


def float8_rows(rng: np.random.Generator, o: int, i: int) -> Stored:
    numbers = wt.tensor(rng.standard_normal((o, i)).astype(np.float32) * 50).to(wt.float8_e4m3fn)
    scales = rng.random((o, 1)).astype(np.float32)
    more = {"input_scale": np.ones(1, np.float32)}
    return {"weight": numbers, "weight_scale": scales, **more}, numbers.float().numpy() * scales


def float8_whole(rng: np.random.Generator, o: int, i: int) -> Stored:
    numbers = wt.tensor(rng.standard_normal((o, i)).astype(np.float32) * 50).to(wt.float8_e4m3fn)
    return {"weight": numbers, "weight_scale": np.float32([0.3])}, numbers.float().numpy() * np.float32(0.3)


def int8_rows(rng: np.random.Generator, o: int, i: int) -> Stored:
    numbers, scales = rng.integers(-128, 128, (o, i)).astype(np.int8), rng.random((o, 1)).astype(np.float32)
    return {"weight": numbers, "weight_scale": scales}, numbers * scales


def bitsandbytes_int8(rng: np.random.Generator, o: int, i: int) -> Stored:
    numbers, scales = rng.integers(-127, 128, (o, i)).astype(np.int8), rng.random(o).astype(np.float32)
    return {"weight": numbers, "SCB": scales}, numbers * (scales / np.float32(127))[:, None]


def packed(bits: int, zeros: bool) -> Any:
    def made(rng: np.random.Generator, o: int, i: int) -> Stored:
        q, scales = rng.integers(0, 2**bits, (o, i)), rng.random((o, i // 32)).astype(np.float16)
        out = {"weight_packed": pack(q, bits, 1), "weight_scale": scales, "weight_shape": np.int64([o, i])}
        zero = np.full((o, i // 32), 2 ** (bits - 1))
        if zeros:
            zero = rng.integers(0, 2**bits, (o, i // 32))
            padded = np.pad(zero, ((0, -o % (32 // bits)), (0, 0)))
            out["weight_zero_point"] = pack(padded, bits, 0)
        apart = (q.reshape(o, -1, 32) - zero[..., None]) * scales.astype(np.float32)[..., None]
        return out, apart.reshape(o, i).astype(np.float32)

    return made


def nf4(nested: bool) -> Any:
    def made(rng: np.random.Generator, o: int, i: int) -> Stored:
        codes, block = rng.integers(0, 16, o * i), 64
        table = np.sort(rng.standard_normal(16)).astype(np.float32)
        scales = rng.random(o * i // block).astype(np.float32)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "shape": [o, i], "dtype": "float32"}
        out = {"weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None], "weight.quant_map": table}
        out["weight.absmax"] = scales
        if nested:
            places = rng.integers(0, 256, scales.size).astype(np.uint8)
            inner, of_block = (
                rng.random(256).astype(np.float32),
                rng.random(-(-scales.size // 16)).astype("f4"),
            )
            scales = inner[places] * np.repeat(of_block, 16)[: scales.size] + np.float32(0.25)
            state |= {"nested_blocksize": 16, "nested_offset": 0.25}
            out |= {
                "weight.absmax": places,
                "weight.nested_quant_map": inner,
                "weight.nested_absmax": of_block,
            }
        text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        out["weight.quant_state.bitsandbytes__nf4"] = text
        return out, (table[codes] * np.repeat(scales, block)).reshape(o, i)

    return made


KINDS: dict[str, tuple[dict[str, Any], Any, int | None]] = {  # settings, matrix, bits of what is kept
    "fp8": ({"quant_method": "fp8", "weight_block_size": [24, 40]}, float8_blocks, None),
    "float8 by rows": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        float8_rows,
        None,
    ),
    "float8": ({"quant_method": "fp8"}, float8_whole, None),
    "int8 by rows": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, int8_rows, 8),
    "int8 of bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bitsandbytes_int8, 8),
    "int4": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, packed(4, False), 4),
    "int4 with zeros": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        packed(4, True),
        4,
    ),
    "int8 in int32": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        packed(8, False),
        8,
    ),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(False), None),
    "nf4 of nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(True), None),
}


def tensor(x: Any) -> wt.Tensor:
    return x if isinstance(x, wt.Tensor) else wt.from_numpy(np.ascontiguousarray(x))


def stored_folder(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """Writes a small decoder whose layers have matrices of random numbers; returns what they mean."""
    settings, make, _ = KINDS[kind]
    wt.manual_seed(0)
    Decoder(CONFIG).save_pretrained(folder)
    path, rng = folder / "model.safetensors", np.random.default_rng(0)
    meant, out = {}, {}
    for name, x in load_file(path).items():
        if "layers" not in name or x.ndim < 2:
            out[name] = x
            continue
        parts, meant[name] = make(rng, *x.shape)
        stem = name.removesuffix(".weight")
        out |= {f"{stem}.{end}": tensor(part) for end, part in parts.items()}
    save_file(out, path)
    edit(folder, **settings)
    return meant


@pytest.mark.parametrize("kind", KINDS)
def test_folders(kind: str, tmp_path: Path) -> None:
    meant = stored_folder(tmp_path, kind)
    model = Decoder.from_pretrained(tmp_path)
    for i, layer in enumerate(model.layers):
        at = f"model.layers.{i}"
        qkv = np.concatenate([meant[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv"])
        for got, want in (
            (layer.self_attn.qkv_proj.weight, qkv),
            (layer.mlp.down_proj.weight, meant[f"{at}.mlp.down_proj.weight"]),
        ):
            assert np.allclose(got.detach().numpy(), want, rtol=2e-7, atol=1e-6), kind
    assert np.isfinite(model(tokens()).detach().numpy()).all()
    bits = KINDS[kind][2]
    kept = Decoder.from_pretrained(tmp_path, coded=QuantLinear.from_codes).layers[1].mlp.down_proj
    if bits is None:
        assert isinstance(kept, wt.nn.Linear)
        return
    want = meant["model.layers.1.mlp.down_proj.weight"]
    assert isinstance(kept, QuantLinear) and kept.bits == bits
    assert np.abs(kept.dequantize().numpy() - want).max() <= 2e-3 * np.abs(want).max()


def mxfp4_folder(folder: Path) -> Decoder:
    """A gpt-oss whose experts are in MXFP4, and the decoder of floats that it means."""
    wt.manual_seed(0)
    config = replace(
        CONFIGS["gpt-oss"],
        hidden_size=32,
        intermediate_size=32,
        experts=replace(CONFIGS["gpt-oss"].experts, width=32),
    )
    model = Decoder(config).eval()
    model.save_pretrained(folder)
    path, rng, out = folder / "model.safetensors", np.random.default_rng(0), {}
    for name, x in load_file(path).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            out[name] = x
            continue
        experts, inputs, outputs = x.shape
        codes = rng.integers(0, 16, (experts, outputs, inputs // 32, 32)).astype(np.uint8)
        exponents = rng.integers(122, 127, codes.shape[:3]).astype(np.uint8)
        out[f"{name}_blocks"] = tensor(codes[..., ::2] | codes[..., 1::2] << 4)
        out[f"{name}_scales"] = tensor(exponents)
        values = FLOAT4[codes] * np.exp2(exponents.astype(np.float32) - 127)[..., None]
        rows = values.reshape(experts * outputs, inputs)
        ours = name.removeprefix("model.") + ".weight"
        with wt.no_grad():
            model.get_parameter(ours).copy_(wt.from_numpy(rows.astype(np.float32)))
    save_file(out, path)
    edit(folder, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn"])
    return model


def test_mxfp4(tmp_path: Path) -> None:
    meant = mxfp4_folder(tmp_path)
    got = Decoder.from_pretrained(tmp_path)
    for (name, a), (_, b) in zip(got.named_parameters(), meant.named_parameters(), strict=True):
        assert wt.equal(a, b), name
    kept = Decoder.from_pretrained(tmp_path, coded=QuantLinear.from_codes).layers[0].mlp.experts
    assert isinstance(kept.gate_up_proj, QuantLinear)  # codes of 8 bits say the same numbers
    assert wt.equal(kept.gate_up_proj.dequantize(), meant.layers[0].mlp.experts.gate_up_proj.weight)


def test_what_is_refused(tmp_path: Path) -> None:
    stored_folder(tmp_path, "int4")
    path = tmp_path / "model.safetensors"
    whole, stem = load_file(path), "model.layers.2.mlp.down_proj"

    def refused(match: str, **changed: wt.Tensor | None) -> None:
        arrays = whole | {f"{stem}.{part}": x for part, x in changed.items()}
        save_file({n: x for n, x in arrays.items() if x is not None}, path)
        with pytest.raises(CheckpointException, match=match):
            Decoder.from_pretrained(tmp_path)

    refused("expected weight_packed, weight_scale and weight_shape", weight_shape=None)
    refused(r"is \[64, 96\] here, and there .* \[64, 95\]", weight_shape=wt.tensor([64, 95]))
    refused("do not fit together", weight_shape=wt.tensor([64, 80]))
    refused("do not fit together", weight_scale=wt.ones(63, 3))
    refused("do not fit together", weight_zero_point=wt.zeros(2, 3, dtype=wt.int32))
    with pytest.raises(ValueError, match="format 'marlin-24' of compressed-tensors is not supported"):
        source_of(tmp_path, {"quant_method": "compressed-tensors", "format": "marlin-24"})
    with pytest.raises(ValueError, match="one of gptq, awq, fp8, compressed-tensors, bitsandbytes, mxfp4"):
        source_of(tmp_path, {"quant_method": "quip"})

    stored_folder(tmp_path, "fp8")
    whole = load_file(path)
    refused(r"scales \[2, 2\] of a matrix \[64, 96\]", weight_scale_inv=wt.ones(2, 2))
    stored_folder(tmp_path, "nf4")
    whole = load_file(path)
    broken = wt.tensor(list(b"{}"), dtype=wt.uint8)
    refused("its quant_state is damaged", **{"weight.quant_state.bitsandbytes__nf4": broken})
    refused("its parts do not fit its shape", **{"weight.quant_map": wt.ones(15)})
    mxfp4_folder(tmp_path)
    whole, stem = load_file(path), "model.layers.2.mlp.experts"
    refused("_blocks .* and its scales do not fit", down_proj_scales=wt.ones(1, dtype=wt.uint8))
