"""The tensor-core kernels of attention on the emulated device against a dense formula in float64: as they are
they must be right in every order of threads, and with a planted fault they must not. Shapes: B batch, H query
heads, K key heads, T queries, S keys, D and E head sizes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from emulated_kernels import EMULATOR, ORDERS, ROOT, RUNTIME, compile_one, link, needs_compiler, run_program

pytestmark = needs_compiler

KERNELS: tuple[str, ...] = ("attention_mma", "attention_mma_backward", "attention_plain")
KERNELS += ("attention_wgmma", "attention_wgmma_backward")
FAR = 1 << 40
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}  # of the largest value


class Case(NamedTuple):
    h: int
    k: int
    t: int
    s: int
    d: int
    e: int
    causal: bool = False
    b: int = 1
    mask: str = ""  # "bool" or "added"
    dropout: int = 0  # in percent


DENSE = {
    "heads of 64": Case(2, 2, 130, 270, 64, 64),
    "heads of 64, causal, grouped": Case(4, 2, 150, 150, 64, 64, True, 2),
    "heads of 128": Case(1, 1, 70, 200, 128, 128),
    "heads of 128, causal, grouped": Case(2, 1, 200, 200, 128, 128, True),
    "narrow heads, more queries": Case(1, 1, 300, 100, 24, 40, True),
    "narrow heads, more keys": Case(1, 1, 40, 300, 80, 120, True),
    "one of each": Case(1, 1, 1, 1, 64, 64, True),
    "one query, grouped, splits of the keys": Case(8, 2, 1, 1200, 128, 128, b=2),
    "one query, narrow heads, splits of the keys": Case(3, 1, 1, 600, 24, 40),
    "a few queries, splits of the keys": Case(2, 1, 7, 1100, 64, 64),
    "a few queries, splits that nobody sees": Case(2, 2, 16, 1100, 64, 80, True),
    "a few queries, splits, mask, dropout": Case(4, 2, 3, 1101, 64, 64, mask="bool", dropout=30),
    "dropout": Case(2, 1, 150, 203, 64, 64, dropout=20),
    "dropout, heads of 128, causal, grouped": Case(4, 2, 140, 140, 128, 128, True, 2, dropout=50),
    "bool mask": Case(2, 1, 150, 203, 128, 128, mask="bool"),
    "bool mask, dropout": Case(2, 2, 140, 150, 64, 64, b=2, mask="bool", dropout=20),
    "added mask": Case(2, 1, 150, 203, 64, 64, mask="added"),
    "added mask, dropout, heads of 128, causal": Case(1, 1, 200, 200, 128, 128, True, 2, "added", 10),
}


class Packed(NamedTuple):
    lengths: tuple[tuple[int, int], ...]  # queries and keys of each sequence
    h: int
    k: int
    d: int
    left: int = -1
    right: int = -1
    ill: int | None = None  # a sequence of NaN


SEQUENCES = {
    "all keys": Packed(((70, 70), (0, 0), (1, 1), (40, 40)), 2, 1, 64),
    "causal": Packed(((130, 130), (3, 3), (0, 5), (64, 64)), 2, 2, 64, -1, 0),
    "causal, other numbers of keys": Packed(((40, 90), (90, 40), (5, 0), (66, 70)), 2, 1, 128, -1, 0),
    "window": Packed(((150, 150), (20, 100)), 1, 1, 64, 30, 10),
    "window that leaves tiles out": Packed(((400, 400), (300, 20), (20, 300)), 1, 1, 128, 40, 0),
    "heads of 128, grouped": Packed(((150, 200), (64, 64), (200, 130)), 4, 2, 128, -1, 0),
    "a sequence of NaN": Packed(((70, 70), (90, 150), (150, 90)), 2, 1, 64, ill=1),
    "a sequence of NaN, causal, heads of 128": Packed(((70, 70), (90, 90), (40, 40)), 2, 1, 128, -1, 0, 1),
}

# File, what is taken out, and the case that shows it. On a GPU each would read what is not there yet, or
# overwrite what is still read.
FORWARD, BACKWARD, SPLITS = "attention_wgmma", "attention_wgmma_backward", "attention_mma"
LONG, TALL = Case(1, 1, 64, 700, 64, 64), Case(1, 1, 300, 64, 64, 64)
FEW, ILL = Case(4, 2, 1, 1100, 64, 64), SEQUENCES["a sequence of NaN"]
DROPPED = DENSE["bool mask, dropout"]
COMMON = "attention_wgmma.cuh"  # of both
FAULTS: list[tuple[str, str, Case | Packed]] = [
    (SPLITS, "    from = maximum(from, int64_t(blockIdx.y) * kSplitKeys);\n", FEW),
    (SPLITS, "    seen = minimum(seen, int64_t(blockIdx.y + 1) * kSplitKeys);\n", FEW),
    (FORWARD, "  wait_barrier(&barriers.q, 0);\n", LONG),
    (FORWARD, "    wait_barrier(&barriers.k.full[keys.stage], keys.parity);\n", LONG),
    (FORWARD, "    wait_barrier(&barriers.v.full[values.stage], values.parity);\n", LONG),
    (FORWARD, "    wait_barrier(&ring.empty[turn.stage], turn.parity ^ 1);\n", LONG),
    (FORWARD, "    fence_products();\n    ask_scores", LONG),
    (FORWARD, "    wait_products<0>();\n    advance(at.from);", LONG),
    (FORWARD, "    wait_products<1>();\n", LONG),
    (FORWARD, "    wait_products<0>();  // what read the last probabilities\n", LONG),
    (BACKWARD, "  wait_barrier(&barriers.ring.full[turn.stage], turn.parity);\n", LONG),
    (BACKWARD, "  wait_barrier(&barriers.ring.empty[turn.stage], turn.parity ^ 1);\n", LONG),
    (BACKWARD, "    wait_products<0>();  // the gradient of the last keys, the scores of these\n", LONG),
    (BACKWARD, "      wait_products<0>();  // the gradients by the last queries, these scores\n", TALL),
    (BACKWARD, "      release(last);\n    }\n    ask_gradients", TALL),
    (BACKWARD, "    fence_products();\n    ask_product<T>(result", LONG),
    (FORWARD, "    if constexpr (!Plain) bits.find(p, part, places(at.from));\n", DROPPED),
    (
        FORWARD,
        "      if constexpr (!Plain) bits.find(p, part, places(s0));  // beside the products\n",
        DROPPED,
    ),
    (FORWARD, "    if (!Plain && p.threshold) drop_scores(s, p, bits);\n", DROPPED),
    (
        BACKWARD,
        "    if constexpr (!Plain) bits.find(p, part, places(s0));  // beside the products\n",
        DROPPED,
    ),
    (BACKWARD, "    if constexpr (!Plain) mask_scores<T>(s, p, part, places(s0), bits);\n", DROPPED),
    (BACKWARD, "    if constexpr (!Plain) mask_scores<T>(s, p, part, places(), bits);\n", DROPPED),
    (FORWARD, "    tail.clear(part.keys - s0, tiles.v[values.stage]);\n", ILL),
    (BACKWARD, "  tail.clear(count, tiles.pairs[turn.stage].of[0], tiles.pairs[turn.stage].of[1]);\n", ILL),
    (COMMON, "    parity ^= 1;\n", ILL),
]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("attention")
    with ThreadPoolExecutor(2) as pool:
        jobs = {
            n: pool.submit(compile_one, ROOT / f"kernels/cuda/attention/{n}.cu", folder / f"{n}.cu.o", True)
            for n in KERNELS
        }
        jobs |= {
            n: pool.submit(compile_one, EMULATOR / f"{n}.cpp", folder / f"{n}.o", False)
            for n in (*RUNTIME, "test_attention")
        }
        return {name: job.result() for name, job in jobs.items()}


@pytest.fixture(scope="module")
def program(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(list(objects.values()), tmp_path_factory.mktemp("program") / "test_attention")


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """To what the dtype can hold."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


Arrays = tuple[np.ndarray, ...]


def dense(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    up: np.ndarray,
    first: int,
    last: int,
    mask: np.ndarray | None = None,
    factors: np.ndarray | float = 1.0,
) -> Arrays:
    """out, lse, dq, dk, dv of [B, H, T, D] and [B, K, S, D], in float64; query t sees keys t + first to
    t + last. `mask` [B, 1, T, S] is added to scores, `factors` [B, H, T, S] are dropout's."""
    b, h, t, d = q.shape
    heads, s = k.shape[1:3]
    q, up = (x.reshape(b, heads, h // heads, t, x.shape[-1]).astype(np.float64) for x in (q, up))
    k, v = (x[:, :, None].astype(np.float64) for x in (k, v))
    place = np.arange(s)[None] - np.arange(t)[:, None]
    if isinstance(factors, np.ndarray):
        factors = factors.reshape(b, heads, h // heads, t, s)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(d) + (0 if mask is None else mask[:, None])
    scores = np.where((place >= first) & (place <= last), scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(scores).sum(-1, keepdims=True))
        p = np.where(np.isinf(scores), 0, np.exp(scores - lse))
    out = (p * factors) @ v
    slopes = p * (factors * (up @ v.swapaxes(-1, -2)) - (up * out).sum(-1, keepdims=True)) / np.sqrt(d)
    dq = slopes @ k
    dk, dv = ((x.swapaxes(-1, -2) @ y).sum(2) for x, y in ((slopes, q), (p * factors, up)))
    return out.reshape(b, h, t, v.shape[-1]), lse.reshape(b, h, t), dq.reshape(b, h, t, d), dk, dv


def philox(count: int, seed: int = 7, call: int = 3) -> np.ndarray:
    """The first numbers of a key, by Philox4x32-10 (Salmon et al. 2011, table 2 and figure 4)."""
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [block & low, block >> high, np.full_like(block, call), np.zeros_like(block)]
    keys = [seed, 0]
    for _ in range(10):
        x, y = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [y >> high ^ c[1] ^ np.uint64(keys[0]), y & low, x >> high ^ c[3] ^ np.uint64(keys[1]), x & low]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, -1).ravel()[:count]


def call(
    program: Path, folder: Path, kernel: str, dtype: str, order: str, header: list[int], data: Arrays
) -> list[np.ndarray] | str:
    """out, lse, dq, dk and dv, flat; or how it ended."""
    with (folder / "input").open("wb") as file:
        np.array(header, np.int64).tofile(file)
        for x in data:
            x.tofile(file)
    done = run_program(program, kernel, dtype, folder / "input", folder / "output", order=order)
    if done.returncode:
        return done.stderr + done.stdout
    b, h, k, t, s, d, e = header[:7]
    sizes = [b * h * t * e, b * h * t, b * h * t * d, b * k * s * d, b * k * s * e]
    found = np.fromfile(folder / "output", np.float32)
    return np.split(found, np.cumsum(sizes)[:-1])


def differences(got: list[np.ndarray] | str, expected: Arrays, dtype: str) -> list[str]:
    if isinstance(got, str):
        return [got]
    wrong = []
    for what, x, y in zip(("out", "lse", "dq", "dk", "dv"), expected, got, strict=True):
        finite = np.isfinite(x.ravel())
        if not np.array_equal(x.ravel()[~finite], y[~finite]):
            wrong.append(f"{what}: not the same infinities")
        error = np.abs(x.ravel()[finite] - y[finite]).max(initial=0)
        if not error <= TOLERANCES[dtype] * max(1, np.abs(x.ravel()[finite]).max(initial=0)):  # NaN, too
            wrong.append(f"{what}: {error}")
    return wrong


def run_dense(program: Path, folder: Path, kernel: str, case: Case, dtype: str, order: str) -> list[str]:
    rng = np.random.default_rng(0)
    b, h, k, t, s, d, e = case.b, case.h, case.k, case.t, case.s, case.d, case.e
    shapes = ((b, h, t, d), (b, k, s, d), (b, k, s, e), (b, h, t, e))
    q, keys, v, up = (rounded(rng.standard_normal(shape), dtype) for shape in shapes)
    first, last = -FAR, 0 if case.causal else FAR
    mask, added = rng.standard_normal((b, 1, t, s)), None
    if case.mask == "bool":
        mask = (mask > -0.5).astype(np.float32)
        mask[:, :, t // 2] = 0  # a query that sees no key
        with np.errstate(divide="ignore"):
            added = np.log(mask)
    elif case.mask:
        added = mask = rounded(mask, dtype)
    factors: np.ndarray | float = 1.0
    if case.dropout:
        kept = philox(b * h * t * s) >= np.ceil(case.dropout / 100 * 2**32)
        factors = kept.reshape(b, h, t, s) / (1 - case.dropout / 100)
    header = [b, h, k, t, s, d, e, first, last, 0, 0, 0, ["", "bool", "added"].index(case.mask), case.dropout]
    given = (q, keys, v, up, mask.astype(np.float32)) if case.mask else (q, keys, v, up)
    got = call(program, folder, kernel, dtype, order, header, given)
    return differences(got, dense(q, keys, v, up, first, last, added, factors), dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
def test_as_the_dense_formula(program: Path, tmp_path: Path, kernel: str, name: str, dtype: str) -> None:
    order = ORDERS[list(DENSE).index(name) % 3]
    assert not run_dense(program, tmp_path, kernel, DENSE[name], dtype, order)


def run_sequences(
    program: Path, folder: Path, kernel: str, case: Packed, dtype: str, order: str
) -> list[str]:
    """What differs; a NaN of one sequence must not reach the others."""
    rng = np.random.default_rng(1)
    starts = [np.cumsum([0, *(n[i] for n in case.lengths)]) for i in range(2)]
    t, s = (int(x[-1]) for x in starts)
    h, k, d = case.h, case.k, case.d
    shapes = ((1, h, t, d), (1, k, s, d), (1, k, s, d), (1, h, t, d))
    data = tuple(rounded(rng.standard_normal(shape), dtype) for shape in shapes)
    ill = case.ill
    if ill is not None:
        for x, at in zip(data, (starts[0], starts[1], starts[1], starts[0]), strict=True):
            x[:, :, at[ill] : at[ill + 1]] = np.nan
    first, last = -case.left if case.left >= 0 else -FAR, case.right if case.right >= 0 else FAR
    most = [max(n[i] for n in case.lengths) for i in range(2)]
    header = [1, h, k, t, s, d, d, first, last, len(case.lengths), *most, 0, 0]
    numbers = tuple(x.astype(np.int32) for x in starts)
    got = call(program, folder, kernel, dtype, order, header, (*numbers, *data))
    parts = []
    for (t0, t1), (s0, s1) in zip(pairwise(starts[0]), pairwise(starts[1]), strict=True):
        q, up = data[0][:, :, t0:t1], data[3][:, :, t0:t1]
        shift = (s1 - s0) - (t1 - t0)  # the last query sees the last key
        parts.append(dense(q, data[1][:, :, s0:s1], data[2][:, :, s0:s1], up, first + shift, last + shift))
    expected = tuple(np.concatenate(x, 2) for x in zip(*parts, strict=True))
    if ill is not None and not isinstance(got, str):  # of the ill sequence nothing is compared
        sides = (starts[0], starts[0], starts[0], starts[1], starts[1])
        for i, (x, at) in enumerate(zip(expected, sides, strict=True)):
            y = got[i].reshape(x.shape)
            for z in (x, y):
                z[:, :, at[ill] : at[ill + 1]] = 0
            got[i] = y.ravel()
    return differences(got, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
def test_sequences_as_the_dense_formula_of_each(
    program: Path, tmp_path: Path, kernel: str, name: str, dtype: str
) -> None:
    order = ORDERS[list(SEQUENCES).index(name) % 3]
    assert not run_sequences(program, tmp_path, kernel, SEQUENCES[name], dtype, order)


def run_any(program: Path, folder: Path, case: Case | Packed, order: str) -> list[str]:
    if isinstance(case, Packed):
        return run_sequences(program, folder, "wgmma", case, "bfloat16", order)
    return run_dense(program, folder, "wgmma", case, "bfloat16", order)


@pytest.mark.parametrize("order", ORDERS)
def test_long_rows_in_every_order(program: Path, tmp_path: Path, order: str) -> None:
    for case in {case for *_, case in FAULTS}:
        assert not run_any(program, tmp_path, case, order)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f[0]}: {f[1].strip()[:50]}")
def test_a_planted_fault_shows(
    objects: dict[str, Path], tmp_path: Path, fault: tuple[str, str, Case | Packed]
) -> None:
    name, old, case = fault
    is_header = name.endswith(".cuh")
    file = f"kernels/cuda/attention/{name}" if is_header else f"kernels/cuda/attention/{name}.cu"
    text = (ROOT / file).read_text()
    assert text.count(old) == 1, old
    source = tmp_path / file
    source.parent.mkdir(parents=True)
    kept = old.partition("\n")[2]  # the first line goes
    source.write_text(text.replace(old, kept))
    wrong = dict(objects)
    for kernels in (FORWARD, BACKWARD) if is_header else (name,):
        at = (ROOT if is_header else tmp_path) / f"kernels/cuda/attention/{kernels}.cu"
        wrong[kernels] = compile_one(at, tmp_path / f"{kernels}.cu.o", True, tmp_path, "-Wno-unused")
    program = link(list(wrong.values()), tmp_path / "wrong")
    assert any(run_any(program, tmp_path, case, order) for order in ORDERS)


# What is taken out of the choice between cuDNN's kernels and our own.
CHOICES = [
    "",
    "    if (call.captured) return false;  // and the next call measures\n",
    "    if (const State state = state_.load(); state != State::Unknown) return state == State::Own;\n",
    " && !deterministic",
    " && (proven || asked == AttentionKernels::Measured)",
    "    if (call.is_own()) return own();\n",
    "    own(), library();  // the first calls load code\n",
]


@pytest.mark.parametrize("left_out", CHOICES, ids=lambda x: x.strip()[:40] or "as it is")
def test_choice_by_a_set_clock(tmp_path: Path, left_out: str) -> None:
    header = "kernels/cuda/attention/attention_choice.h"
    text = (ROOT / header).read_text()
    assert left_out in text
    (tmp_path / header).parent.mkdir(parents=True)
    (tmp_path / header).write_text(text.replace(left_out, "") if left_out else text)
    program = link(
        [compile_one(EMULATOR / "test_choice.cpp", tmp_path / "choice.o", False, first=tmp_path)],
        tmp_path / "choice",
    )
    done = run_program(program, order="forward")
    assert (done.returncode == 0) == (left_out == ""), done.stdout
