"""A 0-dim tensor in the place of a number: with fullgraph=True nobody reads it, and the bits are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "add": lambda p, a, b, n: torch.add(p, a, alpha=n),
    "sub": lambda p, a, b, n: torch.sub(p, a, alpha=n),
    "add method": lambda p, a, b, n: p.add(a, alpha=n),
    "add_": lambda p, a, b, n: p.add_(a, alpha=n),
    "sub_": lambda p, a, b, n: p.sub_(a, alpha=n),
    "addcmul": lambda p, a, b, n: torch.addcmul(p, a, b, value=n),
    "addcdiv": lambda p, a, b, n: torch.addcdiv(p, a, b, value=n),
    "addcmul_": lambda p, a, b, n: p.addcmul_(a, b, value=n),
    "addcdiv_": lambda p, a, b, n: p.addcdiv_(a, b, value=n),
}


@pytest.mark.parametrize("number", [0.1, 1.0, -1.0, 3, float("inf")])
@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (0,)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager(name: str, dtype: Any, sizes: tuple[int, ...], number: float) -> None:
    torch.manual_seed(1)
    p, a, b = (torch.randn(sizes, dtype=dtype) for _ in range(3))
    for kind in (torch.float32, torch.float64) if isinstance(number, float) else (torch.int64,):
        n = torch.tensor(number, dtype=kind)

        def f(p: Any, a: Any, b: Any, n: Any) -> Any:
            return CALLS[name](p, a, b, n * -1)

        want = f(p.clone(), a, b, n)
        got = torch.compile(f, fullgraph=True)(p.clone(), a, b, n)
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_what_a_number_may_not_be() -> None:
    i = torch.ones(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="alpha must not be a floating"):
        torch.compile(lambda n: i.add_(i, alpha=n * 2))(torch.tensor(0.5))
    with pytest.raises(RuntimeError, match="Boolean alpha"):
        torch.compile(lambda n: torch.add(i, i, alpha=n.logical_not()))(torch.tensor(True))


def test_with_a_gradient_it_is_read() -> None:
    x = torch.ones(3, requires_grad=True)
    f = torch.compile(lambda n: torch.add(x, x * 2, alpha=n * 3))
    f(torch.tensor(2.0)).sum().backward()
    assert x.grad.tolist() == [13, 13, 13]
    with pytest.raises(RuntimeError, match="fullgraph"):
        torch.compile(lambda n: torch.add(x, x * 2, alpha=n * 3), fullgraph=True)(torch.tensor(2.0))


def test_a_fused_step_of_adamw() -> None:
    def step(p: Any, g: Any, m: Any, v: Any, t: Any, lr: Any, b1: Any, b2: Any, eps: Any, wd: Any) -> None:
        p.mul_(1 - lr * wd)
        m.lerp_(g, 1 - b1)
        v.lerp_(g.square(), 1 - b2)
        denominator = (v / (1 - b2**t)).sqrt() + eps
        p.add_(m / denominator, alpha=-(lr / (1 - b1**t)))

    numbers = [torch.tensor(x) for x in (3.0, 0.02, 0.9, 0.99, 1e-8, 0.1)]
    found = []
    for f in (step, torch.compile(step, dynamic=False, fullgraph=True)):
        torch.manual_seed(3)
        tensors = [torch.randn(7), torch.randn(7), torch.randn(7), torch.rand(7)]
        f(*tensors, *numbers)
        found.append([t.tolist() for t in tensors])
    assert found[0] == found[1]
