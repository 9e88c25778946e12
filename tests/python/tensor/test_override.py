"""__torch_function__: subclasses keep their class, other classes and modes take over calls."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as torch
from warptape import _C, overrides


class Tagged(torch.Tensor):
    """Inherits the default."""


class Deeper(Tagged):
    pass


class Recorder(torch.Tensor):
    calls: list[Any] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(overrides.resolve_name(func))
        return super().__torch_function__(func, types, args, kwargs)


class Like:
    """No tensor; answers with what it was asked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return overrides.resolve_name(func), types, args, kwargs


class Refuses:
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


CALLS = {
    "add": lambda x: x + 1,
    "radd": lambda x: 1 - x,
    "function": lambda x: torch.exp(x),
    "list argument": lambda x: torch.cat([torch.ones(2), x]),
    "keyword": lambda x: torch.add(input=torch.ones(2), other=x),
    "index": lambda x: x[0],
    "property": lambda x: x.data,
    "several": lambda x: x.split(1)[1],
    "named tuple": lambda x: x.max(0).values,
    "nn.functional": lambda x: torch.nn.functional.relu(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_subclass_keeps_its_class(call: Any) -> None:
    x = torch.tensor([1.0, 2.0])
    out = call(x.as_subclass(Tagged))
    assert type(out) is Tagged
    assert torch.equal(out.as_subclass(torch.Tensor), call(x))
    with _C.DisableTorchFunctionSubclass():
        assert type(call(x.as_subclass(Tagged))) is torch.Tensor


def test_the_most_derived_class_wins() -> None:
    assert type(torch.ones(2).as_subclass(Tagged) + torch.ones(2).as_subclass(Deeper)) is Deeper
    assert type(torch.max(torch.ones(2).as_subclass(Tagged), 0)).__name__ == "max"
    with pytest.raises(TypeError, match="no implementation found"):
        torch.ones(2).as_subclass(Tagged) + torch.ones(2).as_subclass(Recorder)


def test_in_place_keeps_the_object_and_the_gradient_its_class() -> None:
    x = torch.ones(2).as_subclass(Tagged)
    assert x.add_(1) is x
    leaf = torch.ones(2, requires_grad=True)
    y = leaf.as_subclass(Tagged)
    (y * 3).sum().backward()
    assert leaf.grad.tolist() == [3, 3]
    assert type(leaf.grad) is torch.Tensor
    assert type(torch.nn.Parameter(torch.ones(2)) * 2) is torch.Tensor


def test_every_way_of_calling_is_seen() -> None:
    x = torch.ones(3).as_subclass(Recorder)
    Recorder.calls.clear()
    torch.sin(x), x.sin(), x * 2, x.shape, x[1:], torch.linalg.vector_norm(x)
    x[0] = 5.0
    assert Recorder.calls == [
        "torch.sin",
        "torch.Tensor.sin",
        "torch.Tensor.mul",
        "torch.Tensor.shape.__get__",
        "torch.Tensor.__getitem__",
        "torch.linalg.vector_norm",
        "torch.Tensor.__setitem__",
    ]
    assert x.as_subclass(torch.Tensor).tolist() == [5, 1, 1]


def test_objects_that_are_no_tensors() -> None:
    x, like = torch.ones(2), Like()
    assert torch.add(x, like, alpha=2) == ("torch.add", (Like,), (x, like), {"alpha": 2})
    assert (x + like)[0] == "torch.Tensor.add"
    assert (x @ like)[0] == "torch.Tensor.matmul"
    assert torch.cat([x, like])[0] == "torch.cat"
    assert overrides.is_tensor_like(like)
    assert not overrides.is_tensor_like(1)
    with pytest.raises(TypeError, match=r"no implementation found for <op add>.*Refuses"):
        torch.add(x, Refuses())
    assert torch.add(Refuses(), like)[1] == (Refuses, Like)


def test_functions_in_python_join_by_the_decorator() -> None:
    @overrides.wrap_torch_function(lambda a, b=None: (a, b))
    def twice(a: Any, b: Any = None) -> Any:
        return a * 2

    like = Like()
    assert twice(torch.ones(1)).item() == 2
    assert twice(1, b=like)[1:] == ((Like,), (1,), {"b": like})
    assert overrides.has_torch_function((1, Like()))
    assert not overrides.has_torch_function_unary(torch.ones(1))
    assert overrides.has_torch_function_variadic(1, torch.ones(1).as_subclass(Tagged))


def test_modes_nest_and_are_off_within_themselves() -> None:
    seen: list[Any] = []

    class Mode(overrides.TorchFunctionMode):
        def __init__(self, name: str) -> None:
            self.name = name

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((self.name, overrides.resolve_name(func)))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode("outer"), Mode("inner"):
        y = x + x
        with _C.DisableTorchFunction():
            x * x
    assert y.tolist() == [2, 2]
    assert seen == [("inner", "torch.Tensor.add"), ("outer", "torch.Tensor.add")]
    seen.clear()
    x + x
    assert seen == []

    with pytest.raises(RuntimeError), Mode("one"):
        torch.ones(2) @ torch.ones(3)
    assert seen == [("one", "torch.ones"), ("one", "torch.ones"), ("one", "torch.Tensor.matmul")]
    assert _C._torch_function_modes() == []


def test_an_error_of_the_class_passes_through() -> None:
    class Fails(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch.ones(1).as_subclass(Fails) + 1


def test_every_op_can_be_taken_over() -> None:
    like = Like()
    names = {1: _C._functions, 4: _C._nn, 16: _C._linalg, 64: _C._special, 128: _C._fft}
    names |= {4096: _C._windows, 8192: _C._masked}
    asked = 0
    for name, flags, arguments, *_ in _C._list_ops():
        place = next((m for bit, m in names.items() if flags & bit), None)
        if place is None or not arguments or not arguments[0][1].startswith("Tensor"):
            continue
        asked += 1
        assert getattr(place, name)(like)[0].endswith(f".{name}")
    assert asked > 200
