"""GGUF files, llama.cpp's: read, dequantised, and made configs of.

The format: ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian. Quantised blocks: ggml's
ggml-common.h and dequantize_row_* of ggml-quants.c.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import warptape

from .._tensor import Tensor
from ..distributed.checkpoint import CheckpointException, NameMap
from ..serialization._files import Mapped
from ._sources import Codes, Coding
from .config import DecoderConfig
from .rotary import Rotary, RotaryScaling

Blocks = np.ndarray  # uint8 [blocks, bytes of one]


def _half(blocks: Blocks, at: int) -> np.ndarray:
    """The float16 at a byte of each block, [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low halves, then high halves, of the last dim."""
    return np.concatenate([packed & 15, packed >> 4], -1)


# ---- what blocks mean: uint8 [blocks, bytes] -> codes, scales, minima or None (models/_sources.py) ----

# [blocks, elements], or half as many bytes where Kind.half says so; [blocks, groups] twice
Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _q4_0(b: Blocks) -> Parts:
    return b[:, 2:], _half(b, 0), None


def _q4_1(b: Blocks) -> Parts:
    return b[:, 4:], _half(b, 0), _half(b, 2)


def _q8_0(b: Blocks) -> Parts:
    return b[:, 2:] ^ 128, _half(b, 0), None


def _q4_k(b: Blocks) -> Parts:
    """Eight groups of 32; their scales and minima have 6 bits, in 12 bytes."""
    s = b[:, 4:16]
    scales = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1)
    minima = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1)
    return b[:, 16:], _half(b, 0) * scales, -(_half(b, 2) * minima)


def _q6_k(b: Blocks) -> Parts:
    """Sixteen groups of 16; each half of a block has four rows of 32 with low 4 and high 2 bits apart."""
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([low & 15, low >> 4], 2)  # [blocks, 2, 4, 32]
    high = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return (low | high << 4).reshape(-1, 256), _half(b, 208) * b[:, 192:208].view(np.int8), None


class Kind(NamedTuple):
    """A type of tensors: elements and bytes of a block; the dtype it is, or what its blocks mean, with `half`
    of Codes."""

    name: str
    elements: int
    bytes: int
    dtype: Any = None
    parts: Callable[[Blocks], Parts] | None = None
    coding: Coding | None = None
    half: int = 0


# By ggml's numbers.
KINDS: dict[int, Kind] = {
    0: Kind("F32", 1, 4, warptape.float32),
    1: Kind("F16", 1, 2, warptape.float16),
    30: Kind("BF16", 1, 2, warptape.bfloat16),
    2: Kind("Q4_0", 32, 18, None, _q4_0, Coding(4, 32, True), 16),
    3: Kind("Q4_1", 32, 20, None, _q4_1, Coding(4, 32, False), 16),
    8: Kind("Q8_0", 32, 34, None, _q8_0, Coding(8, 32, True)),
    12: Kind("Q4_K", 256, 144, None, _q4_k, Coding(4, 32, False), 32),
    14: Kind("Q6_K", 256, 210, None, _q6_k, Coding(6, 16, True)),
}
# Types that ggml has, and this module does not read.
_OTHERS = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_AT_ONCE = 1 << 17  # elements that a thread dequantises at once, within its cache


def _dequantize(kind: Kind, blocks: Blocks, out: np.ndarray) -> None:
    """Blocks as float32 [blocks, groups, elements of a group]."""
    assert kind.parts is not None and kind.coding is not None, kind.name
    codes, scales, minima = kind.parts(blocks)
    if kind.half:
        codes = _nibbles(codes.reshape(-1, kind.half))
    np.copyto(out, codes.reshape(out.shape))
    if minima is None:
        out -= 1 << kind.coding.bits - 1
    out *= scales[:, :, None]
    if minima is not None:
        out += minima[:, :, None]


class _KindError(ValueError):
    """A type of tensors that is not supported: the file is whole."""


class _Cursor:
    """Reads values one after the other. ValueError where the file ends before one."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise ValueError("it ends within its header; is it truncated?")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return bytes(self.take(self.number("<Q"))).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < 4:
            inner, count = self.number("<I"), self.number("<Q")
            if form := _NUMBERS.get(inner):
                return np.frombuffer(self.take(count * struct.calcsize(form)), form).tolist()
            if count > len(self.data) - self.at:
                raise ValueError(f"an array of {count} values is not within it")
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"a value of type {kind}, which GGUF has not")
        return self.number(_NUMBERS[kind])


class GGUFFile:
    """A file's metadata and tensors.

    Attributes:
        metadata: its keys and values.
        kinds: the name of each tensor's type: "Q4_0" ..
        shapes: of the tensors, rows first: the reverse of how the file has them.

    Raises: FileNotFoundError, and CheckpointException for a file that is none, is truncated or damaged, is
    big-endian, or has types of tensors that are not supported; it says which are.
    """

    def __init__(self, path: Any) -> None:
        self.path = os.fspath(path)
        self.metadata: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, tuple[int, int]] = {}  # kind, first byte
        with open(self.path, "rb") as file:
            try:
                if os.fstat(file.fileno()).st_size < 24:
                    raise ValueError("it is too short")
                self._mapped = Mapped(file)
                self._read(_Cursor(memoryview(self._mapped.map)))
            except _KindError as error:
                raise CheckpointException(f"{self.path}: {error}") from error
            except ValueError as error:
                raise CheckpointException(
                    f"{self.path} is no GGUF file, or a damaged one: {error}"
                ) from error

    def _read(self, cursor: _Cursor) -> None:
        if bytes(cursor.take(4)) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = cursor.number("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported, only 2 and 3, little-endian")
        tensors, values = cursor.number("<Q"), cursor.number("<Q")
        for _ in range(values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.number("<I"))
        found = [self._entry(cursor) for _ in range(tensors)]
        unit = self.metadata.get("general.alignment", 32)
        if type(unit) is not int or unit < 8 or unit % 8:
            raise ValueError(f"general.alignment is {unit!r:.40}, not a multiple of 8")
        begin = -(-cursor.at // unit) * unit
        for name, kind, shape, offset in found:
            title, elements, size, *_ = KINDS[kind]
            if shape[-1] % elements or offset % unit or name in self.shapes:
                raise ValueError(
                    f"{name!r:.80} is there twice, or has sizes or a place that {title} cannot have"
                )
            end = begin + offset + math.prod(shape) // elements * size
            if end > len(cursor.data):
                raise ValueError(
                    f"{name!r:.80} ends at byte {end}, the file at {len(cursor.data)}; is it truncated?"
                )
            self.shapes[name], self.kinds[name] = shape, title
            self._places[name] = kind, begin + offset

    @staticmethod
    def _entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
        name, dims = cursor.string(), cursor.number("<I")
        if not 1 <= dims <= 4:
            raise ValueError(f"{name!r:.80} has {dims} dims")
        shape = tuple(cursor.number("<Q") for _ in range(dims))[::-1]
        kind, offset = cursor.number("<I"), cursor.number("<Q")
        if 0 in shape:
            raise ValueError(f"{name!r:.80} has the shape {shape}")
        if kind not in KINDS:
            known = ", ".join(title for title, *_ in KINDS.values())
            title = _OTHERS.get(kind, "unknown")
            raise _KindError(
                f"{name!r:.80} has type {kind} ({title}), supported are {known}: convert the file to one"
            )
        return name, kind, shape, offset

    def _blocks(self, name: str) -> tuple[Kind, Blocks]:
        number, at = self._places[name]
        kind = KINDS[number]
        count = math.prod(self.shapes[name]) // kind.elements
        return kind, self._mapped.tensor(at, warptape.uint8, (count, kind.bytes)).numpy()

    def read(self, name: str) -> Tensor:
        """A tensor: as it is stored, in the mapped file, or dequantised to float32."""
        number, at = self._places[name]
        kind, shape = KINDS[number], self.shapes[name]
        if kind.parts is None or kind.coding is None:
            return self._mapped.tensor(at, kind.dtype, shape)
        blocks = self._blocks(name)[1]
        out = np.empty((len(blocks), kind.elements // kind.coding.group, kind.coding.group), np.float32)
        step = _AT_ONCE // kind.elements
        with ThreadPoolExecutor(warptape.get_num_threads()) as pool:  # NumPy lets other threads run meanwhile
            for _ in pool.map(
                lambda i: _dequantize(kind, blocks[i : i + step], out[i : i + step]),
                range(0, len(blocks), step),
            ):
                pass
        return warptape.from_numpy(out.reshape(shape))

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored."""
        return KINDS[self._places[name][0]].coding

    def codes(self, name: str) -> Codes:
        """A quantised matrix as it is stored."""
        kind, blocks = self._blocks(name)
        assert kind.parts is not None and kind.coding is not None, name
        rows = self.shapes[name][0]
        parts = (None if x is None else warptape.from_numpy(x.reshape(rows, -1)) for x in kind.parts(blocks))
        codes, scales, minima = parts
        assert codes is not None and scales is not None, name
        return Codes(kind.coding.bits, codes, scales, minima, kind.half)


# ---- decoders ----

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.down_proj": "ffn_down",
}
NAMES = NameMap(
    {
        "embed_tokens.*": "token_embd.*",
        "norm.*": "output_norm.*",
        "lm_head.*": "output.*",
        "layers.*.self_attn.qkv_proj.*": tuple(f"blk.*.attn_{part}.*" for part in "qkv"),
        "layers.*.mlp.gate_up_proj.*": ("blk.*.ffn_gate.*", "blk.*.ffn_up.*"),
        **{f"layers.*.{ours}.*": f"blk.*.{theirs}.*" for ours, theirs in _LAYER.items()},
    },
    ignore=("rope_freqs.weight",),
)
# Their architecture -> what it implies. Mistral's models are llama's to them.
_IMPLIED: dict[str, dict[str, bool]] = {"llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}
_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}


# Tokens that end a turn in llama.cpp's eyes, whatever the file says of them (src/llama-vocab.cpp).
ENDS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "< EOT >", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
))  # fmt: skip
_MARKS = (3, 4)  # types of tokens: control, user-defined


def _short(value: Any) -> Any:
    """A float32 as the shortest decimal that it is: 1e-06, not 9.99999997e-07."""
    return float(str(np.float32(value))) if type(value) is float else value


class GGUFDecoder(GGUFFile):
    """A file with a decoder of one of the architectures llama, qwen2 and qwen3: a source of its weights.

    Attributes:
        config: what its metadata say.
        dtype: float16 or bfloat16 where all its matrices are, else float32.

    Raises: CheckpointException as a GGUFFile; ValueError for other architectures, and what they lack.
    """

    names: NameMap | None = NAMES

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        try:
            self.config = self._config()
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        kinds = {self.kinds[name] for name, shape in self.shapes.items() if len(shape) > 1}
        self.dtype = warptape.float32
        if kinds in ({"F16"}, {"BF16"}):
            self.dtype = warptape.float16 if kinds == {"F16"} else warptape.bfloat16

    def _config(self) -> DecoderConfig:
        kind = self.metadata.get("general.architecture")
        if not isinstance(kind, str) or kind not in _IMPLIED:
            raise ValueError(f"unknown architecture {kind!r:.40}; supported: {', '.join(_IMPLIED)}")
        of = {key.removeprefix(f"{kind}."): value for key, value in self.metadata.items()}
        absent = [f"{kind}.{key}" for key in _KEYS.values() if key not in of]
        absent += [] if "token_embd.weight" in self.shapes else ["token_embd.weight"]
        if absent:
            raise ValueError(f"a file of a {kind} model needs {', '.join(absent)}")
        if of.get("expert_count"):
            raise ValueError("mixtures of experts are not supported")
        fields: dict[str, Any] = {name: _short(of[key]) for name, key in _KEYS.items()}
        fields |= {name: _short(of[key]) for name, key in _OPTIONAL.items() if key in of}
        fields["qkv_bias"] = "blk.0.attn_q.bias" in self.shapes
        fields |= _IMPLIED[kind]
        for which, theirs in (("bos", "bos"), ("pad", "padding")):
            fields[f"{which}_token_id"] = self.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        ends = self._end_tokens()
        fields["eos_token_id"] = ends if len(ends) > 1 else next(iter(ends), None)
        config = DecoderConfig(
            vocab_size=self.shapes["token_embd.weight"][0],
            architecture=kind,
            tie_word_embeddings="output.weight" not in self.shapes,
            **fields,
        )
        turned = of.get("rope.dimension_count", config.head_dim)
        if turned != config.head_dim:
            raise ValueError(
                f"rotary positions of {turned} of {config.head_dim} are not supported: only whole heads"
            )
        scaling = self._scaling(config, of)
        return replace(config, rope_scaling=scaling)

    def _end_tokens(self) -> list[int]:
        """What ends a text, a turn or a message, as llama.cpp has it: by their keys, and by their texts."""
        keys = [self.metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom")]
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        types = self.metadata.get("tokenizer.ggml.token_type", [])
        named = [i for i, kind in enumerate(types[: len(tokens)]) if kind in _MARKS and tokens[i] in ENDS]
        return list(dict.fromkeys(i for i in [*keys, *named] if isinstance(i, int)))

    def _scaling(self, config: DecoderConfig, of: Mapping[str, Any]) -> RotaryScaling | None:
        kind = of.get("rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise ValueError(f"rotary scaling {kind!r:.40} is not supported, only linear and Llama 3's")
        if "rope_freqs.weight" not in self.shapes:
            if kind == "none":
                return None
            return RotaryScaling(rope_type="linear", factor=_short(of.get("rope.scaling.factor")))
        # Llama 3's: the file has what each pair's speed is divided by, but not of what numbers it was made.
        given = super().read("rope_freqs.weight").float()
        scaling = RotaryScaling(rope_type="llama3", factor=round(float(given.max()), 4))
        pair = (Rotary(config.head_dim, config.rope_theta, each).frequencies() for each in (None, scaling))
        plain, slowed = pair
        if given.shape != plain.shape or not warptape.allclose(plain / slowed, given, rtol=1e-4):
            raise ValueError("rope_freqs.weight is not as Llama 3 has it, which alone is supported")
        return scaling

    def _ordered(self, name: str, x: Tensor) -> Tensor:
        """Rows as our model has them: in llama's queries and keys the two halves of a head are interleaved
        there."""
        if self.config.architecture != "llama" or not (".attn_q." in name or ".attn_k." in name):
            return x
        heads = x.shape[0] // self.config.head_dim
        return x.reshape(heads, self.config.head_dim // 2, 2, -1).transpose(1, 2).reshape(x.shape)

    def read(self, name: str) -> Tensor:
        """A tensor, as our model has it."""
        return self._ordered(name, super().read(name))

    def codes(self, name: str) -> Codes:
        """A matrix in few bits, as our model has it."""
        x = super().codes(name)
        minima = None if x.minima is None else self._ordered(name, x.minima)
        codes, scales = self._ordered(name, x.codes), self._ordered(name, x.scales)
        return x._replace(codes=codes, scales=scales, minima=minima)
