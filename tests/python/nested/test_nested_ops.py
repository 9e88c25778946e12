"""Ops on nested tensors against the same ops on each sequence: values, gradients, second gradients.

Shapes: 4 sequences of several lengths *, D = 8. What is called on a nested tensor [4, *, 8] is called on each
sequence as a dense batch of one, [1, n, 8].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch
from warptape import nn
from warptape.nn import functional as F

LENGTHS = (3, 0, 5, 1)
D = 8
Call = Callable[[Any], Any]


def nested(parts: list[torch.Tensor]) -> Any:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def parts(lengths: Any = LENGTHS, dtype: Any = torch.float64, grad: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(3)
    made = [torch.randn(n, D, dtype=torch.float64).to(dtype) for n in lengths]
    return [p.requires_grad_() for p in made] if grad else made


def torch_weight(*sizes: int) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*sizes, dtype=torch.float64)


WEIGHT, MANY = torch_weight(5, D), torch_weight(D, 6)
BIAS, ROWS = torch_weight(5), torch_weight(D)

# Calls whose result has the ragged dim.
KEEPS: dict[str, Call] = {
    "unary": lambda x: x.sin().exp() - torch.sigmoid(x) + F.gelu(x) + F.silu(-x),
    "numbers": lambda x: (2 * x + 1) / 3 - x**2 + (1 - x) * x.abs(),
    "two": lambda x: x * x.cos() + torch.maximum(x, -x),
    "broadcast last": lambda x: x * x.sum(-1, keepdim=True),
    "dense row": lambda x: x * ROWS + ROWS[None] + ROWS[None, None],
    "dense scalar": lambda x: x * torch.tensor(2.0, dtype=torch.float64),
    "where": lambda x: torch.where(x > 0, x, x * 2) + torch.where(x > 1, x, 0.0),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3) + torch.addcmul(x, x, x),
    "linear": lambda x: F.linear(x, WEIGHT, BIAS),
    "matmul": lambda x: x @ MANY,
    "layer norm": lambda x: F.layer_norm(x, (D,), ROWS, ROWS),
    "rms norm": lambda x: F.rms_norm(x, (D,), ROWS),
    "softmax last": lambda x: x.softmax(-1),
    "softmax ragged": lambda x: torch.softmax(x, 1),
    "log softmax": lambda x: F.log_softmax(x, dim=2),
    "log softmax ragged": lambda x: x.log_softmax(1),
    "sum last": lambda x: x.sum(-1),
    "mean last": lambda x: x.mean(2, keepdim=True),
    "prod last": lambda x: x.prod(-1),
    "max last": lambda x: x.max(-1).values,
    "amin last": lambda x: x.amin(-1, keepdim=True),
    "heads": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2).transpose(1, 2).flatten(-2),
    "view": lambda x: x.view(x.size(0), x.size(1), 2, 4).sum(2),
    "reshape": lambda x: x.reshape(x.size(0), -1, 4, 2)[..., 1],
    "getitem": lambda x: x[..., 2:6] * x[:, :, :4],
    "select": lambda x: x.select(-1, 3),
    "narrow": lambda x: x.narrow(-1, 1, 3),
    "chunk": lambda x: x.chunk(2, -1)[1] + x.split(4, -1)[0] + x.split([4, 4], dim=-1)[1],
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "stack": lambda x: torch.stack([x, x * 2], -1),
    "unsqueeze": lambda x: x.unsqueeze(-1).expand(-1, -1, -1, 3).squeeze(-1),
    "permute": lambda x: x.permute(0, 2, 1).permute(0, 2, 1),
    "before ragged": lambda x: x.unsqueeze(1).select(1, 0) + x.unsqueeze(1).squeeze(1),
    "contiguous": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2).clone(),
    "products of heads": lambda x: x.unflatten(-1, (2, 4)) @ x.unflatten(-1, (2, 4)).mT,
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
}
# And those whose result is dense: [4, ..].
REDUCES: dict[str, Call] = {
    "sum": lambda x: x.sum(1),
    "sum keepdim": lambda x: x.sum(dim=1, keepdim=True),
    "mean": lambda x: x.mean(1),
    "mean keepdim": lambda x: x.mean(1, keepdim=True),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(1).values,
    "min": lambda x: x.min(1, keepdim=True).values,
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(1),
    "transposed": lambda x: x.transpose(1, 2).sum(2),
    "product over ragged": lambda x: x.transpose(1, 2) @ (x * 2),
}
NEEDS_ROWS = ("mean", "mean keepdim", "amax", "max", "min", "argmax", "argmin")


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def compare(call: Call, lengths: Any = LENGTHS, second: bool = True) -> None:
    """Results, gradients and gradients of gradients, against a loop over the sequences."""
    mine, theirs = parts(lengths), parts(lengths)
    out = call(nested(mine))
    rows = list(out)
    expected = [call(p[None])[0] for p in theirs]
    for got, want in zip(rows, expected, strict=True):
        close(got, want)
    if not rows[0].is_floating_point():
        return
    loss = (out**2).sum() + out.sin().sum()
    want_loss = sum(((e**2).sum() + e.sin().sum() for e in expected), torch.zeros((), dtype=torch.float64))
    got_g = torch.autograd.grad(loss, mine, create_graph=second)
    want_g = torch.autograd.grad(want_loss, theirs, create_graph=second)
    for got, want in zip(got_g, want_g, strict=True):
        close(got, want)
    if not second:
        return
    got_gg = torch.autograd.grad(sum((g**2).sum() for g in got_g), mine, allow_unused=True)  # type: ignore[arg-type]
    want_gg = torch.autograd.grad(sum((g**2).sum() for g in want_g), theirs, allow_unused=True)  # type: ignore[arg-type]
    for got, want in zip(got_gg, want_gg, strict=True):
        if want is not None:
            close(got, want)


@pytest.mark.parametrize("name", KEEPS)
def test_ops_that_keep_the_ragged_dim(name):
    compare(KEEPS[name])


@pytest.mark.parametrize("name", REDUCES)
def test_ops_over_the_ragged_dim(name):
    compare(REDUCES[name], (3, 2, 5, 1) if name in NEEDS_ROWS else LENGTHS)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "max", "any", "all"])
def test_reductions_of_all(name):
    given = parts()
    t = nested(given)
    source = torch.cat(given)
    if name in ("any", "all"):
        assert getattr(t > -9, name)().item() is True
        return
    close(getattr(t, name)(), getattr(source, name)())


def test_reductions_over_batch_and_ragged_dim_with_keepdim():
    t, source = nested(parts()), torch.cat(parts())
    close(t.sum((0, 1), keepdim=True), source.sum(0, keepdim=True)[None])
    close(t.sum((0, 1, 2)), source.sum())
    close(t.mean((0, 1, 2)), source.mean())


@pytest.mark.parametrize("sizes", [(4, 1, D), (4, 5, D), (4, 5, 1), (4, 1, 1)])
def test_dense_tensors_of_one_row_for_each_sequence_are_broadcast(sizes):
    dense = torch_weight(*sizes).requires_grad_()
    given = parts()
    out = nested(given) * dense + dense
    expected = [
        p * dense[i, : len(p)] + dense[i, : len(p)] if sizes[1] > 1 else p * dense[i] + dense[i]
        for i, p in enumerate(given)
    ]
    for got, want in zip(out, expected, strict=True):
        close(got, want)
    (got_g,) = torch.autograd.grad(out.sum(), dense)
    (want_g,) = torch.autograd.grad(sum(e.sum() for e in expected), dense)  # type: ignore[arg-type]
    close(got_g, want_g)
    turned = nested(given).transpose(1, 2) * dense.transpose(1, 2)
    for got, p, i in zip(turned, given, range(4), strict=True):
        close(got, (p * (dense[i, : len(p)] if sizes[1] > 1 else dense[i])).T)


def test_products_with_a_dense_batch():
    dense = torch_weight(4, D, 3).requires_grad_()
    given = parts()
    out = nested(given) @ dense
    expected = [p @ dense[i] for i, p in enumerate(given)]
    for got, want, same in zip(out, expected, torch.bmm(nested(given), dense), strict=True):
        close(got, want)
        close(same, want)
    close(
        torch.autograd.grad(out.sum(), dense)[0],
        torch.autograd.grad(sum(e.sum() for e in expected), dense)[0],
    )  # type: ignore[arg-type]
    left = torch_weight(3, D)
    for got, p in zip(left @ nested(given).transpose(1, 2), given, strict=True):
        close(got, left @ p.T)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_attention(causal, dtype):
    def attend(x: Any) -> Any:
        q, k, v = (w.unflatten(-1, (2, 4)).transpose(1, 2) for w in (x, x * 2, x - 1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)

    if dtype is torch.float64:
        compare(attend, second=False)
        return
    mine, theirs = parts(dtype=dtype), parts(dtype=dtype)
    out, expected = attend(nested(mine)), [attend(p[None])[0] for p in theirs]
    got_g = torch.autograd.grad(out.sum(), mine)
    want_g = torch.autograd.grad(sum(e.sum() for e in expected), theirs)  # type: ignore[arg-type]
    tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-5
    for got, want in zip((*out, *got_g), (*expected, *want_g), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_attention_to_other_keys_with_fewer_heads_and_dropout():
    q, k = parts((3, 0, 5, 1), grad=False), parts((2, 4, 1, 3), grad=False)
    heads = lambda x, n: x.unflatten(-1, (n, x.size(-1) // n)).transpose(1, 2)
    keys = nested(k)
    out = F.scaled_dot_product_attention(heads(nested(q), 2), heads(keys, 2), heads(keys, 2), scale=0.3)
    for got, a, b in zip(out, q, k, strict=True):
        a, b = heads(a[None], 2), heads(b[None], 2)
        close(got, F.scaled_dot_product_attention(a, b, b, scale=0.3)[0])
    one = heads(keys[..., :4], 1)
    grouped = F.scaled_dot_product_attention(heads(keys, 2), one, one, enable_gqa=True)
    for got, a in zip(grouped, k, strict=True):
        a, b = heads(a[None], 2), heads(a[None, :, :4], 1)
        close(got, F.scaled_dot_product_attention(a, b, b, enable_gqa=True)[0])
    x = heads(nested(parts((3, 2), grad=False)), 2)
    torch.manual_seed(0)
    dropped = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    torch.manual_seed(0)
    for got, one in zip(dropped, x, strict=True):
        close(got, F.scaled_dot_product_attention(one[None], one[None], one[None], dropout_p=0.5)[0])


def test_embedding_and_a_whole_block():
    torch.manual_seed(1)
    words = [torch.randint(0, 10, (n,)) for n in LENGTHS]
    table = nn.Embedding(10, D).double()
    block = nn.Sequential(
        nn.LayerNorm(D), nn.Linear(D, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, D)
    ).double()
    parameters = [*table.parameters(), *block.parameters()]
    out = block(table(nested(words)))
    expected = [block(table(w[None]))[0] for w in words]
    for got, want in zip(out, expected, strict=True):
        close(got, want)
    got_g = torch.autograd.grad((out**2).sum(), parameters)
    want_g = torch.autograd.grad(sum((e**2).sum() for e in expected), parameters)  # type: ignore[arg-type]
    for got, want in zip(got_g, want_g, strict=True):
        close(got, want)


def test_dropout_draws_for_each_element():
    torch.manual_seed(0)
    out = F.dropout(nested([torch.ones(50, 20), torch.ones(30, 20)]), 0.25)
    assert set(out.values().unique().tolist()) == {0.0, float(torch.tensor(4 / 3))}
    assert 0.2 < float((out.values() == 0).float().mean()) < 0.3


def test_compiled():
    call = torch.compile(lambda x: (x * 2).sin() + F.linear(x, torch.eye(D, dtype=torch.float64)))
    for lengths in (LENGTHS, (2, 7)):
        given = parts(lengths)
        out = call(nested(given))
        for got, p in zip(out, given, strict=True):
            close(got, (p * 2).sin() + p)
        for g, p in zip(torch.autograd.grad(out.sum(), given), given, strict=True):
            close(g, (p * 2).cos() * 2 + 1)
