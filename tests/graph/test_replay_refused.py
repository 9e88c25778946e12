"""Calls of mode="reduce-overhead" on the CPU that are never replayed, or not with these tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch
from warptape import nn

from .test_replay import MET, mlp, replayed, same

# ---- what is never replayed -----------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def with_backward(f: Any) -> Any:
    def run(x: Any) -> Any:
        w = torch.ones(3).requires_grad_()
        f(w * x).sum().backward()
        return w.grad

    return run


COUNTER = [0]


def counting(x: Any) -> Any:
    COUNTER[0] += 1
    return x * COUNTER[0]


def set_data(x: Any) -> Any:
    x.data = torch.ones(3)
    return x


WEIGHT = nn.Parameter(torch.ones(3))
OPTIMIZER = torch.optim.SGD([WEIGHT], lr=0.5)
KEPT: list[Any] = []


@torch.no_grad()
def optimizing(x: Any) -> Any:
    OPTIMIZER.step()
    return x + 1


@torch.no_grad()
def clearing(x: Any) -> Any:
    WEIGHT.grad = None
    return x * WEIGHT


@torch.no_grad()
def reading_gradient(x: Any) -> Any:
    WEIGHT.grad = torch.ones(3) if WEIGHT.grad is None else WEIGHT.grad
    return x * WEIGHT.grad


def keeping(x: Any) -> Any:
    KEPT[:] = [x * 2]
    return x + 1


def appending(x: Any) -> Any:
    KEPT.append(x * 2)
    return x + 1


class Setting(nn.Module):
    def forward(self, x: Any) -> Any:
        self.last = x.sum()
        return x + 1


REFUSED = {
    "item": (lambda x: x * 2 if x.sum().item() > 0 else x * 3, "read"),
    "item of an argument": (lambda x: x * x[0].item(), "read"),
    "an argument's value": (lambda x: x * 2 if x[1] > 0 else x * 3, "read"),
    "equal": (lambda x: x * 2 if torch.equal(x, x) else x, "at once"),
    "tolist": (lambda x: x * x.tolist()[0], "read"),
    "numpy": (lambda x: x * float(x.numpy()[0]), "read"),
    "tensor": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), "made anew"),
    "counter": (counting, "differ"),
    "function": (with_backward(Double.apply), "backward pass"),
    "gradient": (with_backward(lambda x: x.exp()), "backward pass"),
    "optimizer": (optimizing, "optimizer"),
    "zero_grad": (clearing, "gradient"),
    "reading a gradient": (reading_gradient, "gradient"),
    "kept": (keeping, "elsewhere"),
    "appended": (appending, "elsewhere"),
    "disabled": (torch.compiler.disable(lambda x: x + 1), "disable"),
    "object": (lambda x: (x + 1, object()), "object"),
    "setting": (Setting(), "attributes"),
    "unsqueezed": (lambda x: x.unsqueeze_(0) + 1, "arguments"),
    "history": (lambda x: x + torch.ones(3).requires_grad_(), "requires gradients"),
    "moved": (lambda x: set_data(x) + 1, "memory"),
    "nothing": (lambda x: x, "no op"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    f, why = REFUSED[name]
    g = replayed(f)
    for i in range(9):
        x = torch.arange(3.0) + i + 1
        COUNTER[0] = i
        expected = f(x.clone())
        COUNTER[0] = i
        got = g(x.clone())
        if isinstance(got, tuple):
            got, expected = got[0], expected[0]
        assert same(got, expected)
    e = g.explain()
    assert e.replays == 0 and why in str(e.problems), e.problems


def test_memory_that_arguments_share_with_other_tensors() -> None:
    w = torch.ones(4)
    both = torch.ones(2, 4)
    f = torch.no_grad()(lambda x: x.add_(1) * w)
    g = replayed(f)
    for _ in range(6):  # the first ones meet the case in which they are one
        for x, y in ((w, w.clone()), (both[0], both[1]), (torch.ones(4), torch.ones(4))):
            expected = torch.add(y, 1) * (torch.add(y, 1) if x is w else w)
            assert torch.equal(g(x), expected)
            x.fill_(1)
    assert g.explain().replays
    h = replayed(torch.no_grad()(lambda x: x.add_(1) * w))
    for _ in range(8):
        assert h(torch.ones(4)).tolist() == [2] * 4
    assert h.explain().replays == 4
    assert h(w).tolist() == [4] * 4
    w.fill_(1)
    w.data = both[0]
    assert h(both[0]).tolist() == [4] * 4 and w.tolist() == [2] * 4
    both.fill_(1)
    assert h(both[1]).tolist() == [2] * 4
    v = torch.full((4,), 2.0)
    views = replayed(lambda x: x * v)
    for _ in range(7):
        assert views(v.view(4)).tolist() == [4] * 4
    assert views.explain().replays == 0
    assert views(torch.full((1, 4), 3.0)[0]).tolist() == [6] * 4


def test_an_argument_that_the_function_has_from_elsewhere_as_well() -> None:
    w = torch.full((3,), 2.0)
    g = replayed(lambda x: x * w)
    for _ in range(7):
        assert g(w).tolist() == [4] * 3
    assert g.explain().replays == 4
    for i in range(7):
        assert g(torch.full((3,), float(i))).tolist() == [2 * i] * 3
    for _ in range(7):
        assert g(w).tolist() == [4] * 3
    same_result = replayed(lambda x: (x + 1, w))
    for _ in range(7):
        assert same_result(w)[1] is w
    assert same_result(torch.ones(3))[1] is w


def test_a_gradient_of_an_argument_is_no_constant() -> None:
    g = replayed(lambda x: x.detach() * x.grad)
    for i in range(8):
        x = torch.ones(3, requires_grad=True)
        x.grad = torch.full((3,), float(i))
        assert g(x).tolist() == [i] * 3
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.ones(3)
    for i in range(8):
        x.grad.fill_(i)
        assert g(x).tolist() == [i] * 3
    assert g.explain().replays == 0


def test_memory_that_numpy_sees_may_overlap() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    g = replayed(f)
    for _ in range(6):
        assert g(torch.ones(4), torch.ones(4)).tolist() == [2] * 4
    replays = g.explain().replays
    assert replays == 3
    a = np.ones(4, np.float32)
    assert g(torch.from_numpy(a), torch.from_numpy(a)).tolist() == [4] * 4
    assert g.explain().replays == replays
    for _ in range(8):
        a[:] = 1
        assert g(torch.from_numpy(a), torch.from_numpy(a)).tolist() == [4] * 4
    assert "NumPy" in str(g.explain().problems)


def test_arguments_that_the_function_changes() -> None:
    def grow(x: Any, cache: Any) -> Any:
        cache.append(x * 2)
        return cache[-1] + len(cache)

    def renew(x: Any, state: Any) -> Any:
        state["h"] = state["h"] * 0.5 + x
        return state["h"] + 1

    def fill(x: Any, out: Any) -> Any:
        y = x + 1
        return out, y

    for f, held in ((grow, []), (renew, {"h": torch.ones(3)}), (fill, [1, {}])):
        mine, theirs = (type(held)(held) for _ in range(2))
        g = replayed(f)
        for _ in range(8):
            x = torch.randn(3)
            got, expected = g(x, mine), f(x, theirs)
            if f is fill:
                assert got[0] is mine
                got, expected = got[1], expected[1]
            assert torch.equal(got, expected) and len(mine) == len(theirs)
        why = "was given" if f is fill else "arguments"
        assert g.explain().replays == 0 and why in str(g.explain().problems)


def test_copies_that_programs_drop() -> None:
    w = torch.randn(32, 48)
    f = torch.no_grad()(lambda x: (x.t().contiguous() @ w).relu())
    g = replayed(f)
    for _ in range(8):
        x = torch.randn(32, 40)
        assert torch.equal(g(x), f(x))
    assert g.explain().replays == 4


def test_calls_that_see_different_tensors_in_turn() -> None:
    a, b = torch.ones(3), torch.full((3,), 2.0)
    g = replayed(lambda x, first: x * (a if first else b))
    for i in range(20):
        assert g(torch.ones(3), i % 2 == 0).tolist() == [1 if i % 2 == 0 else 2] * 3
    assert g.explain().replays == 20 - 2 * MET


def test_a_live_tape_is_refused() -> None:
    model = mlp()
    g = replayed(lambda x: model(x))
    for _ in range(7):
        x = torch.randn(4, 8)
        g(x).sum().backward()
    assert g.explain().replays == 0 and "require" in str(g.explain().problems)
    h = replayed(lambda x: x.exp())
    for _ in range(7):
        x = torch.randn(3, requires_grad=True)
        h(x).sum().backward()
        assert same(x.grad, x.detach().exp())


def test_arguments_that_cannot_be_compared() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x = torch.ones(2)

    g, batch = replayed(lambda b: b.x * 2), Batch()
    for i in range(7):
        batch.x = torch.full((2,), float(i))
        assert g(batch).tolist() == [2.0 * i] * 2
    assert g.explain().replays == 0 and "Batch" in str(g.explain().problems)


class Scaled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["class", "attribute"])
def test_tensors_that_are_more_than_their_values(how: str) -> None:
    g = replayed(lambda x: torch.neg(x) * x.scale)
    for i in range(7):
        x = torch.ones(3).as_subclass(Scaled) if how == "class" else torch.ones(3)
        x.scale = torch.full((3,), float(i))
        assert g(x).tolist() == [-i] * 3
    assert g.explain().replays == 0 and how in str(g.explain().problems)


def test_what_a_tensor_is_beside_its_layout_is_part_of_a_kind() -> None:
    f = torch.no_grad()(lambda x: ((x + 1).view(-1), x.view(-1)))
    g = replayed(f)
    with torch.inference_mode():
        made = torch.ones(2, 3)
    kinds = [torch.ones(2, 3), torch.ones(4, 3)[:2], torch.ones(2, 3).data, made]
    for _ in range(7):
        for x in kinds:
            for got, expected in zip(g(x), f(x), strict=True):
                assert got.is_inference() == expected.is_inference()
                assert got._is_view() == expected._is_view() and torch.equal(got, expected)
                assert got._base is expected._base or got._base._base is None
    assert g.explain().replays


def test_after_many_failures_calls_run_as_is_faster() -> None:
    g = replayed(REFUSED["item"][0])
    for _ in range(40):
        g(torch.ones(3))
    assert g.region.adaptive
