"""Gradients where finite differences have nothing to say: kinks, ties, masked and ignored elements.
PyTorch's values."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from . import convert

Case = tuple[Callable[[Any, Any], Any], Any, Any]
NAN = math.nan


def made(rt: Any, values: Any) -> Any:
    """A tensor on the device under test."""
    return rt.tensor(values, device=convert.device)


CASES: dict[str, Case] = {
    "relu at 0": (lambda rt, x: rt.relu(x), [0.0, -0.0, 1.0], [0, 0, 1]),
    "relu6 at 0 and 6": (lambda rt, x: rt.nn.functional.relu6(x), [0.0, 6.0, 3.0], [0, 0, 1]),
    "leaky_relu at 0": (lambda rt, x: rt.nn.functional.leaky_relu(x, 0.25), [0.0, -1.0], [0.25, 0.25]),
    "hardtanh at its bounds": (lambda rt, x: rt.nn.functional.hardtanh(x), [-1.0, 1.0, 0.0], [0, 0, 1]),
    "abs at 0": (lambda rt, x: x.abs(), [0.0, -2.0], [0, -1]),
    "clamp at its bounds": (lambda rt, x: x.clamp(-1, 1), [-1.0, 1.0, 2.0, 0.0], [1, 1, 0, 1]),
    "sign": (lambda rt, x: rt.sign(x), [0.0, 2.0], [0, 0]),
    "maximum of equals": (lambda rt, x: rt.maximum(x, x.detach().clone()), [1.0, 2.0], [0.5, 0.5]),
    "amax shares among equals": (lambda rt, x: x.amax(0), [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    "max shares among equals": (lambda rt, x: x.max(), [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    "max along a dim takes one": (lambda rt, x: x.max(0).values, [1.0, 2.0, 0.0], [0, 1, 0]),
    "norm at 0": (lambda rt, x: x.norm(), [0.0, 0.0], [0, 0]),
    "prod with one zero": (lambda rt, x: x.prod(), [2.0, 0.0, 3.0], [0, 6, 0]),
    "prod with two zeros": (lambda rt, x: x.prod(), [0.0, 0.0, 3.0], [0, 0, 0]),
    "cumprod with a zero": (lambda rt, x: x.cumprod(0), [2.0, 0.0, 3.0], [1, 8, 0]),
    "sqrt at 0": (lambda rt, x: x.sqrt(), [0.0, 4.0], [math.inf, 0.25]),
    "pow 0 at 0": (lambda rt, x: x**0, [0.0, 2.0], [0, 0]),
    "pow 2 at 0": (lambda rt, x: x**2, [0.0, 2.0], [0, 4]),
    "where keeps nan out": (lambda rt, x: rt.where(x > 0, x, made(rt, [0.0, 0.0])), [1.0, NAN], [1, 0]),
    "masked_fill": (lambda rt, x: x.masked_fill(made(rt, [True, False]), -math.inf), [1.0, 2.0], [0, 1]),
    "a gathered element twice": (lambda rt, x: x[made(rt, [1, 1, 0])], [1.0, 2.0], [1, 2]),
    "l1_loss at 0": (
        lambda rt, x: rt.nn.functional.l1_loss(x, made(rt, [1.0, 0.0]), reduction="sum"),
        [1.0, 2.0],
        [0, 1],
    ),
    "max_pool1d takes the first of equals": (
        lambda rt, x: rt.nn.functional.max_pool1d(x[None], 2),
        [1.0, 1.0, 0.0, 3.0],
        [1, 0, 0, 1],
    ),
    "expand sums": (lambda rt, x: x.expand(3, 2), [1.0, 2.0], [3, 3]),
    "round has none": (lambda rt, x: x.round(), [0.4, 1.5], [0, 0]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_gradient_at_a_kink(rt: ModuleType, name: str) -> None:
    call, at, want = CASES[name]
    x = made(rt, at).requires_grad_(True)
    call(rt, x).sum().backward()
    assert x.grad.tolist() == pytest.approx([float(value) for value in want], nan_ok=True)


def test_embedding_padding_takes_no_gradient(rt: ModuleType) -> None:
    weight = made(rt, [[1.0, 1.0]] * 3).requires_grad_(True)
    rt.nn.functional.embedding(made(rt, [0, 1, 1, 2]), weight, padding_idx=1).sum().backward()
    assert weight.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_ignored_rows_take_no_gradient(rt: ModuleType, name: str) -> None:
    x = made(rt, [[0.0, 0.0]] * 3).requires_grad_(True)
    getattr(rt.nn.functional, name)(x, made(rt, [0, -100, 1])).backward()
    assert x.grad[1].tolist() == [0, 0]
    assert x.grad[0].abs().sum().item() > 0


@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_all_rows_ignored_is_nan(rt: ModuleType, name: str) -> None:
    loss = getattr(rt.nn.functional, name)(made(rt, [[0.0, 0.0]] * 2), made(rt, [-100, -100]))
    assert math.isnan(loss.item())


def test_dropout_keeps_its_mask_for_the_gradient(rt: ModuleType) -> None:
    rt.manual_seed(0)
    x = made(rt, [1.0] * 1000).requires_grad_(True)
    y = rt.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert rt.equal(x.grad, y.detach())
    assert sorted(set(y.tolist())) == pytest.approx([0, 4 / 3])


def test_attention_row_without_keys_has_zero_gradient(rt: ModuleType) -> None:
    q, k, v = (made(rt, [[[[1.0, 1.0]] * 2]]).requires_grad_(True) for _ in range(3))
    mask = made(rt, [[True, True], [False, False]])
    rt.nn.functional.scaled_dot_product_attention(q, k, v, mask).sum().backward()
    assert q.grad[0, 0, 1].tolist() == [0, 0]
    assert math.isfinite(v.grad.sum().item())
