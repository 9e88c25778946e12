"""torch.utils.swap_tensors, and the conversions and loads of modules that use it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import warptape as torch
import warptape.__future__ as future
from warptape import nn
from warptape.utils import swap_tensors


@pytest.fixture
def swapping() -> Iterator[None]:
    future.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(False)


def test_values_class_and_attributes_change_places() -> None:
    a: Any = nn.Parameter(torch.ones(2))
    b: Any = torch.zeros(3, dtype=torch.float64)
    a.mark, identity = "a's", a._cdata
    swap_tensors(a, b)
    assert type(a) is torch.Tensor and a.tolist() == [0, 0, 0] and a.dtype is torch.float64
    assert not a.requires_grad and not hasattr(a, "mark")
    assert isinstance(b, nn.Parameter) and b.tolist() == [1, 1] and b.requires_grad and b.mark == "a's"
    assert b._cdata == identity != a._cdata
    swap_tensors(a, a)
    assert a.tolist() == [0, 0, 0]


def test_a_swapped_tensor_is_found_again_in_the_graph() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    swap_tensors(a, b)
    (a * a).sum().backward()
    assert a.grad is not None and a.grad.tolist() == [6, 6] and b.grad is None
    c = (b * 2).sum()
    assert c.grad_fn.next_functions[0][0].next_functions[0][0].variable is b


def test_slots_change_places() -> None:
    class Slotted(torch.Tensor):
        __slots__ = ("one", "two")

    a: Any = torch.ones(1).as_subclass(Slotted)
    b: Any = torch.zeros(1).as_subclass(Slotted)
    a.one, b.one, b.two = 1, 2, 3
    swap_tensors(a, b)
    assert (a.one, a.two, b.one) == (2, 3, 1) and not hasattr(b, "two")
    with pytest.raises(RuntimeError, match="different slots"):
        swap_tensors(a, torch.ones(1))


def test_what_is_held_elsewhere_is_not_swapped() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    watch = weakref.ref(a)
    with pytest.raises(RuntimeError, match="Cannot swap t1 because it has weakref"):
        swap_tensors(a, b)
    with pytest.raises(RuntimeError, match="Cannot swap t2 because it has weakref"):
        swap_tensors(b, a)
    del watch
    base = torch.ones(2, requires_grad=True)
    view = base[:1]
    with pytest.raises(RuntimeError, match="Expected use_count of t2 to be 1 or 2 with an AccumulateGrad"):
        swap_tensors(b, base)
    del view
    base.grad = b
    with pytest.raises(RuntimeError, match="Expected use_count of t1 to be 1 or 2"):
        swap_tensors(b, a)


def test_backward_through_what_was_swapped_raises() -> None:
    w, x = nn.Parameter(torch.ones(2)), torch.ones(2)
    loss = (w * x).sum()
    swap_tensors(w, nn.Parameter(torch.zeros(2)))
    with pytest.raises(RuntimeError, match="poisoned by swap_tensors"):
        loss.backward()


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("with_grad", [False, True])
def test_conversions_swap(with_grad: bool) -> None:
    layer = nn.Linear(2, 3)
    layer(torch.ones(1, 2)).sum().backward()
    weight, bias = layer.weight, layer.bias
    if not with_grad:
        layer.zero_grad()
    before = [p._cdata for p in layer.parameters()]
    layer.double()
    assert layer.weight is weight and layer.bias is bias and weight.dtype is torch.float64
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    assert all(p._cdata != c for p, c in zip(layer.parameters(), before, strict=True))
    assert (weight.grad is not None) is with_grad
    if with_grad:
        assert weight.grad is not None and weight.grad.dtype is torch.float64
        assert weight.grad.tolist() == [[1, 1]] * 3
    layer.to(torch.float64)  # nothing to convert: swapped with an alias
    assert layer.weight is weight
    layer.to("meta")
    assert layer.weight is weight and weight.is_meta
    layer.to_empty(device="cpu")
    assert layer.weight is weight and not weight.is_meta


@pytest.mark.usefixtures("swapping")
def test_a_conversion_that_cannot_swap_says_where_and_changes_nothing() -> None:
    layer = nn.Linear(2, 3)
    view = layer.weight[0]
    layer.weight.grad = torch.ones(3, 2)
    with pytest.raises(RuntimeError, match=r"_apply\(\): Couldn't swap Linear.weight"):
        layer.double()
    assert layer.weight.dtype is view.dtype is torch.float32 and layer.weight.grad is not None


def test_conversions_without_swaps_keep_the_gradient_itself() -> None:
    layer = nn.Linear(2, 3)
    layer(torch.ones(1, 2)).sum().backward()
    grad, identity = layer.weight.grad, layer.weight._cdata
    assert grad is not None
    layer.double()
    assert layer.weight.grad is grad and grad.dtype is torch.float64 and grad.tolist() == [[1, 1]] * 3
    assert layer.weight._cdata == identity


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_swaps(assign: bool) -> None:
    layer, other = nn.Linear(2, 3), nn.Linear(2, 3).double()
    weight = layer.weight
    layer.load_state_dict(other.state_dict(), assign=assign)
    assert layer.weight is weight and isinstance(weight, nn.Parameter) and weight.requires_grad
    assert weight.dtype is (torch.float64 if assign else torch.float32)
    assert torch.allclose(weight.double(), other.weight)
    assert (weight.data_ptr() == other.weight.data_ptr()) is assign


@pytest.mark.usefixtures("swapping")
def test_module_load_may_be_overridden() -> None:
    class Doubled(torch.Tensor):
        def module_load(self, other: torch.Tensor, assign: bool = False) -> torch.Tensor:
            return (other * 2).as_subclass(Doubled)

    class Same(torch.Tensor):
        def module_load(self, other: torch.Tensor, assign: bool = False) -> torch.Tensor:
            return other

    module = nn.Module()
    module.register_buffer("x", torch.zeros(2).as_subclass(Doubled))
    kept = module.x
    module.load_state_dict({"x": torch.ones(2)})
    assert module.x is kept and module.x.tolist() == [2, 2]
    module.register_buffer("x", torch.zeros(2).as_subclass(Same))
    with pytest.raises(RuntimeError, match=r"While swapping.*module_load returned one of self or other"):
        module.load_state_dict({"x": torch.ones(2)})
