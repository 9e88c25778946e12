"""Nested tensors as objects: how they are made, what they say of themselves, files, what they refuse."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import warptape as torch
from warptape.nn import functional as F

JAGGED: Any = {"layout": torch.jagged}


def make(*lengths: int, **more: Any) -> Any:
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], **JAGGED, **more)


def holes() -> Any:
    """Three sequences of 1, 1 and 2 rows with rows of nobody between them."""
    values, offsets = torch.arange(24.0).view(6, 4), torch.tensor([0, 2, 3, 6])
    return torch.nested.nested_tensor_from_jagged(values, offsets, torch.tensor([1, 1, 2]))


def test_what_a_nested_tensor_says_of_itself():
    t = make(2, 3)
    j = t.size(1)
    assert t.is_nested and not torch.ones(2).is_nested and t.layout is torch.jagged
    assert (
        t.shape == torch.Size([2, j, 4]) and str(t.shape) == f"torch.Size([2, {j}, 4])" and str(j)[0] == "j"
    )
    assert t.shape[:2] == (2, j) and t.size(-2) == j and t.dim() == t.ndim == 3 and len(t) == 2
    assert t.numel() == 20 and t.stride() == (j * 4, 4, 1) and str(t.stride(0)) == f"4*{j}"
    assert t.is_contiguous() and t.contiguous() is t and t.is_leaf and not t.requires_grad
    assert t.offsets().tolist() == [0, 2, 5] and t.lengths() is None and t.values().shape == (5, 4)
    assert t.offsets().dtype == torch.int64
    text = f"NestedTensor(size=(2, {j}, 4), offsets=tensor([0, 2, 5]), contiguous=True)"
    assert repr(t) == text
    turned = t.transpose(1, 2)
    assert turned.shape == (2, 4, j) and not turned.is_contiguous() and turned.values().shape == (4, 5)
    assert turned.stride() == (j * 4, 1, 4)
    assert "grad_fn=<" in repr(make(1, requires_grad=True) * 2)
    assert t.is_floating_point() and t.dtype == torch.float32 and t.device == torch.device("cpu")
    assert torch.Size([t.size(1), True, 2]) == (j, 1, 2)


def test_the_ragged_size_is_no_number():
    j, k = make(2, 3).size(1), make(2, 3).size(1)
    assert j == j and j != k and j != 3 and j >= 2 and j > 1 and not j < 2 and hash(j) != hash(k)
    assert repr(2 * j) == f"2*{j}" and 2 * j == j * 2
    with pytest.raises(ValueError, match="ge: relation is indeterminate"):
        _ = j >= 3
    with pytest.raises(TypeError, match="the size of a ragged dim is no number"):
        int(j)
    with pytest.raises(TypeError, match="the size of a ragged dim is no number"):
        _ = j + 1
    with pytest.raises(RuntimeError):
        torch.zeros(j)
    with pytest.raises(RuntimeError, match="invalid argument"):
        _ = make(2, 3) * j


def test_structure_is_shared_by_offsets():
    t = make(2, 3)
    other = torch.nested.nested_tensor_from_jagged(torch.ones(5, 4), t.offsets())
    assert other.shape == t.shape and (t + other).shape == t.shape and t.is_same_size(other)
    assert t.double().shape == t.shape and t.double().offsets() is t.offsets()
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function add with inputs of shapes"):
        _ = t + make(2, 3)
    for size in ((2, 4), (3, 1, 4), (2, 2, 4), (5, 4)):
        with pytest.raises(RuntimeError, match="cannot call binary pointwise function mul"):
            _ = t * torch.ones(size)
    with pytest.raises(NotImplementedError, match="larger dim"):
        _ = t * torch.ones(1, 2, 1, 4)


def test_making():
    a, b = torch.ones(2, 3, requires_grad=True), torch.zeros(1, 3)
    leaf = torch.nested.nested_tensor([a, b], requires_grad=True, dtype=torch.float64, **JAGGED)
    assert leaf.is_leaf and leaf.requires_grad and leaf.dtype == torch.float64
    recorded = torch.nested.as_nested_tensor([a, b], **JAGGED)
    assert not recorded.is_leaf
    (recorded * 3).sum().backward()
    assert a.grad is not None and a.grad.tolist() == [[3.0] * 3] * 2
    assert torch.nested.as_nested_tensor(recorded, **JAGGED) is recorded
    assert torch.nested.as_nested_tensor(recorded, dtype=torch.float64, **JAGGED).shape == recorded.shape
    dense = torch.nested.as_nested_tensor(torch.arange(12.0).view(2, 3, 2), **JAGGED)
    assert dense.offsets().tolist() == [0, 3, 6] and dense[1].tolist() == [
        [6.0, 7.0],
        [8.0, 9.0],
        [10.0, 11.0],
    ]
    numbers = torch.nested.nested_tensor([[1, 2], [3]], **JAGGED)
    assert numbers.dtype == torch.int64 and [x.tolist() for x in numbers] == [[1, 2], [3]]
    second = torch.nested.nested_tensor([torch.ones(4, 3), torch.ones(4, 2)], **JAGGED)
    assert second.shape[:2] == (2, 4) and second.values().shape == (4, 5)
    by_lengths = torch.nested.nested_tensor_from_jagged(torch.ones(5, 2), lengths=torch.tensor([2, 0, 3]))
    assert by_lengths.offsets().tolist() == [0, 2, 2, 5] and by_lengths.lengths() is None
    turned = torch.nested.nested_tensor_from_jagged(torch.ones(2, 5), torch.tensor([0, 2, 5]), jagged_dim=2)
    assert turned.shape == (2, 2, turned.size(2)) and turned.unbind()[0].shape == (2, 2)
    empty = torch.nested.nested_tensor([torch.ones(0, 3), torch.ones(0, 3)], **JAGGED)
    assert empty.sum(1).tolist() == [[0.0] * 3] * 2 and empty.numel() == 0 and (empty + 1).numel() == 0
    assert torch.nested.to_padded_tensor(empty, 1.0).shape == (2, 0, 3)


def test_values_are_shared_with_what_it_was_made_of():
    values = torch.zeros(5, 2)
    t = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
    t.add_(1).mul_(3)
    assert values.tolist() == [[3.0, 3.0]] * 5 and t.values().data_ptr() == values.data_ptr()
    t[1].zero_()
    assert values.sum() == 12
    t.copy_(t * 2)
    t.copy_(torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], **JAGGED))
    assert values.sum() == 10
    with pytest.raises(RuntimeError, match="copy_"):
        t.copy_(torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(2, 2)], **JAGGED))
    assert F.relu(t, inplace=True) is t and F.dropout(t, 0.0, inplace=True) is t
    assert t.zero_() is t and t.fill_(2).values().sum() == 20


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), NotImplementedError, "layout=torch.jagged"),
        (lambda: torch.nested.as_nested_tensor([torch.ones(2)]), NotImplementedError, "layout=torch.jagged"),
        (lambda: torch.nested.narrow(torch.ones(2, 3), 1, 0, 1), NotImplementedError, "layout=torch.jagged"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.sparse_coo),
            RuntimeError,
            "layout is unsup",
        ),
        (lambda: torch.nested.nested_tensor([], **JAGGED), RuntimeError, "empty tensor list"),
        (lambda: torch.nested.nested_tensor([torch.ones(())], **JAGGED), RuntimeError, "zero-dim"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2).int()], **JAGGED),
            RuntimeError,
            "same dtype",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2, 1)], **JAGGED),
            RuntimeError,
            "same dim",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 2)], **JAGGED),
            RuntimeError,
            "single ragged",
        ),
        (lambda: torch.nested.as_nested_tensor(3, **JAGGED), TypeError, "Expected first argument"),
        (lambda: torch.nested.as_nested_tensor(torch.ones(3), **JAGGED), RuntimeError, r"dim\(\) > 1"),
        (lambda: torch.nested.nested_tensor_from_jagged(torch.ones(3)), RuntimeError, "At least one of"),
        (
            lambda: torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 3]), jagged_dim=0),
            ValueError,
            ">=1",
        ),
        (
            lambda: torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor(3)),
            RuntimeError,
            "expected offsets",
        ),
        (
            lambda: torch.nested.nested_tensor_from_jagged(
                torch.ones(3), torch.tensor([0, 3]), torch.tensor([1, 2])
            ),
            RuntimeError,
            "batch sizes must match",
        ),
        (
            lambda: torch.nested.narrow(torch.ones(2, 3), 0, 0, 1, **JAGGED),
            RuntimeError,
            "only supports dim=1",
        ),
        (lambda: torch.nested.narrow(torch.ones(2, 3), 1, "a", 1, **JAGGED), RuntimeError, "start must be"),
        (
            lambda: torch.nested.narrow(torch.ones(2, 3), 1, 0, torch.ones(3).int(), **JAGGED),
            RuntimeError,
            "broadcast",
        ),
        (
            lambda: torch.nested.to_padded_tensor(torch.ones(2), 0.0),
            NotImplementedError,
            "expected a nested tensor",
        ),
        (lambda: make(2, 3).to_padded_tensor(0.0, (2, 2, 4)), RuntimeError, "Truncation is not supported"),
        (lambda: make(2, 3).cumsum(1), NotImplementedError, "cumsum: not supported.*to_padded_tensor"),
        (lambda: make(2, 3).sort(-1), NotImplementedError, "sort: not supported.*to_padded_tensor"),
        (lambda: F.conv1d(make(2, 3), torch.ones(1, 4, 1)), NotImplementedError, "conv1d: not supported"),
        (
            lambda: torch.add(torch.ones(5, 4), make(2, 3), out=torch.ones(5, 4)),
            NotImplementedError,
            "into a dense",
        ),
        (lambda: torch.ones(2, 1, 4).add_(make(2, 3)), NotImplementedError, "into a dense"),
        (lambda: make(2, 3).sum(0), RuntimeError, "along the batch dimension but not the ragged"),
        (lambda: make(2, 3).sum((1, 2)), RuntimeError, "along a ragged and non-batch"),
        (lambda: make(2, 3).softmax(0), RuntimeError, "across the batch dimension"),
        (lambda: make(2, 3).sum(3), IndexError, "Dimension out of range"),
        (lambda: make(2, 3)[:, 0], RuntimeError, "not supported for NestedTensor on ragged dim"),
        (lambda: make(2, 3)[0:1], RuntimeError, "not supported for NestedTensor on dim=0"),
        (lambda: make(2, 3)[torch.tensor([0])], NotImplementedError, "__getitem__ by tensors"),
        (lambda: make(2, 3).flatten(1), RuntimeError, "on ragged dim"),
        (lambda: make(2, 3).view(2, 20), RuntimeError, "cannot view shape"),
        (lambda: make(2, 3).transpose(0, 1), ValueError, "batch dimension"),
        (lambda: make(2, 3).permute(1, 0, 2), ValueError, "batch dimension"),
        (lambda: make(2, 3).unbind(1), RuntimeError, "only supported for NestedTensor on dim=0"),
        (
            lambda: torch.cat([make(2, 3)] * 2, 0),
            RuntimeError,
            r"cat\(\): not supported for NestedTensor on dim=0",
        ),
        (lambda: torch.cat([make(2, 3)] * 2, 1), RuntimeError, "on ragged dim"),
        (lambda: torch.stack([make(2, 3)] * 2), RuntimeError, r"stack\(\): not supported"),
        (
            lambda: F.linear(make(2, 3).transpose(1, 2), torch.ones(3, 4)),
            RuntimeError,
            "last dim is not ragged",
        ),
        (lambda: F.layer_norm(make(2, 3), (3, 4)), RuntimeError, "normalizing over the ragged"),
        (lambda: make(2, 3) @ make(2, 3), RuntimeError, r"matmul\(\): not supported between"),
        (lambda: torch.vmap(torch.sin)(make(2, 3)), NotImplementedError, "nested tensors are not mapped"),
        (lambda: make(2, 3).tolist(), RuntimeError, "tolist"),
        (lambda: make(2, 3).numpy(), RuntimeError, "numpy"),
        (lambda: bool(make(2, 3)), RuntimeError, "ambiguous"),
        (lambda: make(2, 3).backward(), RuntimeError, "."),
        (lambda: holes().sum(1), RuntimeError, "with holes"),
        (lambda: holes().softmax(1), RuntimeError, "lengths is not None"),
    ],
)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_attention_refusals():
    t = make(2, 3).unflatten(-1, (2, 2)).transpose(1, 2)
    other = make(2, 3).unflatten(-1, (2, 2)).transpose(1, 2)
    attend = F.scaled_dot_product_attention
    with pytest.raises(ValueError, match="Masks are not yet supported"):
        attend(t, t, t, attn_mask=torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="with the dim 2 ragged"):
        attend(t.transpose(1, 2), t, t)
    with pytest.raises(RuntimeError, match="got a key of"):
        attend(t, torch.ones(2, 2, 3, 2), t)
    with pytest.raises(RuntimeError, match="key and value of one structure"):
        attend(t, t, other)
    with pytest.raises(NotImplementedError, match="is_causal needs"):
        attend(t, other, other, is_causal=True)
    with pytest.raises(RuntimeError, match="enable_gqa"):
        attend(t, t[:, :1], t[:, :1])


def test_gradients_of_a_leaf_are_nested():
    t = make(2, 0, 3, requires_grad=True)
    (t * 2).sum().backward()
    assert t.grad.is_nested and t.grad.shape == t.shape and t.grad is t.grad
    (t * 3).sum().backward()
    assert t.grad.values().tolist() == [[5.0] * 4] * 5 and t.grad.is_nested
    (g,) = torch.autograd.grad(t * 2, t, t.detach())
    assert g.shape == t.shape and torch.equal(g.values(), t.detach().values() * 2)
    (w,) = torch.autograd.grad(torch.exp(t).values().sum(), t)
    assert w.is_nested and torch.allclose(w.values(), t.detach().values().exp())
    seen = []
    y = t * 2
    y.register_hook(lambda grad: seen.append(grad.shape == t.shape))
    y.retain_grad()
    y.backward(torch.ones_like(y))
    assert seen == [True] and y.grad.shape == t.shape
    padded = torch.nested.to_padded_tensor(t, -1.0)
    (g,) = torch.autograd.grad((padded**2).sum(), t)
    assert torch.equal(g.values(), 2 * t.detach().values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_padded(dtype):
    parts = [torch.ones(n, 2).to(dtype) for n in (2, 0, 3)]
    t = torch.nested.nested_tensor(parts, **JAGGED)
    padded = torch.nested.to_padded_tensor(t, 0)
    assert padded.dtype == dtype and padded.shape == (3, 3, 2)
    assert padded.sum((1, 2)).tolist() == [4, 0, 6]
    wide = t.to_padded_tensor(1, output_size=(4, 5, 3))
    assert wide.shape == (4, 5, 3) and wide.to(torch.int64).sum() == 60
    assert torch.equal(wide[0, :2, :2], parts[0])
    assert t.transpose(1, 2).to_padded_tensor(0).shape == (3, 2, 3)


def test_holes():
    t = holes()
    rows = (
        [[0.0, 1.0, 2.0, 3.0]],
        [[8.0, 9.0, 10.0, 11.0]],
        [[12.0, 13.0, 14.0, 15.0], [16.0, 17.0, 18.0, 19.0]],
    )
    assert [x.tolist() for x in t] == list(rows) and t.numel() == 16 and not t.is_contiguous()
    assert t.lengths().tolist() == [1, 1, 2] and t.sum() == sum(x.sum() for x in t.unbind())
    whole = t.contiguous()
    assert whole.is_contiguous() and whole.offsets().tolist() == [0, 1, 2, 4] and whole.lengths() is None
    assert [x.tolist() for x in whole] == list(rows) and [x.tolist() for x in t + 0] == list(rows)
    assert torch.nested.to_padded_tensor(t, 0.0).shape == (3, 2, 4)
    assert (t.clone() * 2).lengths() is t.lengths() and t.sum(-1).shape == (3, t.size(1))
    values = torch.randn(6, 4, requires_grad=True)
    source = torch.nested.nested_tensor_from_jagged(values, t.offsets(), t.lengths())
    heads = source.unflatten(-1, (2, 2)).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads, heads)
    expected = [
        F.scaled_dot_product_attention(*[x.view(-1, 2, 2).transpose(0, 1)] * 3) for x in source.unbind()
    ]
    for got, want in zip(out, expected, strict=True):
        torch.testing.assert_close(got, want)
    got_g = torch.autograd.grad(out.sum(), values, retain_graph=True)[0]
    want_g = torch.autograd.grad(sum(e.sum() for e in expected), values)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(got_g, want_g)


def test_narrow_views_rows_of_a_dense_tensor():
    base = torch.arange(30.0).view(3, 5, 2)
    t = torch.nested.narrow(base, 1, torch.tensor([0, 1, 2]), torch.tensor([2, 0, 3]), **JAGGED)
    expected = [base[0, :2], base[1, 1:1], base[2, 2:5]]
    assert all(torch.equal(a, b) for a, b in zip(t, expected, strict=True)) and not t.is_contiguous()
    t.mul_(0)
    assert base.sum() == 0
    same = torch.nested.narrow(torch.ones(3, 5, 2), 1, 0, 5, **JAGGED)
    assert same.is_contiguous() and same.offsets().tolist() == [0, 5, 10, 15]
    inner = torch.nested.narrow(torch.ones(3, 5, 2), 1, 1, 3, **JAGGED)
    assert inner.sum() == 18 and not inner.is_contiguous()


def test_masked_select():
    mask = torch.tensor([[True, False, True], [False, False, True]])
    t = torch.nested.masked_select(torch.arange(6.0).view(2, 3), mask)
    assert [x.tolist() for x in t] == [[0.0, 2.0], [5.0]] and t.offsets().tolist() == [0, 2, 3]
    none = torch.nested.masked_select(torch.ones(6, 5), torch.tensor([False]))
    assert none.offsets().diff().tolist() == [0] * 6


def test_files_and_copies():
    t, gaps = make(2, 3, requires_grad=True), holes()
    turned = make(2, 3).transpose(1, 2)
    file = io.BytesIO()
    torch.save({"t": t, "gaps": gaps, "turned": turned}, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    again = pickle.loads(pickle.dumps(t))
    for got, want in ((back["t"], t), (back["gaps"], gaps), (back["turned"], turned), (again, t)):
        assert got.requires_grad == want.requires_grad and got.is_nested
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert back["gaps"].lengths().tolist() == [1, 1, 2]
    deep = copy.deepcopy(t)
    assert deep.requires_grad and deep.is_leaf and deep.shape == t.shape
    assert deep.values().data_ptr() != t.values().data_ptr()
    with pytest.raises(RuntimeError, match="only a leaf"):
        copy.deepcopy(t * 2)


def test_factories_like_it_keep_the_structure():
    t = make(2, 3)
    for made in (
        torch.zeros_like(t),
        torch.ones_like(t),
        torch.full_like(t, 2),
        torch.randn_like(t),
        t.clone(),
        t.detach(),
    ):
        assert made.is_nested and made.shape == t.shape
    assert torch.ones_like(t, dtype=torch.int32).dtype == torch.int32
    assert t.to("cpu") is t and t.to("meta").shape == t.shape and t.float() is t
    assert torch.empty_like(t, device="meta").device.type == "meta"
