"""Attention to keys in pages: its values, and that a row depends on its own sequence alone, to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import warptape as wt
from warptape._C import _private

SIZE, POOL = 32, 160  # tokens of a page, pages
NAN = float("nan")


@dataclass
class Case:
    heads: int
    kv_heads: int
    d: int
    window: int | None = None
    dtype: wt.dtype = wt.float32
    cap: float | None = None
    sinks: tuple[float, ...] | None = None  # of each head

    def options(self) -> dict[str, object]:
        return {
            "window": self.window,
            "cap": self.cap,
            "sinks": None if self.sinks is None else wt.tensor(self.sinks),
        }


CASES = {
    "grouped": Case(8, 2, 64),
    "one to one": Case(4, 4, 80),
    "many to one": Case(9, 1, 10),
    "window": Case(4, 2, 32, window=70),
    "narrow window": Case(4, 2, 16, window=5),
    "wide window": Case(2, 1, 24, window=1100),
    "bfloat16": Case(8, 2, 64, dtype=wt.bfloat16),
    "capped": Case(8, 2, 32, cap=1.5),
    "sinks": Case(4, 2, 32, sinks=(-3.0, 0.0, 1.5, 40.0)),
    "capped, with sinks and a window": Case(4, 2, 16, window=40, cap=2.0, sinks=(0.5, -1.0, 6.0, 2.0)),
}
LENGTHS = (1, 33, 200, 2300)


class Sequence:
    """Queries, keys and values of all tokens of a sequence."""

    def __init__(self, case: Case, length: int) -> None:
        rng = np.random.default_rng(length)
        shapes = ((length, case.heads, case.d), *((length, case.kv_heads, case.d),) * 2)
        self.q, self.k, self.v = (
            wt.tensor(rng.standard_normal(shape).astype(np.float32)).to(case.dtype) for shape in shapes
        )

    def reference(self, case: Case) -> np.ndarray:
        q, k, v = (x.double().numpy() for x in (self.q, self.k, self.v))
        group, n = case.heads // case.kv_heads, len(q)
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & (distance < (case.window or n))
        out = np.empty_like(q)
        for h in range(case.heads):
            scores = q[:, h] @ k[:, h // group].T / case.d**0.5
            if case.cap is not None:
                scores = case.cap * np.tanh(scores / case.cap)
            scores = np.where(seen, scores, -np.inf)
            sink = -np.inf if case.sinks is None else case.sinks[h]
            top = np.maximum(scores.max(1, keepdims=True), sink)
            p = np.exp(scores - top)
            out[:, h] = p @ v[:, h // group] / (p.sum(1, keepdims=True) + np.exp(sink - top))
        return out


class Pool:
    """Pages full of NaN, handed out in an order that the seed decides."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.keys = wt.full((POOL, case.kv_heads, case.d, SIZE), NAN, dtype=case.dtype)
        self.values = wt.full((POOL, case.kv_heads, SIZE, case.d), NAN, dtype=case.dtype)
        self.free = [int(p) for p in np.random.default_rng(seed).permutation(POOL)]
        self.pages: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}

    def step(self, parts: list[tuple[Sequence, int]]) -> list[wt.Tensor]:
        """The next n tokens of some sequences: what attention gives for each."""
        q, k, v, slots, starts, lengths = [], [], [], [], [0], []
        for s, n in parts:
            pages, done = self.pages.setdefault(id(s), []), self.done.get(id(s), 0)
            self.done[id(s)] = end = done + n
            while len(pages) * SIZE < end:
                pages.append(self.free.pop())
            for all_, part in ((q, s.q), (k, s.k), (v, s.v)):
                all_.append(part[done:end])
            slots += [pages[i // SIZE] * SIZE + i % SIZE for i in range(done, end)]
            starts.append(starts[-1] + n)
            lengths.append(end)
        _private._paged_store(self.keys, self.values, wt.cat(k), wt.cat(v), wt.tensor(slots))
        tables = [self.pages[id(s)] for s, _ in parts]
        width = max(map(len, tables))
        table = [row + [-7] * (width - len(row)) for row in tables]  # unused places may hold anything
        metadata = (wt.tensor(x, dtype=wt.int32) for x in (table, starts, lengths))
        out = _private._paged_attention(wt.cat(q), self.keys, self.values, *metadata, **self.case.options())
        return [out[a:b] for a, b in pairwise(starts)]


def cut(rng: np.random.Generator, length: int) -> list[int]:
    """Parts of a prompt: long ones, short ones and single tokens."""
    parts = []
    while (rest := length - sum(parts)) > 0:
        parts.append(min(rest, int(rng.choice([1, 3, 31, 64, 130, 700, 1500]))))
    return parts


def alone(case: Case, s: Sequence) -> wt.Tensor:
    return Pool(case).step([(s, len(s.q))])[0]


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    case = CASES[name]
    for length in LENGTHS[:-1] if name != "grouped" else LENGTHS:
        s = Sequence(case, length)
        got, want = alone(case, s), s.reference(case)
        assert got.shape == s.q.shape and got.dtype == case.dtype
        tolerance = 2e-2 if case.dtype == wt.bfloat16 else 2e-6
        assert np.abs(got.double().numpy() - want).max() < tolerance


@pytest.mark.parametrize("name", CASES)
def test_load_changes_nothing(name: str) -> None:
    """Alone or among others, in any parts, in any pages: the same bits."""
    case, rng = CASES[name], np.random.default_rng(5)
    sequences = [Sequence(case, n) for n in LENGTHS]
    want = [alone(case, s) for s in sequences]
    for seed in range(3):
        pool, todo = Pool(case, seed + 1), {i: cut(rng, n) for i, n in enumerate(LENGTHS)}
        got: list[list[wt.Tensor]] = [[] for _ in sequences]
        while any(todo.values()):
            turn = [i for i in rng.permutation(len(sequences)) if todo[i] and rng.random() < 0.7]
            parts = [(sequences[i], todo[i].pop(0)) for i in turn]
            for i, out in zip(turn, pool.step(parts) if parts else []):
                got[i].append(out)
        for rows, expected in zip(got, want):
            assert wt.equal(wt.cat(rows), expected)


@pytest.mark.parametrize("name", ["grouped", "window"])
def test_one_by_one(name: str) -> None:
    """Decoding from the first token on gives what a prefill of all gives, also over the border of a split."""
    case = CASES[name]
    s = Sequence(case, 1100)
    pool = Pool(case, 9)
    got = [pool.step([(s, 1)])[0] for _ in range(1100)]
    assert wt.equal(wt.cat(got), alone(case, s))


def test_threads_change_nothing() -> None:
    case = CASES["grouped"]
    s, others = Sequence(case, 2300), [Sequence(case, n) for n in (1, 40)]
    before, results = wt.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            wt.set_num_threads(threads)
            pool = Pool(case)
            parts = [pool.step([(s, 2299), *((o, 1) for o in others)])[0], pool.step([(s, 1)])[0]]
            results.append(wt.cat(parts))
    finally:
        wt.set_num_threads(before)
    assert wt.equal(results[0], results[1]) and wt.equal(results[0], results[2])


def test_strided_inputs() -> None:
    """Heads of a projection, as a decoder has them."""
    case = CASES["grouped"]
    s = Sequence(case, 40)
    want = alone(case, s)
    whole = wt.cat([s.q, s.k, s.v], 1)  # [N, H + 2 K, D]
    s.q, s.k, s.v = whole.split([case.heads, case.kv_heads, case.kv_heads], 1)
    assert wt.equal(alone(case, s), want)


@pytest.mark.parametrize("dtype", [wt.float32, wt.bfloat16])
def test_int8_pages(dtype: wt.dtype) -> None:
    rng = np.random.default_rng(0)
    k, v, q = (wt.tensor(rng.standard_normal((50, 2, 16)).astype(np.float32)).to(dtype) for _ in range(3))
    k[3] = 0
    pages = [wt.full((3, 2, *rest), 99, dtype=wt.int8) for rest in ((16, SIZE), (SIZE, 16))]
    scales = {f"{part}_scales": wt.full((3, 2, SIZE), NAN) for part in ("key", "value")}
    slots = wt.cat([wt.arange(32) + 64, wt.arange(18)])
    _private._paged_store(*pages, k, v, slots, **scales)
    stored = []
    for x, held, scale in (
        (k, pages[0].transpose(2, 3), scales["key_scales"]),
        (v, pages[1], scales["value_scales"]),
    ):
        got_scale = scale.transpose(1, 2).reshape(96, 2)[slots]
        got = held.transpose(1, 2).reshape(96, 2, 16)[slots].float()
        step = x.float().abs().amax(-1) / 127
        assert wt.allclose(got_scale, step, rtol=1e-6)
        assert ((got - x.float() / step.clamp_min(1e-9).unsqueeze(-1)).abs() <= 0.5 + 1e-4).all()
        stored.append(got * got_scale.unsqueeze(-1))
    table, starts, lengths = (wt.tensor(x, dtype=wt.int32) for x in ([[2, 0]], [0, 50], [50]))
    got = _private._paged_attention(q, *pages, table, starts, lengths, **scales)
    s = Sequence(Case(2, 2, 16), 1)
    s.q, s.k, s.v = q, *stored
    assert np.abs(got.double().numpy() - s.reference(Case(2, 2, 16))).max() < (
        2e-2 if dtype == wt.bfloat16 else 1e-5
    )
    last = wt.tensor([0, 1], dtype=wt.int32)
    assert wt.equal(_private._paged_attention(q[-1:], *pages, table, last, lengths, **scales), got[-1:])


def test_what_does_not_fit_is_refused() -> None:
    keys, values = wt.zeros(4, 2, 8, SIZE), wt.zeros(4, 2, SIZE, 8)
    k, q = wt.ones(3, 2, 8), wt.zeros(3, 4, 8)

    def store(slots: object, error: type[Exception], match: str, **other: wt.Tensor) -> None:
        given = {"key_pages": keys, "value_pages": values, "k": k, "v": k} | other
        with pytest.raises(error, match=match):
            _private._paged_store(**given, slots=wt.tensor(slots))

    def attend(error: type[Exception], match: str, **other: object) -> None:
        given: dict[str, object] = {"q": q, "key_pages": keys, "value_pages": values}
        given |= {"page_table": [[0, 3]], "starts": [0, 3], "lengths": [35]} | other
        for name in ("page_table", "starts", "lengths"):
            if not isinstance(given[name], wt.Tensor):
                given[name] = wt.tensor(given[name], dtype=wt.int32)
        with pytest.raises(error, match=match):
            _private._paged_attention(**given)

    shape, dtype = (wt._C.ShapeError, wt._C.DtypeError)
    store([0, 1, 128], IndexError, "slot 128 of token 2 is not within the 4 pages")
    store([0, -1, 2], IndexError, "slot -1 of token 1")
    store([0, 1], shape, "a slot for each token")
    store([0, 1, 2], shape, r"expected k \[N, 2, 8\]", k=wt.ones(3, 1, 8))
    store([0, 1, 2], dtype, "of the pages' dtype", k=k.bfloat16(), v=k.bfloat16())
    store([0, 1, 2], shape, "expected key_pages", value_pages=wt.zeros(4, 2, 8, SIZE))
    store([0, 1, 2], dtype, "float32, bfloat16 or int8", key_pages=keys.half(), value_pages=values.half())
    store([0, 1, 2], ValueError, "contiguous", key_pages=wt.zeros(4, 2, SIZE, 8).transpose(2, 3))
    store([0, 1, 2], ValueError, "key_scales with int8", key_scales=wt.zeros(4, 2, SIZE))
    store([0, 1, 2], RuntimeError, "no gradient", k=k.clone().requires_grad_())
    assert (keys == 0).all() and (values == 0).all()
    attend(IndexError, "page 4 of sequence 0 at place 1 is not one of 4", page_table=[[0, 4]])
    attend(IndexError, "page -1 of sequence 0 at place 0", page_table=[[-1, 3]])
    attend(ValueError, "cannot have length 65", lengths=[65])
    attend(ValueError, "cannot have length 2", lengths=[2])
    attend(ValueError, "starts from 0 to the number of queries, 3, got 0 to 2", starts=[0, 2])
    attend(ValueError, "starts to rise", starts=[0, 4])
    attend(ValueError, "starts to rise", starts=[0, 2, 1], page_table=[[0, 3]] * 2, lengths=[35, 35])
    attend(shape, r"starts \[R \+ 1\]", starts=[0, 1, 3])
    attend(shape, "a multiple of 2, 8", q=wt.zeros(3, 3, 8))
    attend(dtype, "starts of dtype int32", starts=wt.tensor([0, 3]))
    attend(ValueError, "a window above 0", window=0)
    attend(ValueError, "key_scales with int8", key_pages=keys.to(wt.int8), value_pages=values.to(wt.int8))
    attend(RuntimeError, "no gradient", q=q.clone().requires_grad_())
    attend(ValueError, "a cap above 0, got 0", cap=0.0)
    attend(shape, r"sinks \[4\], one for each query head, got \[2\]", sinks=wt.zeros(2))
    attend(dtype, "sinks of dtype float32", sinks=wt.zeros(4).double())
    attend(RuntimeError, "no gradient", sinks=wt.zeros(4).requires_grad_())
    # What no query sees by its window needs no page.
    table, starts, lengths = (wt.tensor(x, dtype=wt.int32) for x in ([[-1, 3]], [0, 1], [35]))
    _private._paged_attention(q[:1], keys, values, table, starts, lengths, window=3)
