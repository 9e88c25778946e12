"""Files with quantised weights, as other programs write them: GGUF, GPTQ, AWQ."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import warptape as wt
from model_configs import CONFIGS
from warptape.models import Decoder, DecoderConfig
from warptape.models.gguf_families import FAMILIES, names_of
from warptape.models.gguf_kinds import KINDS

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
JOINED = re.compile("(q|k|v|gate|up)_proj")  # what has the same inputs
NUMBERS = {kind.name: (number, kind.elements, kind.bytes) for number, kind in KINDS.items()}
NUMBERS["IQ1_M"] = (29, 256, 56)  # which is not supported


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
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(120, 130, len(blocks)) + round(np.log2(scale))
        return blocks.tobytes()
    two = dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
    for at in {**two, "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(kind, (0,)):
        scales = (rng.standard_normal(len(blocks)) * scale).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def interleaved(x: np.ndarray, d: int) -> np.ndarray:
    """As llama.cpp's conversion keeps queries and keys: the halves of a head row by row."""
    return x.reshape(-1, 2, d // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


# Our architecture -> llama.cpp's.
OF_GGUF = {
    **{
        name: name
        for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "smollm3", "olmo2", "granite")
    },
    **{name: name for name in ("glm4", "starcoder2")},
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}


def gguf_metadata(c: DecoderConfig) -> dict[str, Any]:
    """As llama.cpp's conversion writes them."""
    of, experts, latent = OF_GGUF[c.architecture], c.experts, c.latent
    eps = "layer_norm_epsilon" if c.norm == "layer_norm" else "layer_norm_rms_epsilon"
    out = {
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "block_count": c.num_hidden_layers,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim,
        f"attention.{eps}": c.norm_eps,
        "rope.freq_base": c.rope_theta,
    }
    if c.rotary_factor != 1:
        out["rope.dimension_count"] = c.rotary_width
    if c.sliding_window:
        out["attention.sliding_window"] = c.sliding_window
        if of == "olmo2":
            slides = [c.layer_type(i) == "sliding_attention" for i in range(c.num_hidden_layers)]
            out["attention.sliding_window_pattern"] = slides
    if c.attention_softcap:
        out["attn_logit_softcapping"] = c.attention_softcap
    if c.logit_softcap:
        out["final_logit_softcapping"] = c.logit_softcap
    if of == "granite":
        out |= {"embedding_scale": c.embedding_scale, "residual_scale": c.residual_scale}
        out |= {"attention.scale": c.attention_scale, "logit_scale": 1 / c.logit_scale}
    if of == "gptneox":
        out["use_parallel_residual"] = c.parallel_residual
    if experts is not None:
        out |= {"expert_count": experts.count, "expert_used_count": experts.per_token}
        if c.architecture != "mixtral":
            out["expert_feed_forward_length"] = experts.width
    if c.architecture == "qwen2_moe":
        out["expert_shared_feed_forward_length"] = experts.shared_width
    if latent is not None:
        sigmoid = experts.scores == "sigmoid"
        out |= {"attention.head_count_kv": 1, "attention.key_length": latent.kv_rank + latent.rotary_width}
        out |= {"attention.key_length_mla": latent.head_dim, "attention.value_length_mla": latent.value_width}
        out |= {"attention.kv_lora_rank": latent.kv_rank, "rope.dimension_count": latent.rotary_width}
        out |= {"leading_dense_block_count": sum(not experts.are_in(i) for i in range(c.num_hidden_layers))}
        out |= {"expert_shared_count": experts.shared_width // experts.width}
        out |= {"expert_weights_scale": experts.scale, "expert_weights_norm": experts.normalize}
        out |= {"expert_gating_func": 2 if sigmoid else 1, "expert_group_count": experts.groups}
        out["expert_group_used_count"] = experts.groups_kept
        if latent.query_rank:
            out["attention.q_lora_rank"] = latent.query_rank
    scaling = c.rope_scaling
    if scaling is not None and scaling.rope_type in ("yarn", "longrope"):
        out["rope.scaling.original_context_length"] = scaling.original_max_position_embeddings
    if scaling is not None and scaling.rope_type == "yarn":
        out |= {"rope.scaling.type": "yarn", "rope.scaling.factor": scaling.factor}
        out |= {
            "rope.scaling.yarn_beta_fast": scaling.beta_fast,
            "rope.scaling.yarn_beta_slow": scaling.beta_slow,
        }
        if scaling.mscale_all_dim:
            out["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling.mscale_all_dim
    return {f"{of}.{key}": value for key, value in out.items()}


def gguf_arrays(model: Decoder) -> dict[str, np.ndarray]:
    """A decoder's tensors as llama.cpp's conversion names and orders them."""
    c, out = model.config, {}
    of = OF_GGUF[c.architecture]
    family = FAMILIES[of]
    names = names_of(c, family)
    for name, p in model.named_parameters():
        array, theirs = p.detach().numpy(), names.theirs(name)
        if family.plus_one and name.endswith("norm.weight"):
            array = array + 1
        if "shared_gate" in name:
            array = array[0]
        if theirs[0].endswith("[0]"):  # of experts
            array = array.reshape(c.experts.count, -1, *array.shape[1:])
            stem, width = theirs[0].removesuffix("[0]"), c.experts.width
            if "gate_up_proj" in name:
                halves = (array[:, ::2], array[:, 1::2]) if c.experts.alternating else np.split(array, 2, 1)
                for part, half in zip(("gate", "up"), halves):
                    assert half.shape[1] == width
                    out[stem.replace("gate_up_exps", "gate_exps").replace("gate_exps", f"{part}_exps")] = half
            else:
                out[stem] = array
            continue
        if ".attn_kv_b." in theirs[0]:
            by_head = array.reshape(c.num_attention_heads, -1, array.shape[1])
            k, v = by_head[:, : c.latent.plain_width], by_head[:, c.latent.plain_width :]
            out[theirs[0].replace("attn_kv_b", "attn_k_b")] = k.swapaxes(1, 2)
            out[theirs[0].replace("attn_kv_b", "attn_v_b")] = v
            continue
        if ".attn_qkv." in theirs[0] and of == "gptneox":
            apart = array.reshape(c.num_attention_heads, 3, c.head_dim, *array.shape[1:])
            array = apart.swapaxes(0, 1).reshape(array.shape)
        rows = [len(array) // len(theirs)] * len(theirs)
        if len(theirs) == 3:
            rows = [h * c.head_dim for h in (c.num_attention_heads, *(c.num_key_value_heads,) * 2)]
        for each, part in zip(theirs, np.split(array, np.cumsum(rows)[:-1])):
            if family.interleaved and (".attn_q." in each or ".attn_k." in each):
                part = interleaved(part, c.head_dim)
            out[each] = part
    scaling = c.rope_scaling
    if scaling is not None and scaling.rope_type == "longrope":
        out["rope_factors_long.weight"] = np.float32(scaling.long_factor)
        out["rope_factors_short.weight"] = np.float32(scaling.short_factor)
    if scaling is not None and scaling.rope_type == "llama3":
        plain = c.rope_theta ** -(np.arange(0, c.head_dim, 2) / c.head_dim)
        out["rope_freqs.weight"] = (plain / model._rotary.frequencies().numpy()).astype(np.float32)
    return {name: np.ascontiguousarray(array) for name, array in out.items()}


def write_decoder(
    path: Path, model: Decoder, kind: str = "F32", others: dict[str, str] | None = None, **more: Any
) -> None:
    """A file of a decoder as llama.cpp's conversion writes it: its values in float32, or matrices of its
    layers of random blocks; `others`: the kinds of some of these."""
    metadata = {
        "general.architecture": OF_GGUF[model.config.architecture],
        **gguf_metadata(model.config),
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["a", "b"],
        **more,
    }
    tensors = {}
    for name, array in gguf_arrays(model).items():
        if kind != "F32" and name.startswith("blk") and array.ndim > 1:
            of_it = (others or {}).get(name.split(".")[2], kind)
            scale = 0.02 if of_it in ("Q4_0", "Q4_1") else 0.001
            tensors[name] = (of_it, array.shape, random_blocks(of_it, array.size, scale, len(tensors)))
        else:
            tensors[name] = ("F32", array.shape, array.tobytes())
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


# ---- models of the families that GGUF files have ----

# Configs of CONFIGS, with what the files of a family cannot say as its models have it.
GGUF_MODELS: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma2": {"attention_scale": 1 / math.sqrt(10)},
    "gemma3": {"attention_scale": 1 / math.sqrt(10), "layer_types": None},
    "phi3": {"rotary_factor": 4 / 6},
    "phi3-longrope": {},
    "smollm3": {"rotary_layers": None},
    "olmo2": {},
    "olmo3": {},
    "granite": {},
    "gpt-neox": {"rotary_factor": 2 / 6},
    "glm4": {},
    "starcoder2": {},
    "mixtral": {},
    "qwen2-moe": {"experts": replace(CONFIGS["qwen2-moe"].experts, layers=None)},
    "qwen3-moe": {},
    "gpt-oss": {"experts": replace(CONFIGS["gpt-oss"].experts, limit=7.0)},
    "deepseek-v2": {},
    "deepseek-v3": {"rope_scaling": replace(CONFIGS["deepseek-v3"].rope_scaling, mscale=0.7)},
}
