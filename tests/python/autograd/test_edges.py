"""Gradients at the ends of domains, and which gradients exist: infinities, empty parts, counts.

Each case runs with `torch` bound to warptape; with `-m parity` it runs with PyTorch itself, so that the
expectations are PyTorch's.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
import warptape

INF, NAN = math.inf, math.nan
Case = tuple[str, list[Any], Any]

# name: (an expression of x, x, the gradient of its sum or None)
CASES: dict[str, Case] = {
    "softsign": (
        "torch.nn.functional.softsign(x)",
        [INF, -INF, 0.0, -1.0, 3.0, 1e30],
        [NAN, NAN, 1.0, 0.25, 0.0625, 0.0],
    ),
    "logit": ("torch.logit(x)", [0.0, -0.0, 1.0, 0.5, -0.5, 2.0], [INF, INF, INF, 4.0, NAN, NAN]),
    "logit, clamped": (
        "torch.logit(x, 0.25)",
        [0.0, -0.0, 1.0, 0.5, -0.5, 2.0],
        [0.0, 0.0, 0.0, 4.0, 0.0, 0.0],
    ),
    "logsumexp": (
        "torch.logsumexp(x, 1)",
        [[-INF, -INF], [INF, 0.0], [-INF, 0.0], [1.0, 1.0]],
        [[NAN, NAN], [NAN, 0.0], [0.0, 1.0], [0.5, 0.5]],
    ),
    "norm that counts": ("torch.norm(x, 0)", [0.0, 2.0], None),
    "norm that counts, beside another term": ("torch.norm(x, 0) + x", [0.0, 2.0], [1.0, 1.0]),
    "cat with an empty vector": ("torch.cat([x, torch.ones(2, 3)], 1)", [], []),
    "cat of a matrix and an empty vector": ("torch.cat([torch.ones(0), x])", [[2.0, 3.0]], [[1.0, 1.0]]),
    "nansum": ("torch.nansum(x) * x[0]", [2.0, NAN, 3.0], [7.0, 0.0, 2.0]),
    "nansum times infinity": ("torch.nansum(x) * float('inf')", [NAN, 1.0], [NAN, INF]),
    "nanmean": (
        "torch.nanmean(x, 1)",
        [[NAN, NAN], [NAN, 1.0], [1.0, 1.0]],
        [[NAN, NAN], [0.0, 1.0], [0.5, 0.5]],
    ),
    "hardsigmoid": (
        "torch.nn.functional.hardsigmoid(x) * 6",
        [-3.5, -3.0, 0.0, 3.0, 3.5],
        [0.0, 0.0, 1.0, 0.0, 0.0],
    ),
}


def check(torch: Any, name: str) -> None:
    expression, values, expected = CASES[name]
    x = torch.tensor(values, requires_grad=True)
    y = eval(expression, {"torch": torch, "x": x})
    assert y.requires_grad
    y.sum().backward()
    if expected is None:
        assert x.grad is None
    else:
        assert tuple(x.grad.shape) == tuple(x.shape)
        np.testing.assert_allclose(x.grad.tolist(), expected, 1e-6, 0)


@pytest.mark.parametrize("name", CASES)
def test_edge(name: str) -> None:
    check(warptape, name)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_edge_is_pytorch_s(name: str) -> None:
    check(pytest.importorskip("torch"), name)


@pytest.mark.parametrize("op", ["scatter", "scatter_add"])
def test_scatter_reads_a_part_of_src(op: str) -> None:
    """The part of src that index does not cover has gradient 0, where PyTorch's backward raises."""
    src = warptape.ones(2, 3, requires_grad=True)
    index = warptape.tensor([[2, 0]])
    getattr(warptape.zeros(2, 3), op)(1, index, src).sum().backward()
    assert src.grad.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("order", [1, 2])
def test_softsign_composed_equals_fused(order: int) -> None:
    """The gradient taken with create_graph is composed of other ops; it agrees at infinities too."""
    x = warptape.tensor([INF, -INF, 3.0], requires_grad=True)
    (g,) = warptape.autograd.grad(warptape.nn.functional.softsign(x).sum(), x, create_graph=True)
    if order == 1:
        np.testing.assert_array_equal(g.tolist(), [NAN, NAN, 0.0625])
    else:
        (h,) = warptape.autograd.grad(g.sum(), x)
        np.testing.assert_allclose(h.tolist(), [NAN, NAN, -2 / 64], 1e-6)


def test_attention_over_no_keys() -> None:
    q = warptape.ones(1, 2, 3, 4, requires_grad=True)
    nothing = warptape.ones(1, 2, 0, 4)
    out = warptape.nn.functional.scaled_dot_product_attention(q, nothing, nothing)
    used = [warptape.full((1, 2, 3, 4), 7.0) for _ in range(8)]
    del used  # what the gradient's memory held before must not show
    out.backward(warptape.ones_like(out))
    assert out.tolist() == q.grad.tolist() == warptape.zeros(1, 2, 3, 4).tolist()


def test_pack_hook_may_enter_hooks_of_its_own() -> None:
    def pack(t: warptape.Tensor) -> warptape.Tensor:
        with contextlib.ExitStack() as scopes:
            for _ in range(100):
                scopes.enter_context(warptape.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        return t

    x = warptape.ones(2, requires_grad=True)
    with warptape.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 3):
        y = x * x
    y.sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_hooks_of_a_leaf_see_and_change_what_autograd_grad_returns() -> None:
    x, seen = warptape.ones(2, requires_grad=True), []
    x.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    (found,) = warptape.autograd.grad((3 * x).sum(), x)
    assert seen == [[3.0, 3.0]] and found.tolist() == [6.0, 6.0] and x.grad is None
    (3 * x).sum().backward(inputs=[x])
    assert seen == [[3.0, 3.0]] * 2 + ["accumulated"] and x.grad.tolist() == [6.0, 6.0]


def test_hooks_may_register_hooks_of_their_node() -> None:
    class Parts(warptape.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: warptape.Tensor) -> Any:
            return tuple(x[i].clone() for i in range(64))

        @staticmethod
        def backward(ctx: Any, *gradients: warptape.Tensor) -> warptape.Tensor:
            return warptape.stack(gradients)

    x = warptape.ones(64, requires_grad=True)
    parts = Parts.apply(x)
    node, calls = parts[0].grad_fn, []

    def hook(gradient: warptape.Tensor) -> None:
        for part in parts[1:]:
            part.register_hook(lambda g: calls.append(1))
            part.retain_grad()
        node.register_hook(lambda *gradients: calls.append(2))
        node.register_prehook(lambda gradients: calls.append(3))

    parts[0].register_hook(hook)
    sum(parts).backward()
    assert calls == [1] * 63 + [3, 2]
    assert all(part.grad.item() == 1 for part in parts[1:]) and x.grad.tolist() == [1.0] * 64
