"""Matrices to blocks of few bits, as a GGUF file has them: the way back from `gguf_kinds`.

A block's codes are those nearest to its numbers, for scales that a search finds: least squares for the codes
of several first scales, then whole scales near by, then the block's own scale by least squares again.

B blocks of G groups of n numbers; q codes, s scales, m minima.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .gguf_kinds import IQ4

Array = np.ndarray
AT_ONCE = 1 << 17  # numbers that are searched for at a time
TRIES = np.linspace(-1, 1, 7)  # by how many codes the first scale may be off
ROUNDS = 1  # of least squares for each
_LARGEST = 1e15  # whose squares float32 still has; kinds end far below
_TOO_LARGE = "a matrix has numbers that are too large for its kind"
NEAR = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))  # from a scale and a minimum to others


# ---- bits ----


def _halves(x: Array) -> Array:
    """Numbers [B] as two bytes each, [B, 2]."""
    return x.astype("<f2").view(np.uint8).reshape(len(x), 2)


def _rows_of_32(codes: Array, bits: int) -> Array:
    """Codes [B, 256] in bytes: each 32 of these have rows of 32 codes, the first one in their lowest bits."""
    many = 8 // bits
    rows = codes.astype(np.uint8).reshape(len(codes), -1, many, 32)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(rows << shifts, axis=2).reshape(len(codes), -1)


def _six_bits(s: Array, m: Array) -> Array:
    """Scales and minima [B, 8] of six bits in 12 bytes."""
    return np.concatenate(
        [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, (s[:, 4:] & 15) | m[:, 4:] << 4], 1
    )


def _pack_q2_k(q: Array, s: Array, m: Array, d: Array, e: Array) -> Array:
    return np.concatenate([s | m << 4, _rows_of_32(q, 2), _halves(d), _halves(e)], 1)


def _pack_q4_k(q: Array, s: Array, m: Array, d: Array, e: Array) -> Array:
    return np.concatenate([_halves(d), _halves(e), _six_bits(s, m), _rows_of_32(q, 4)], 1)


def _pack_q5_k(q: Array, s: Array, m: Array, d: Array, e: Array) -> Array:
    codes = (_rows_of_32(q >> 4, 1), _rows_of_32(q & 15, 4))
    return np.concatenate([_halves(d), _halves(e), _six_bits(s, m), *codes], 1)


def _pack_q3_k(q: Array, s: Array, d: Array) -> Array:
    s = (s + 32).astype(np.uint8)
    low = (s[:, :8] & 15) | (s[:, 8:] & 15) << 4
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce((s >> 4).reshape(-1, 4, 4) << shifts, axis=1)
    return np.concatenate([_rows_of_32(q >> 2, 1), _rows_of_32(q & 3, 2), low, high, _halves(d)], 1)


def _pack_q6_k(q: Array, s: Array, d: Array) -> Array:
    """Each half of a block has four rows of 32, with low 4 and high 2 bits apart."""
    rows = q.reshape(-1, 2, 4, 32)
    low = (rows[:, :, :2] & 15) | (rows[:, :, 2:] & 15) << 4
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(rows >> 4 << shifts, axis=2)
    parts = [low.reshape(len(q), -1), high.reshape(len(q), -1), s.astype(np.int8).view(np.uint8), _halves(d)]
    return np.concatenate(parts, 1)


def _pack_iq4_nl(q: Array, d: Array) -> Array:
    return np.concatenate([_halves(d), q[:, :16] | q[:, 16:] << 4], 1)


# ---- the search: numbers lie as [n, G, B], so that sums over a group add whole rows ----


def _over(a: Array, b: Array) -> Array:
    """a / b; 0 where b is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b != 0, a / b, np.float32(0))


def _sum(x: Array) -> Array:
    """Of each group, [1, G, B]."""
    return x.sum(0, keepdims=True)


def _blocks(x: Array) -> Array:
    """Of each block, [1, 1, B]."""
    return x.sum((0, 1), keepdims=True)


def _furthest(x: Array, axis: int) -> Array:
    """What is furthest from 0 along an axis."""
    return np.take_along_axis(x, np.abs(x).argmax(axis, keepdims=True), axis)


def _keep(found: list[Array], error: Array, new: tuple[Array, ...], off: Array) -> Array:
    """Takes what is better, in place; the least error."""
    better = off < error
    for old, each in zip(found, new):
        np.copyto(old, each, where=better)
    return np.minimum(error, off)


def _codes(s: Array, x: Array, low: int, high: int) -> Array:
    """Codes of numbers for scales."""
    return np.clip(np.rint(x * _over(np.float32(1), s)), low, high)


def _line(x: Array, q: Array) -> tuple[Array, Array]:
    """The scale and minimum, not below 0, with which codes are nearest to numbers: x = s q - m."""
    n, sx, sq, sqq, sqx = len(x), _sum(x), _sum(q), _sum(q * q), _sum(q * x)
    s = _over(n * sqx - sq * sx, n * sqq - sq * sq)
    m = (s * sq - sx) / n
    wrong = (m < 0) | (s < 0)
    return np.maximum(np.where(wrong, _over(sqx, sqq), s), 0), np.where(wrong, np.float32(0), m)


def _lines(x: Array, most: int) -> tuple[Array, Array]:
    """The best scales and minima of groups."""
    low = np.minimum(x.min(0, keepdims=True), 0)
    span = np.maximum(x.max(0, keepdims=True), 0) - low
    found, error = [span / most, -low], np.full(low.shape, np.inf)
    for off in TRIES:
        s, m = span / np.float32(most + off), -low
        for _ in range(ROUNDS):
            s, m = _line(x, _codes(s, x + m, 0, most))
        away = _sum((s * _codes(s, x + m, 0, most) - m - x) ** 2)
        error = _keep(found, error, (s, m), away)
    return found[0], found[1]


def _steps(x: Array, low: int, high: int) -> Array:
    """The best scales of groups, which codes of low to high are multiplied with."""
    furthest = _furthest(x, 0)
    found, error = [furthest / low], np.full(furthest.shape, np.inf)
    for off in TRIES:
        for end in (low + off, -(low + off)):
            s = furthest / np.float32(end)
            for _ in range(ROUNDS):
                q = _codes(s, x, low, high)
                s = _over(_sum(q * x), _sum(q * q))
            error = _keep(found, error, (s,), _sum((s * _codes(s, x, low, high) - x) ** 2))
    return found[0]


def _half(x: Array) -> Array:
    """As float16 has them. ValueError for those that it has not."""
    with np.errstate(over="ignore"):
        out: Array = x.astype(np.float16).astype(x.dtype)
    if not np.isfinite(out).all():
        raise ValueError(_TOO_LARGE)
    return out


def _flat(x: Array) -> Array:
    """[n, G, B] -> [B, G n]"""
    return np.ascontiguousarray(x.transpose(2, 1, 0)).reshape(x.shape[2], -1)


class _Lined(NamedTuple):
    """A kind whose groups have scales and minima: codes up to `most`.

    Args:
        group: n.
        most: the largest code.
        largest: the largest scale and minimum.
        pack: makes bytes of codes, scales, minima, and what these are multiplied by.
    """

    group: int
    most: int
    largest: int
    pack: Callable[..., Array]

    def __call__(self, x: Array) -> Array:
        """Numbers [B, 256] -> bytes."""
        x = np.ascontiguousarray(x.reshape(len(x), -1, self.group).transpose(2, 1, 0))
        s, m = _lines(x, self.most)
        d, e = (_half(each.max(1, keepdims=True) / self.largest) for each in (s, m))
        found, error = [s * 0, m * 0, d * 1, e * 1], np.full(d.shape, np.inf)
        for _ in range(ROUNDS + 1):
            new = (*self._near(x, _over(s, d), _over(m, e), d, e), d, e)
            p, r = new[0] * _codes(new[0] * d, x + new[1] * e, 0, self.most), new[1]
            error = _keep(found, error, new, _blocks((p * d - r * e - x) ** 2))
            d, e = self._own(x, p, r, d, e)
        s, m, d, e = found
        q = _codes(s * d, x + m * e, 0, self.most)
        parts = (_flat(each).astype(np.uint8) for each in (q, s, m))
        return self.pack(*parts, d.reshape(-1), e.reshape(-1))

    def _near(self, x: Array, s: Array, m: Array, d: Array, e: Array) -> tuple[Array, Array]:
        """Of the whole scales and minima near by, those with the least error."""
        found, error = [s * 0, m * 0], np.full(s.shape, np.inf)
        for up, over in NEAR:
            near = tuple(
                np.clip(np.rint(each) + more, 0, self.largest) for each, more in ((s, up), (m, over))
            )
            scale, minimum = near[0] * d, near[1] * e
            q = _codes(scale, x + minimum, 0, self.most)
            error = _keep(found, error, near, _sum((scale * q - minimum - x) ** 2))
        return found[0], found[1]

    @staticmethod
    def _own(x: Array, p: Array, r: Array, d: Array, e: Array) -> tuple[Array, Array]:
        """What scales and minima are multiplied by: x = d p - e r, by least squares."""
        r = np.broadcast_to(r, p.shape)
        pp, pr, rr, px, rx = (_blocks(a * b) for a, b in ((p, p), (p, r), (r, r), (p, x), (r, x)))
        det = pp * rr - pr * pr
        new_d, new_e = _over(px * rr - pr * rx, det), _over(pr * px - pp * rx, det)
        fits = (det > 1e-4 * pp * rr) & (new_d > 0) & (new_e >= 0)
        return _half(np.where(fits, new_d, d)), _half(np.where(fits, new_e, e))


class _Stepped(NamedTuple):
    """A kind whose groups have scales alone, with a sign: codes about `zero`.

    Args:
        group: n.
        zero: the code of 0; the smallest is 0, the largest 2 zero - 1.
        largest: the largest scale; the smallest is one further from 0.
        pack: makes bytes of codes, scales, and what these are multiplied by.
    """

    group: int
    zero: int
    largest: int
    pack: Callable[..., Array]

    def __call__(self, x: Array) -> Array:
        """Numbers [B, 256] -> bytes."""
        x = np.ascontiguousarray(x.reshape(len(x), -1, self.group).transpose(2, 1, 0))
        low, high = -self.zero, self.zero - 1
        s = _steps(x, low, high)
        d = _half(_furthest(s, 1) / -(self.largest + 1))
        found, error = [s * 0, d * 1], np.full(d.shape, np.inf)
        for _ in range(ROUNDS + 1):
            whole = self._near(x, _over(s, d), d)
            p = whole * _codes(whole * d, x, low, high)
            error = _keep(found, error, (whole, d), _blocks((p * d - x) ** 2))
            d = _half(_over(_blocks(p * x), _blocks(p * p)))
        whole, d = found
        q = _codes(whole * d, x, low, high) + self.zero
        return self.pack(_flat(q).astype(np.uint8), _flat(whole).astype(np.int16), d.reshape(-1))

    def _near(self, x: Array, s: Array, d: Array) -> Array:
        found, error = [s * 0], np.full(s.shape, np.inf)
        for up in (-1, 0, 1):
            near = np.clip(np.rint(s) + up, -self.largest - 1, self.largest)
            q = _codes(near * d, x, -self.zero, self.zero - 1)
            error = _keep(found, error, (near,), _sum((near * d * q - x) ** 2))
        return found[0]


_BETWEEN = (IQ4[1:].astype(np.float32) + IQ4[:-1]) / 2


def _in_table(s: Array, x: Array) -> Array:
    return np.searchsorted(_BETWEEN, x * _over(np.float32(1), s))


def _iq4_nl(x: Array) -> Array:
    """Numbers [B, 32] -> bytes: codes of a table."""
    x = np.ascontiguousarray(x.T)[:, None]  # [32, 1, B]
    furthest = _furthest(x, 0)
    found, error = [furthest * 0], np.full(furthest.shape, np.inf)
    for off in 6 * TRIES:
        for end in (IQ4[0] + off, IQ4[-1] + off):
            s = furthest / np.float32(end)
            for _ in range(ROUNDS):
                v = IQ4.astype(x.dtype)[_in_table(s, x)]
                s = _over(_sum(v * x), _sum(v * v))
            s = _half(s)
            error = _keep(found, error, (s,), _sum((s * IQ4[_in_table(s, x)] - x) ** 2))
    codes = _in_table(found[0], x)
    return _pack_iq4_nl(_flat(codes).astype(np.uint8), found[0].reshape(-1))


#: By name: elements of a block, and what makes its bytes.
MAKERS: dict[str, tuple[int, Any]] = {
    "Q2_K": (256, _Lined(16, 3, 15, _pack_q2_k)),
    "Q3_K": (256, _Stepped(16, 4, 31, _pack_q3_k)),
    "Q4_K": (256, _Lined(32, 15, 63, _pack_q4_k)),
    "Q5_K": (256, _Lined(32, 31, 63, _pack_q5_k)),
    "Q6_K": (256, _Stepped(16, 32, 127, _pack_q6_k)),
    "IQ4_NL": (32, _iq4_nl),
}


def quantized(kind: str, x: Array) -> Array:
    """A matrix in few bits: numbers [.., I] -> uint8 [.., bytes of a row].

    Args:
        kind: one of MAKERS.
        x: rows of whole blocks.

    Raises: ValueError for numbers that are not finite or too large.
    """
    elements, make = MAKERS[kind]
    if not np.isfinite(x).all():
        raise ValueError("a matrix has numbers that are not finite")
    if np.abs(x).max(initial=0) > _LARGEST:
        raise ValueError(_TOO_LARGE)
    rows = np.ascontiguousarray(x).reshape(-1, elements)
    step = max(AT_ONCE // elements, 1)
    parts = [make(rows[i : i + step].astype(np.float32)) for i in range(0, len(rows), step)]
    return np.concatenate(parts).reshape(*x.shape[:-1], -1)
