"""flex_attention against the dense formula, block masks against what they stand for, and causal biases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.nn.attention import bias
from warptape.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

B, H, T, S, D = 2, 4, 37, 50, 8


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() < 9


def inputs(heads: int = H, requires_grad: bool = False) -> list[wt.Tensor]:
    wt.manual_seed(1)
    sizes = [(B, H, T, D), (B, heads, S, D), (B, heads, S, 6)]
    return [wt.randn(s, dtype=wt.float64, requires_grad=requires_grad) for s in sizes]


def dense(q: Any, k: Any, v: Any, score: Any = None, mask: Any = None, scale: float | None = None) -> Any:
    """The formula, number by number: `score` and `mask` are called with Python ints."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    places = np.ndindex(*scores.shape)
    if score is not None:
        scores = wt.stack([score(scores[at], *at) for at in np.ndindex(*scores.shape)]).reshape(scores.shape)
    if mask is not None:
        seen = wt.tensor([bool(mask(*(wt.tensor(i) for i in at))) for at in places]).reshape(scores.shape)
        scores = scores.masked_fill(~seen, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return weights @ v


def close(a: wt.Tensor, b: wt.Tensor) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


SLOPES = wt.tensor([0.5, 0.25, 0.125, 0.0], dtype=wt.float64)
TABLE = wt.randn(H, T, S, dtype=wt.float64, generator=wt.Generator().manual_seed(2))
SCORES = {
    "slopes of ALiBi": lambda s, b, h, q, k: s - SLOPES[h] * (q - k),
    "a table of biases": lambda s, b, h, q, k: s + TABLE[h, q, k],
    "soft capping": lambda s, b, h, q, k: 3 * wt.tanh(s / 3),
    "by batch": lambda s, b, h, q, k: s * (b + 1),
    # A row of the table is added up: under broadcasting its dim would meet those of the places.
    "a reduction of what is captured": lambda s, b, h, q, k: s + TABLE[h, q].sum(-1),
}


@pytest.mark.parametrize("name", SCORES)
def test_modified_scores_and_their_gradients(name: str) -> None:
    if name.startswith("a reduction"):
        sizes = [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)]
        leaves = [wt.randn(s, dtype=wt.float64, requires_grad=True) for s in sizes]
    else:
        leaves = [x.detach()[:1, :, :9].requires_grad_() for x in inputs()]
    again = [x.detach().clone().requires_grad_() for x in leaves]
    out, want = flex_attention(*leaves, SCORES[name]), dense(*again, SCORES[name])
    close(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    for x, y in zip(leaves, again):
        close(x.grad, y.grad)


def test_captured_tensors_get_gradients() -> None:
    q, k, v = (x[:, :, :6] for x in inputs())
    tables = [wt.zeros(H, 6, 6, dtype=wt.float64, requires_grad=True) for _ in range(2)]
    mask = create_block_mask(causal, None, None, 6, 6, BLOCK_SIZE=4)
    flex_attention(q, k, v, lambda s, b, h, i, j: s + tables[0][h, i, j], mask)[..., 0].sum().backward()
    bias = tables[1].masked_fill(wt.ones(6, 6, dtype=wt.bool).triu(1), -math.inf)
    wt.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)[..., 0].sum().backward()
    close(tables[0].grad, tables[1].grad)
    assert tables[0].grad.abs().sum().item() > 0.1


MASKS = {
    "causal": causal,
    "window": window,
    "both": and_masks(causal, window),
    "either": or_masks(causal, lambda b, h, q, k: k < 3),
    "by head and batch": lambda b, h, q, k: (q + h) % 3 >= (k + b) % 3,
    "some queries see nothing": lambda b, h, q, k: (q > 20) & (k < q - 12),
    "nothing": lambda b, h, q, k: q < 0,
    "everything": lambda b, h, q, k: q >= 0,
}


@pytest.mark.parametrize("size", [16, (8, 32), 128])
@pytest.mark.parametrize("name", MASKS)
def test_masked_attention_and_its_gradients(name: str, size: Any) -> None:
    leaves, again = inputs(requires_grad=True), inputs(requires_grad=True)
    every = name == "by head and batch"
    mask = create_block_mask(MASKS[name], B if every else None, H if every else None, T, S, BLOCK_SIZE=size)
    seen = create_mask(MASKS[name], B, H, T, S)
    out = flex_attention(*leaves, block_mask=mask)
    scores = again[0] @ again[1].mT / math.sqrt(D)
    scores = scores.masked_fill(~seen, -math.inf)
    blind = (~seen).all(-1, keepdim=True)
    want = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0) @ again[2]
    close(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    for x, y in zip(leaves, again):
        close(x.grad, y.grad)


def test_dense_masks_are_the_function_place_by_place() -> None:
    got = create_mask(MASKS["by head and batch"], B, H, 5, 6)
    for at in np.ndindex(B, H, 5, 6):
        b, h, q, k = at
        assert got[at].item() is ((q + h) % 3 >= (k + b) % 3)
    assert create_mask(causal, None, None, 3, 4).tolist() == np.tri(3, 4, dtype=bool)[None, None].tolist()
    moved = create_mask(lambda s, b, h, q, k: s + q * 10 + k, 1, 1, 2, 3)
    assert moved.tolist() == [[[[0, 1, 2], [10, 11, 12]]]]


def test_grouped_heads_scale_and_sums() -> None:
    q, k, v = inputs(heads=2)
    mask = create_block_mask(causal, None, None, T, S, BLOCK_SIZE=16)
    out, lse = flex_attention(q, k, v, None, mask, scale=0.3, enable_gqa=True, return_lse=True)
    scores = q @ k.repeat_interleave(2, 1).mT * 0.3
    scores = scores.masked_fill(~wt.ones(T, S, dtype=wt.bool).tril(), -math.inf)
    close(out, scores.softmax(-1) @ v.repeat_interleave(2, 1))
    close(lse, scores.logsumexp(-1))
    _, aux = flex_attention(q, k, v, None, mask, 0.3, True, return_aux=AuxRequest(lse=True, max_scores=True))
    close(aux.lse, lse)
    close(aux.max_scores, scores.amax(-1))
    assert flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest())[1] == (None, None)


def test_blocks_that_nobody_sees_are_not_computed() -> None:
    """Keys and values there are NaN, which any use would spread."""
    q, k, v = inputs()
    want = flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, T, S, BLOCK_SIZE=16))
    k[:, :, 48:], v[:, :, 48:] = math.nan, math.nan
    mask = create_block_mask(causal, None, None, T, S, BLOCK_SIZE=16)
    close(flex_attention(q, k, v, block_mask=mask), want)
    asked = []

    def counted(b: Any, h: Any, i: Any, j: Any) -> Any:
        asked.append((int(i.min()), int(i.max()), int(j.min()), int(j.max())))
        return i >= j

    mask = create_block_mask(counted, None, None, 32, 32, BLOCK_SIZE=16)
    asked.clear()
    flex_attention(q[:, :, :32], k[:, :, :32], v[:, :, :32], block_mask=mask)
    assert asked == [(0, 15, 0, 15), (16, 31, 0, 31)]


def test_blocks_are_listed() -> None:
    mask = create_block_mask(causal, None, None, 300, 400)
    assert mask.shape == (1, 1, 300, 400) and mask.numel() == 120_000
    assert mask.kv_num_blocks.tolist() == [[[1, 1, 3]]]
    assert mask.kv_indices.tolist() == [[[[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3]]]]
    assert mask.full_kv_num_blocks.tolist() == [[[0, 1, 0]]]
    assert mask.q_num_blocks.tolist() == [[[2, 2, 1, 0]]] and mask.kv_indices.dtype == wt.int32
    assert mask.q_indices.tolist() == [[[[0, 2, 1], [1, 2, 0], [2, 0, 1], [0, 1, 2]]]]
    assert mask.to_dense().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]]]
    assert mask.sparsity() == pytest.approx(18.08)
    assert mask.to_string() == "(0, 0)\n░░      \n██░░    \n░░░░░░  "
    assert str(mask).startswith("BlockMask(shape=(1, 1, 300, 400), sparsity=18.08%") and "causal" in repr(
        mask
    )
    cropped = mask._adjust(200, 256)
    assert cropped.kv_num_blocks.tolist() == [[[1, 1]]] and cropped.full_kv_num_blocks.tolist() == [[[0, 1]]]
    again = BlockMask.from_kv_blocks(
        mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, mask_mod=causal
    )
    assert again.shape == (1, 1, 384, 512) and wt.equal(again.to_dense(), mask.to_dense())
    several = create_block_mask(MASKS["by head and batch"], B, H, 64, 64, BLOCK_SIZE=16)
    assert several[1, 2].shape == (1, 1, 64, 64) and several[:, -1:, 1:3].kv_indices.shape == (B, 1, 2, 4)
    assert several.to("cpu").as_tuple()[0] == 64 and several.to_string().endswith("specific batch or head")
    whole = create_block_mask(causal, None, None, 300, 400, separate_full_blocks=False)
    assert whole.full_kv_indices is None and wt.equal(whole.to_dense(), mask.to_dense())


def test_without_modifications_it_is_scaled_dot_product_attention() -> None:
    q, k, v = inputs()
    close(flex_attention(q, k, v), wt.nn.functional.scaled_dot_product_attention(q, k, v))
    half = [x.bfloat16() for x in (q, k, v)]
    out = flex_attention(*half, lambda s, b, h, i, j: s)
    assert out.dtype == wt.bfloat16
    np.testing.assert_allclose(out.float().numpy(), flex_attention(q, k, v).float().numpy(), atol=0.05)


REFUSED = {
    "dims": (lambda q, k, v: flex_attention(q[0], k, v), NotImplementedError, "4D"),
    "heads": (lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]), ValueError, "Hq=4 and Hkv=2. Try"),
    "groups": (
        lambda q, k, v: flex_attention(q, k[:, :3], v[:, :3], enable_gqa=True), ValueError,
        "multiple of kv heads",
    ),
    "dtypes": (lambda q, k, v: flex_attention(q, k.float(), v), ValueError, "same dtype"),
    "width": (lambda q, k, v: flex_attention(q, k[..., :3], v), ValueError, "E=8 and E=3"),
    "keys": (lambda q, k, v: flex_attention(q, k[:, :, :3], v), ValueError, "differ"),
    "shorter": (
        lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, T, 9)),
        ValueError, "smaller length",
    ),
    "longer": (
        lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, T, 99)),
        ValueError, "_adjust",
    ),
    "other batch": (
        lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, 3, None, T, S)),
        ValueError, "same B, got 3 and 2",
    ),
    "both sums": (
        lambda q, k, v: flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest()), ValueError,
        "not both",
    ),
    "arguments": (lambda q, k, v: create_mask(lambda a, b: a, 1, 1, 2, 2), AssertionError, "got 2"),
    "a score for a mask": (
        lambda q, k, v: create_block_mask(lambda s, b, h, i, j: s, 1, 1, 2, 2), AssertionError,
        "4 positional",
    ),
    "no function": (lambda q, k, v: and_masks(causal, 3), RuntimeError, "callable mask_mods"),
    "counts": (lambda q, k, v: BlockMask.from_kv_blocks(wt.ones(2), wt.ones(2, 2)), TypeError, "integers"),
    "own error": (
        lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + TABLE[9]), IndexError, "9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_refused(name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call(*inputs())


def test_causal_biases() -> None:
    upper, lower = bias.causal_upper_left(3, 4), bias.causal_lower_right(3, 4)
    assert upper.tolist() == np.tri(3, 4, dtype=bool).tolist()
    assert lower.tolist() == np.tri(3, 4, 1, dtype=bool).tolist()
    assert isinstance(lower, bias.CausalBias) and lower.variant == bias.CausalVariant.LOWER_RIGHT
    q, k = wt.randn(1, 1, 3, 8), wt.randn(1, 1, 4, 8)
    out = wt.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=lower)
    want = wt.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=wt.ones(3, 4).tril(1).bool())
    assert wt.equal(out.as_subclass(wt.Tensor), want)
    with pytest.raises(AssertionError, match="2D"):
        bias.causal_upper_left(3)


@pytest.mark.parity
def test_pytorch_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    arrays = [x.numpy() for x in inputs()]
    for name, mod in MASKS.items():
        mask = theirs.create_block_mask(
            mod if name not in ("both", "either") else causal, B, H, T, S, device="cpu"
        )
        ours = create_block_mask(mod if name not in ("both", "either") else causal, B, H, T, S)
        assert ours.to_dense().tolist() == mask.to_dense().tolist()
        assert ours.kv_indices.tolist() == mask.kv_indices.tolist()
        out, lse = flex_attention(*map(wt.from_numpy, arrays), block_mask=ours, return_lse=True)
        want, sums = theirs.flex_attention(*map(torch.from_numpy, arrays), block_mask=mask, return_lse=True)
        np.testing.assert_allclose(out.numpy(), want.numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(lse.numpy(), sums.numpy(), rtol=1e-5)
