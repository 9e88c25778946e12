"""varlen_attn against dense attention of each sequence, its bits, and what it refuses. Shapes: T queries and
S keys of all sequences, H query heads, K key heads, D and E head sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

LENGTHS = {
    "equal": ((5, 5), (70, 70), (1, 1)),
    "empty ones": ((0, 0), (7, 7), (0, 0), (3, 3), (0, 0)),
    "fewer queries": ((3, 40), (1, 90), (30, 33)),
    "fewer keys": ((40, 3), (9, 0), (0, 9), (60, 20)),
}
WINDOWS = {"all": (-1, -1), "causal": (-1, 0), "left": (4, 0), "both": (10, 3), "right": (-1, 2)}
H, K, D, E = 4, 2, 8, 6


def starts(lengths: Any, side: int) -> list[int]:
    return [int(x) for x in np.cumsum([0, *(n[side] for n in lengths)])]


def numbers(values: list[int]) -> wt.Tensor:
    return wt.tensor(values, dtype=wt.int32)


def inputs(lengths: Any, heads: int = K, dtype: Any = wt.float64) -> list[wt.Tensor]:
    wt.manual_seed(2)
    t, s = starts(lengths, 0)[-1], starts(lengths, 1)[-1]
    shapes = [(t, H, D), (s, heads, D), (s, heads, E)]
    return [wt.randn(*shape, dtype=wt.float64).to(dtype).requires_grad_() for shape in shapes]


def call(lengths: Any, tensors: list[wt.Tensor], **more: Any) -> Any:
    q, k = starts(lengths, 0), starts(lengths, 1)
    most = [max(b - a for a, b in pairwise(x)) for x in (q, k)]
    return varlen_attn(*tensors, numbers(q), numbers(k), *most, enable_gqa=True, **more)


def seen(t: int, s: int, window: tuple[int, int]) -> np.ndarray:
    place = np.arange(s)[None] - (np.arange(t)[:, None] + s - t)
    left, right = (n if n >= 0 else t + s + 1 for n in window)
    return (place >= -left) & (place <= right)


def dense(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, window: tuple[int, int], scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Output [T, H, E] and log-sum-exp [H, T] of one sequence."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) * scale
    scores = np.where(seen(q.shape[0], k.shape[0], window), scores, -np.inf)
    weights = np.exp(scores)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(weights.sum(-1))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    return np.einsum("hts,she->the", weights, v), lse


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("name", LENGTHS)
def test_as_the_dense_formula_of_each_sequence(name: str, window: tuple[int, int]) -> None:
    lengths = LENGTHS[name]
    tensors = inputs(lengths)
    out, lse = call(lengths, tensors, window_size=window, scale=0.7, return_aux=AuxRequest(lse=True))
    q, k, v = (x.detach().numpy() for x in tensors)
    parts = [
        dense(q[t0:t1], k[s0:s1], v[s0:s1], window, 0.7)
        for (t0, t1), (s0, s1) in zip(pairwise(starts(lengths, 0)), pairwise(starts(lengths, 1)), strict=True)
    ]
    np.testing.assert_allclose(out.detach().numpy(), np.concatenate([x for x, _ in parts]), atol=1e-12)
    np.testing.assert_allclose(lse.numpy(), np.concatenate([x for _, x in parts], 1), atol=1e-12)
    assert not lse.requires_grad


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("name", LENGTHS)
def test_gradients_as_of_dense_attention(name: str, window: tuple[int, int]) -> None:
    lengths = LENGTHS[name]
    tensors = inputs(lengths)
    out = call(lengths, tensors, window_size=window)
    up = wt.randn(*out.shape, dtype=wt.float64)
    got = wt.autograd.grad(out, tensors, up)
    total = wt.zeros((), dtype=wt.float64)
    q, k, v = tensors
    for (t0, t1), (s0, s1) in zip(pairwise(starts(lengths, 0)), pairwise(starts(lengths, 1)), strict=True):
        if t0 == t1 or s0 == s1:
            continue
        one = wt.nn.functional.scaled_dot_product_attention(
            *(x[a:b].transpose(0, 1)[None] for x, a, b in ((q, t0, t1), (k, s0, s1), (v, s0, s1))),
            attn_mask=wt.tensor(seen(t1 - t0, s1 - s0, window)),
            enable_gqa=True,
        )
        total = total + (one[0].transpose(0, 1) * up[t0:t1]).sum()
    for x, y in zip(got, wt.autograd.grad(total, tensors), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), atol=1e-12)


def test_gradients_by_differences() -> None:
    lengths = ((3, 4), (0, 1), (2, 2))
    wt.autograd.gradcheck(lambda *x: call(lengths, list(x), window_size=(-1, 0)), inputs(lengths))


@pytest.mark.parametrize("dtype", [wt.float32, wt.bfloat16, wt.float16])
def test_bits_do_not_depend_on_the_neighbours(dtype: Any) -> None:
    lengths = ((30, 30), (50, 50), (2, 2))
    tensors = inputs(lengths, dtype=dtype)
    out = call(lengths, tensors, window_size=(-1, 0))
    assert out.dtype == dtype
    alone = call(((50, 50),), [x[30:80] for x in tensors], window_size=(-1, 0))
    assert wt.equal(out[30:80], alone)
    grads = wt.autograd.grad(out, tensors, wt.ones_like(out))
    for x, y in zip(grads, wt.autograd.grad(alone, tensors, wt.ones_like(alone)), strict=True):
        assert wt.equal(x[30:80], y[30:80])


def test_used_keys_and_rows_in_no_sequence() -> None:
    q, k, v = (x.detach() for x in inputs(((9, 30),)))
    more = {"max_q": 4, "max_k": 16, "enable_gqa": True, "window_size": (-1, 0)}
    got = varlen_attn(q, k, v, numbers([0, 2, 6]), numbers([0, 14, 30]), seqused_k=numbers([5, 0]), **more)
    expected = varlen_attn(q[:2], k[:5], v[:5], numbers([0, 2]), numbers([0, 5]), **more)
    assert wt.equal(got[:2], expected)
    assert not got[2:].any()


def test_strided_inputs_and_an_output() -> None:
    lengths = ((5, 5), (8, 8))
    packed = wt.randn(13, 3, H, D)
    q, k, v = packed.unbind(1)
    expected = call(lengths, [q.clone(), k.clone(), v.clone()])
    assert wt.equal(call(lengths, [q, k, v]), expected)
    out = wt.empty(13, H, D)
    c = numbers(starts(lengths, 0))
    got, lse = varlen_attn_out(out, q, k, v, c, c, 8, 8, return_aux=AuxRequest(lse=True))
    assert got is out and wt.equal(out, expected) and lse.shape == (H, 13)
    with pytest.raises(RuntimeError, match="expected out of"):
        varlen_attn_out(out[:5], q, k, v, c, c, 8, 8)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "heads": ({"enable_gqa": False}, ValueError, "same number of heads"),
    "no cu_seq_k": ({"cu_seq_k": None}, ValueError, "expected cu_seq_k"),
    "pages": ({"block_table": wt.zeros(1, 1, dtype=wt.int32)}, NotImplementedError, "block_table"),
    "int64": ({"cu_seq_q": wt.tensor([0, 5])}, RuntimeError, "of dtype int32"),
    "another count": ({"cu_seq_k": wt.tensor([0, 2, 5], dtype=wt.int32)}, RuntimeError, "cu_seq_k"),
    "not from 0": ({"cu_seq_q": wt.tensor([1, 5], dtype=wt.int32)}, ValueError, "begin with 0"),
    "falling": ({"cu_seq_k": wt.tensor([0, -1], dtype=wt.int32)}, ValueError, "to rise"),
    "too far": ({"cu_seq_k": wt.tensor([0, 6], dtype=wt.int32), "max_k": 9}, ValueError, "number of rows, 5"),
    "max_q": ({"max_q": 4}, ValueError, "more than max_q, 4"),
    "window": ({"window_size": (1,)}, ValueError, "length 2"),
    "used": ({"seqused_k": wt.tensor([6], dtype=wt.int32)}, ValueError, "seqused_k from 0"),
    "four dims": ({"query": wt.ones(1, 5, H, D)}, RuntimeError, r"query \[T, H, D\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    changed, error, text = REFUSED[name]
    q, k, v = (x.detach() for x in inputs(((5, 5),), dtype=wt.float32))
    c = numbers([0, 5])
    arguments = {"query": q, "key": k, "value": v, "cu_seq_q": c, "cu_seq_k": c, "max_q": 5, "max_k": 5}
    with pytest.raises(error, match=text):
        varlen_attn(**({"enable_gqa": True} | arguments | changed))


def test_gradients_that_are_not_there() -> None:
    tensors = inputs(((5, 5),))
    with pytest.raises(RuntimeError, match="inference-only"):
        call(((5, 5),), tensors, seqused_k=numbers([3]))
    out = call(((5, 5),), tensors)
    with pytest.raises(NotImplementedError, match="gradients of its gradients"):
        wt.autograd.grad(out.sum(), tensors, create_graph=True)
