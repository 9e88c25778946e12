"""Attention on the device against the CPU's kernels: dtypes, grouped heads, masks, dropout, heads wider than
one block takes. Shapes: B batch, H query heads, K key heads, T queries, S keys, D and E head sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape.nn.attention.varlen import AuxRequest, varlen_attn

pytestmark = pytest.mark.cuda


class Case(NamedTuple):
    b: int
    h: int
    k: int
    t: int
    s: int
    d: int
    e: int
    causal: bool = False
    mask: str = ""
    dropout: float = 0.0


CASES = {
    "grouped": Case(2, 4, 2, 70, 90, 20, 36),
    "causal": Case(1, 2, 2, 130, 130, 64, 64, causal=True),
    "more queries than keys": Case(1, 1, 1, 200, 100, 7, 9, causal=True),
    "more keys than queries": Case(1, 2, 2, 65, 150, 16, 16, causal=True),
    "added mask, wide values": Case(1, 2, 1, 5, 300, 8, 200, mask="added"),
    "bool mask, wide keys": Case(2, 2, 2, 66, 65, 130, 16, mask="bool"),
    "dropout": Case(1, 4, 2, 70, 70, 16, 16, causal=True, dropout=0.3),
    "two tiles": Case(2, 2, 1, 130, 140, 64, 64),
    "two tiles, causal": Case(1, 2, 1, 150, 150, 64, 64, causal=True),
    "wide heads": Case(1, 2, 1, 70, 140, 128, 128),
    "wide heads, causal, dropout": Case(1, 2, 2, 140, 140, 128, 96, causal=True, dropout=0.2),
    "wide heads, bool mask": Case(2, 2, 1, 66, 70, 80, 120, mask="bool"),
    "narrow heads, added mask": Case(1, 2, 1, 100, 70, 24, 40, mask="added"),
    "causal, fewer keys": Case(1, 1, 1, 200, 70, 64, 64, causal=True),
    "causal, fewer queries": Case(1, 1, 1, 70, 200, 64, 64, causal=True),
    "one of each": Case(1, 1, 1, 1, 1, 1, 1),
    "no keys": Case(1, 2, 2, 3, 0, 8, 8),
}
# Of the largest value: sums of up to 300 products, each rounded once at the end.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensor(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    return torch.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def mask_of(case: Case, rng: np.random.Generator, dtype: Any) -> Any:
    if case.mask == "bool":
        seen = rng.random((case.b, 1, case.t, case.s)) < 0.6
        seen[:, :, :2] = False  # queries that see no key
        return torch.tensor(seen)
    return tensor(rng, dtype, 1, case.h, 1, case.s) if case.mask else None


def attend(device: str, case: Case, inputs: list[Any], mask: Any, up: Any) -> list[np.ndarray]:
    torch.manual_seed(5)
    leaves = [x.to(device).detach().requires_grad_(True) for x in inputs]
    out = F.scaled_dot_product_attention(
        *leaves,
        attn_mask=None if mask is None else mask.to(device),
        dropout_p=case.dropout,
        is_causal=case.causal,
        enable_gqa=case.h != case.k,
    )
    out.backward(up.to(device))
    return [x.detach().cpu().double().numpy() for x in (out, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name: str, dtype: Any) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    q = tensor(rng, dtype, case.b, case.h, case.t, case.d)
    k, v = (tensor(rng, dtype, case.b, case.k, case.s, size) for size in (case.d, case.e))
    up, mask = tensor(rng, dtype, case.b, case.h, case.t, case.e), mask_of(case, rng, dtype)
    expected = attend("cpu", case, [q, k, v], mask, up)
    got = attend("cuda", case, [q, k, v], mask, up)
    for what, x, y in zip(("out", "dq", "dk", "dv"), expected, got, strict=True):
        assert x.shape == y.shape
        assert np.isfinite(y).all(), what
        assert np.abs(x - y).max(initial=0) <= TOLERANCES[dtype] * max(1, np.abs(x).max(initial=0)), what


def test_query_that_sees_nothing_gets_zeros() -> None:
    q = torch.ones(1, 1, 3, 8, device="cuda")
    seen = torch.tensor([[True, False], [False, False], [True, True]]).to("cuda")
    out = F.scaled_dot_product_attention(q, q[:, :, :2], q[:, :, :2], attn_mask=seen)
    np.testing.assert_array_equal(out.cpu().numpy()[0, 0, :, 0], [1, 0, 1])


def test_equal_inputs_give_equal_bits() -> None:
    rng = np.random.default_rng(1)
    case = Case(2, 4, 2, 100, 100, 32, 32, causal=True)
    q = tensor(rng, torch.bfloat16, 2, 4, 100, 32)
    k, v = (tensor(rng, torch.bfloat16, 2, 2, 100, 32) for _ in range(2))
    first = attend("cuda", case, [q, k, v], None, q)
    for _ in range(3):
        for x, y in zip(first, attend("cuda", case, [q, k, v], None, q), strict=True):
            np.testing.assert_array_equal(x, y)


ALIKE = """
import warptape as torch
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 130, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
first, *more = (torch.nn.functional.scaled_dot_product_attention(q, k, v).cpu() for _ in range(4))
print(all(torch.equal(first, each) for each in more), first.double().sum().item())
"""


def test_kernels_that_are_asked_for_stay() -> None:
    sums = set()
    for kernels in ("own", "mma", "plain"):
        job = [sys.executable, "-c", ALIKE]
        done = subprocess.run(
            job, env=os.environ | {"WARPTAPE_ATTENTION": kernels}, capture_output=True, text=True
        )
        alike, total = done.stdout.split()
        assert alike == "True", kernels
        sums.add(total)
    assert len(sums) > 1  # they round in different places: three kernels ran, and not one


def test_packed_projection() -> None:
    """q, k and v as parts of one [B, T, 3, H, D] tensor, as models make them."""
    rng = np.random.default_rng(2)
    packed = tensor(rng, torch.bfloat16, 2, 40, 3, 4, 16)
    results = []
    for device in ("cpu", "cuda"):
        leaf = packed.to(device).detach().requires_grad_(True)
        q, k, v = (leaf[:, :, i].transpose(1, 2) for i in range(3))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.sum().backward()
        results.append((out.detach().cpu().double().numpy(), leaf.grad.cpu().double().numpy()))
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(x, y, atol=3e-2, rtol=3e-2)


SEQUENCES = {
    "all keys": ([0, 70, 70, 71, 111], [0, 70, 70, 71, 111], (-1, -1), 16),
    "causal": ([0, 40, 130, 135], [0, 90, 130, 130], (-1, 0), 64),
    "window": ([0, 100, 120], [0, 100, 200], (20, 5), 24),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_as_on_the_cpu(name: str, dtype: Any) -> None:
    of_queries, of_keys, window, d = SEQUENCES[name]
    rng = np.random.default_rng(3)
    rows = 3  # in no sequence
    q, up = (tensor(rng, dtype, of_queries[-1] + rows, 2, d) for _ in range(2))
    k, v = (tensor(rng, dtype, of_keys[-1] + rows, 1, d) for _ in range(2))
    results = []
    for device in ("cpu", "cuda"):
        leaves = [x.to(device).detach().requires_grad_(True) for x in (q, k, v)]
        starts = [torch.tensor(x, dtype=torch.int32).to(device) for x in (of_queries, of_keys)]
        aux = AuxRequest(lse=True)
        out, lse = varlen_attn(
            *leaves, *starts, 100, 100, window_size=window, enable_gqa=True, return_aux=aux
        )
        out.backward(up.to(device))
        grads = [leaf.grad for leaf in leaves]
        results.append([x.detach().cpu().double().numpy() for x in (out, lse, *grads)])
    for what, x, y in zip(("out", "lse", "dq", "dk", "dv"), *results, strict=True):
        np.testing.assert_array_equal(np.isfinite(x), np.isfinite(y), what)
        x, y = (np.nan_to_num(z, neginf=0) for z in (x, y))
        assert np.abs(x - y).max() <= TOLERANCES[dtype] * max(1, np.abs(x).max()), what


def test_numbers_out_of_range_stay_within_the_tensors() -> None:
    x = torch.ones(10, 1, 8, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([0, 1000, -5, 8], dtype=torch.int32).to("cuda")
    assert varlen_attn(x, x, x, starts, starts, 64, 64).isfinite().all()
