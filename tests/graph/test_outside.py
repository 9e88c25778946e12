"""What a compiled function shares with code that the runtime does not see, and errors in its middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch

from .outcomes import differences, outcome

Maker = Callable[[], Callable[[], Any]]


def numpy_written_later() -> Callable[[], Any]:
    array = np.ones(4, np.float32)
    x = torch.from_numpy(array)

    def f() -> Any:
        y = x + 1
        array[0] = 5
        return y, array.tolist()

    return f


def numpy_of_tensor_written() -> Callable[[], Any]:
    x = torch.ones(4)

    def f() -> Any:
        array = x.numpy()
        y = x + 1
        array[0] = 7
        return y, x * 2

    return f


def numpy_read_later() -> Callable[[], Any]:
    array = np.ones(4, np.float32)
    x = torch.from_numpy(array)

    def f() -> Any:
        x.add_(1)
        return array.tolist()

    return f


def backward_of_exported() -> Callable[[], Any]:
    array = np.ones(4, np.float32)
    x, w = torch.from_numpy(array), torch.ones(4, requires_grad=True)

    def f() -> Any:
        (w * x).sin().sum().backward()
        array[:] = 9
        return w.grad

    return f


def swapped() -> Callable[[], Any]:
    a, b = torch.arange(6.0), torch.arange(6.0) * 3

    def f() -> Any:
        keep = a.clone()
        a.copy_(b)
        b.copy_(keep)
        return a, b

    return f


def copied_before() -> Callable[[], Any]:
    x = torch.tensor([27, 13, 15, 6])

    def f() -> Any:
        before = x.clone()
        x.gcd_(torch.tensor([6, 9, 6, 9]))
        return before, x.clone()

    return f


def read_under_hooks() -> Callable[[], Any]:
    x = torch.rand(3, 4, requires_grad=True)

    def f() -> Any:
        y = torch.nn.functional.dropout(x, 0.5)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            z = y.exp()
        z.sum().backward()
        return x.grad

    return f


def own_error() -> Callable[[], Any]:
    x = torch.ones(4)

    def f() -> Any:
        x.add_(1)
        if bool(x[0] > 0):
            raise ValueError("of the function")

    return f


def error_read_elsewhere() -> Callable[[], Any]:
    x, at = torch.ones(2, 3), torch.tensor([2])

    def f() -> Any:
        return torch.take(x, at + 9).sum().item()

    return f


@pytest.mark.parametrize(
    "make",
    [
        numpy_written_later,
        numpy_of_tensor_written,
        numpy_read_later,
        backward_of_exported,
        swapped,
        copied_before,
        read_under_hooks,
        own_error,
        error_read_elsewhere,
    ],
    ids=lambda make: make.__name__,
)
def test_same(make: Maker) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(3)
        f = make()
        found.append(outcome(torch, torch.compile(f) if compiled else f, ()))
    assert list(differences(found[1], found[0])) == []


def test_after_an_error() -> None:
    x, ones = torch.ones(2), torch.ones(1)
    call = torch.compile(lambda at: torch.index_add(x, 0, at, ones))
    for _ in range(2):
        with pytest.raises(IndexError, match="index_add_: index 2 is out of bounds"):
            call(torch.tensor([2]))
    assert call(torch.tensor([1])).tolist() == [1, 2]


def test_dropped_memory_of_others() -> None:
    array = np.ones(3, np.float32)

    def f(own: bool) -> None:
        x = torch.empty(3) if own else torch.from_numpy(array)
        x.fill_(4)

    call = torch.compile(f)
    call(True)
    call(False)
    assert array.tolist() == [4, 4, 4]


def test_another_thread_writes_what_pending_calls_read() -> None:
    import threading

    def f(x: Any) -> Any:
        y = x * 2
        writer = threading.Thread(target=lambda: x.add_(5))
        writer.start()
        writer.join()
        return y, x + 0

    assert [t.tolist() for t in torch.compile(f)(torch.ones(2))] == [[2, 2], [6, 6]]


def test_a_view_whose_base_became_smaller() -> None:
    w = torch.ones(3, 4, requires_grad=True)
    x = w.clone()
    p = x[..., :1]
    x.as_strided_([2, 2], [4, 1])
    with pytest.raises(RuntimeError, match="reaches beyond its base"):
        p.sum().backward()
