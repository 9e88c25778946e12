"""Files with quantised weights, as other programs write them: GGUF, GPTQ, AWQ."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import warptape as wt
from warptape.models import Decoder, DecoderConfig
from warptape.models.gguf import KINDS, NAMES

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
JOINED = re.compile("(q|k|v|gate|up)_proj")  # what has the same inputs
NUMBERS = {kind.name: (number, kind.elements, kind.bytes) for number, kind in KINDS.items()}
NUMBERS["Q2_K"] = (10, 256, 84)  # which is not supported


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def valued(value: Any) -> bytes:
    """A metadata value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    inner = [valued(each) for each in value]
    return (
        struct.pack("<I", 9) + inner[0][:4] + struct.pack("<Q", len(inner)) + b"".join(x[4:] for x in inner)
    )


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A file of (type, shape with rows first, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    out += b"".join(text(key) + valued(value) for key, value in metadata.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        out += struct.pack("<IQ", NUMBERS[kind][0], len(data))
        data += raw
    return out + b"\0" * (-len(out) % 32) + data


def random_blocks(kind: str, elements: int, scale: float = 1.0, seed: int = 0) -> bytes:
    """Blocks of any bits, but with scales of about this size."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    _, each, size = NUMBERS[kind]
    blocks = rng.integers(0, 256, (elements // each, size), dtype=np.uint8)
    for at in {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,)):
        scales = (rng.standard_normal(len(blocks)) * scale).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def interleaved(x: np.ndarray, d: int) -> np.ndarray:
    """As llama.cpp's conversion keeps queries and keys: the halves of a head row by row."""
    return x.reshape(-1, 2, d // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def write_decoder(
    path: Path, model: Decoder, kind: str = "F32", others: dict[str, str] | None = None, **more: Any
) -> None:
    """A file of a decoder as llama.cpp's conversion writes it: its values in float32, or matrices of its
    layers of random blocks; `others`: the kinds of some of these."""
    c = model.config
    of = {"mistral": "llama"}.get(c.architecture, c.architecture)
    metadata = {
        "general.architecture": of,
        f"{of}.context_length": c.max_position_embeddings,
        f"{of}.embedding_length": c.hidden_size,
        f"{of}.feed_forward_length": c.intermediate_size,
        f"{of}.block_count": c.num_hidden_layers,
        f"{of}.attention.head_count": c.num_attention_heads,
        f"{of}.attention.head_count_kv": c.num_key_value_heads,
        f"{of}.attention.key_length": c.head_dim,
        f"{of}.attention.layer_norm_rms_epsilon": c.norm_eps,
        f"{of}.rope.freq_base": c.rope_theta,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["a", "b"],
        **more,
    }
    tensors = {}
    for name, p in model.named_parameters():
        theirs, rows = NAMES.theirs(name), [p.shape[0]]
        if "qkv_proj" in name:
            rows = [h * c.head_dim for h in (c.num_attention_heads, *(c.num_key_value_heads,) * 2)]
        elif len(theirs) == 2:
            rows = [c.intermediate_size] * 2
        for each, part in zip(theirs, p.detach().split(rows)):
            array = part.numpy()
            if of == "llama" and (".attn_q." in each or ".attn_k." in each):
                array = interleaved(array, c.head_dim)
            if kind != "F32" and name.startswith("layers") and array.ndim > 1:
                of_it = (others or {}).get(each.split(".")[2], kind)
                scale = 0.02 if of_it in ("Q4_0", "Q4_1") else 0.001
                tensors[each] = (of_it, array.shape, random_blocks(of_it, array.size, scale, len(tensors)))
            else:
                tensors[each] = ("F32", array.shape, array.tobytes())
    if c.rope_scaling and c.rope_scaling.rope_type == "llama3":
        plain = c.rope_theta ** -(np.arange(0, c.head_dim, 2) / c.head_dim)
        factors = (plain / model._rotary.frequencies().numpy()).astype(np.float32)
        tensors["rope_freqs.weight"] = ("F32", factors.shape, factors.tobytes())
    path.write_bytes(gguf_bytes(metadata, tensors))


# ---- folders ----


def pack(numbers: np.ndarray, bits: int, axis: int, order: list[int] | None = None) -> np.ndarray:
    """Numbers below 2**bits in int32s, along an axis; number order[i] is the i-th from below."""
    count = 32 // bits
    rows = np.moveaxis(numbers, axis, -1).astype(np.uint64)
    rows = rows.reshape(*rows.shape[:-1], -1, count)[..., order or list(range(count))]
    packed = (rows << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def quantised_folder(
    folder: Path, method: str, bits: int, config: DecoderConfig, group: int = 8, **settings: Any
) -> dict[str, np.ndarray]:
    """Writes a small decoder whose layers have matrices of random numbers; returns what they mean. With
    desc_act the groups of inputs are no neighbours, but alike for matrices that have the same inputs, by
    whose size GPTQ orders them; "each": by themselves."""
    wt.manual_seed(0)
    Decoder(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    rng, meant, out = np.random.default_rng(0), {}, {}
    for name, array in safetensors.numpy.load_file(path).items():
        if "layers" not in name or array.ndim < 2:
            out[name] = array
            continue
        (o, i), stem = array.shape, name.removesuffix(".weight")
        groups = -(-i // group)
        q, zeros = rng.integers(0, 2**bits, (i, o)), rng.integers(1, 2**bits, (groups, o))
        if settings.get("sym"):
            zeros[:] = 2 ** (bits - 1)
        scales = (rng.random((groups, o)) * 0.05).astype(np.float16)
        of_input = np.arange(i) // group
        if act_order := settings.get("desc_act"):
            inputs_of = name if act_order == "each" else JOINED.sub("", name)
            of_input = np.random.default_rng([*inputs_of.encode()]).permutation(of_input)
        meant[name] = ((q - zeros[of_input]) * scales[of_input].astype(np.float32)).T.astype(np.float32)
        out[f"{stem}.scales"] = scales
        if method == "awq":
            out[f"{stem}.qweight"] = pack(q, 4, 1, AWQ_ORDER)
            out[f"{stem}.qzeros"] = pack(zeros, 4, 1, AWQ_ORDER)
            continue
        stored = zeros if settings.get("checkpoint_format") == "gptq_v2" else zeros - 1
        out[f"{stem}.qweight"], out[f"{stem}.qzeros"] = pack(q, bits, 0), pack(stored, bits, 1)
        if settings.get("desc_act") is not None:
            out[f"{stem}.g_idx"] = of_input.astype(np.int32)
    safetensors.numpy.save_file(out, path)
    edit(folder, quant_method=method, bits=bits, group_size=group, **settings)
    return meant


def edit(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data["quantization_config"] = data.get("quantization_config", {}) | settings
    path.write_text(json.dumps(data))
