"""Types of a GGUF file's tensors, and what their blocks mean: ggml's ggml-common.h, and dequantize_row_* of
ggml-quants.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from warptape import core as wt

from ._sources import Coding

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


def _high_bits(packed: np.ndarray) -> np.ndarray:
    """Bit i of the bytes of a block is the fifth of code i: 16 where it is set."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _q5_0(b: Blocks) -> Parts:
    return _nibbles(b[:, 6:]) | _high_bits(b[:, 2:6]), _half(b, 0), None


def _q5_1(b: Blocks) -> Parts:
    return _nibbles(b[:, 8:]) | _high_bits(b[:, 4:8]), _half(b, 0), _half(b, 2)


def _rows_of_32(packed: np.ndarray, bits: int) -> np.ndarray:
    """Each 32 bytes are rows of 32 codes, the first one in their lowest bits: [blocks, codes]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    rows = packed.reshape(len(packed), -1, 1, 32) >> shifts & ((1 << bits) - 1)
    return rows.reshape(len(packed), -1)


def _q2_k(b: Blocks) -> Parts:
    """Sixteen groups of 16; a byte of each has four bits of its scale and four of its minimum."""
    s = b[:, :16]
    return _rows_of_32(b[:, 16:80], 2), _half(b, 80) * (s & 15), -(_half(b, 82) * (s >> 4))


def _q3_k(b: Blocks) -> Parts:
    """Sixteen groups of 16, of six bits' scales; a code's third bit lies apart."""
    low, high = b[:, 96:104], b[:, 104:108]
    scales = _nibbles(low) | _quarters(high) << 4
    codes = _rows_of_32(b[:, 32:96], 2) | _rows_of_32(b[:, :32], 1) << 2
    return codes, _half(b, 108) * (scales.astype(np.int8) - 32), None


def _quarters(packed: np.ndarray) -> np.ndarray:
    """The lowest two bits of each byte, then the next ones .."""
    return np.concatenate([packed >> shift & 3 for shift in (0, 2, 4, 6)], 1)


def _q4_k(b: Blocks) -> Parts:
    scales, minima = _k_scales(b)
    return b[:, 16:], scales, minima


def _q5_k(b: Blocks) -> Parts:
    scales, minima = _k_scales(b)
    return _rows_of_32(b[:, 48:], 4) | _rows_of_32(b[:, 16:48], 1) << 4, scales, minima


def _k_scales(b: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Eight groups of 32; their scales and minima have 6 bits, in 12 bytes."""
    s = b[:, 4:16]
    scales = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1)
    minima = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1)
    return _half(b, 0) * scales, -(_half(b, 2) * minima)


# Codes of four bits that are numbers in a table, of eight bits about zero.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)
#: Twice the numbers that float4_e2m1fn has.
TWICE_FLOAT4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)


def _looked_up(table: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Of nibbles in blocks of 16 bytes, the codes of numbers."""
    codes = _nibbles(packed.reshape(len(packed), -1, 16))
    return (table + 128).astype(np.uint8)[codes].reshape(len(packed), -1)


def _iq4_nl(b: Blocks) -> Parts:
    return _looked_up(IQ4, b[:, 2:]), _half(b, 0), None


def _iq4_xs(b: Blocks) -> Parts:
    """Eight groups of 32, of six bits' scales: four of each in its half of a byte, and two in 16 bits."""
    high = b[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], 2).reshape(-1, 8)
    scales = (low | high.astype(np.uint8) << 4).astype(np.int8) - 32
    return _looked_up(IQ4, b[:, 8:]), _half(b, 0) * scales, None


def half_power(exponents: np.ndarray) -> np.ndarray:
    """2 ** (exponent - 128) of bytes, as float32: half of what float8_e8m0fnu means."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def _mxfp4(b: Blocks) -> Parts:
    return _looked_up(TWICE_FLOAT4, b[:, 1:]), half_power(b[:, :1]), None


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
    0: Kind("F32", 1, 4, wt.float32),
    1: Kind("F16", 1, 2, wt.float16),
    30: Kind("BF16", 1, 2, wt.bfloat16),
    2: Kind("Q4_0", 32, 18, None, _q4_0, Coding(4, 32, True), 16),
    3: Kind("Q4_1", 32, 20, None, _q4_1, Coding(4, 32, False), 16),
    8: Kind("Q8_0", 32, 34, None, _q8_0, Coding(8, 32, True)),
    6: Kind("Q5_0", 32, 22, None, _q5_0, Coding(5, 32, True)),
    7: Kind("Q5_1", 32, 24, None, _q5_1, Coding(5, 32, False)),
    10: Kind("Q2_K", 256, 84, None, _q2_k, Coding(2, 16, False)),
    11: Kind("Q3_K", 256, 110, None, _q3_k, Coding(3, 16, True)),
    13: Kind("Q5_K", 256, 176, None, _q5_k, Coding(5, 32, False)),
    20: Kind("IQ4_NL", 32, 18, None, _iq4_nl, Coding(8, 32, True)),
    23: Kind("IQ4_XS", 256, 136, None, _iq4_xs, Coding(8, 32, True)),
    39: Kind("MXFP4", 32, 17, None, _mxfp4, Coding(8, 32, True)),
    12: Kind("Q4_K", 256, 144, None, _q4_k, Coding(4, 32, False), 32),
    14: Kind("Q6_K", 256, 210, None, _q6_k, Coding(6, 16, True)),
}
# Types that ggml has, and this module does not read.
OTHERS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


def dequantize(kind: Kind, blocks: Blocks, out: np.ndarray) -> None:
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
