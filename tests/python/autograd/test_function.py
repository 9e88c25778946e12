"""autograd.Function with the whole of ctx, saved-tensor hooks and anomaly detection."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import warptape as wt
from warptape.autograd import Function


def leaf(*values: float) -> wt.Tensor:
    return wt.tensor(list(values), dtype=wt.float64, requires_grad=True)


class Scale(Function):
    """x * factor, with what ctx offers."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float, unused: Any = None) -> Any:
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        assert x.shape == g.shape
        return g * ctx.factor, None, None


def test_values_plain_arguments_and_gradients() -> None:
    x = leaf(1.0, 2.0)
    y = Scale.apply(x, 3.0)
    assert y.tolist() == [3.0, 6.0] and y.requires_grad and not y.is_leaf
    assert y.grad_fn.name() == "ScaleBackward"
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_forward_is_not_recorded() -> None:
    seen = []

    class F(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            seen.append((wt.is_grad_enabled(), (x * 2).requires_grad))
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(wt.is_grad_enabled())
            return g * 2

    x = leaf(1.0)
    F.apply(x).sum().backward()
    assert seen == [(False, False), False]


def test_nothing_is_recorded_without_need() -> None:
    assert not Scale.apply(wt.ones(2), 2.0).requires_grad
    with wt.no_grad():
        assert not Scale.apply(leaf(1.0), 2.0).requires_grad


def test_setup_context() -> None:
    class F(Function):
        @staticmethod
        def forward(x: Any, factor: float) -> Any:
            return x * factor

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, ctx.factor = inputs
            ctx.save_for_backward(x, output)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            assert y.tolist() == (x * ctx.factor).tolist()
            return g * ctx.factor, None

    x = leaf(2.0)
    F.apply(x, 5.0).sum().backward()
    assert x.grad.tolist() == [5.0]


def test_several_outputs_and_needs_input_grad() -> None:
    seen = []

    class F(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y, x + y, "not a tensor"

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any, none: Any) -> Any:
            _, y = ctx.saved_tensors
            seen.append((ctx.needs_input_grad, none))
            return g * y + h, None

    x, y = leaf(2.0), wt.tensor([5.0], dtype=wt.float64)
    p, s, text = F.apply(x, y)
    assert text == "not a tensor"
    (p + 10 * s).sum().backward()
    assert x.grad.tolist() == [15.0] and y.grad is None
    assert seen == [((True, False), None)]


def test_undefined_gradients_come_as_zeros_unless_told() -> None:
    seen: list[Any] = []

    def make(materialize: bool) -> Any:
        class F(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx: Any, g: Any, h: Any) -> Any:
                seen.append(None if h is None else h.tolist())
                return g * 2

        return F

    for materialize in (True, False):
        make(materialize).apply(leaf(1.0))[0].sum().backward()
    assert seen == [[0.0], None]


def test_mark_dirty() -> None:
    class AddOne(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 7

    x = leaf(1.0)
    y = x * 2
    z = AddOne.apply(y)
    assert z is y and y.tolist() == [3.0] and y._version == 2
    assert y.grad_fn.name() == "AddOneBackward"
    y.sum().backward()
    assert x.grad.tolist() == [14.0]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        AddOne.apply(leaf(1.0))


def test_mark_non_differentiable() -> None:
    class SortValues(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            values, places = x.sort()
            ctx.mark_non_differentiable(places)
            ctx.save_for_backward(places)
            return values, places

        @staticmethod
        def backward(ctx: Any, g: Any, none: Any) -> Any:
            (places,) = ctx.saved_tensors
            return wt.zeros_like(g).scatter_add(0, places, g)

    x = leaf(3.0, 1.0, 2.0)
    values, places = SortValues.apply(x)
    assert not places.requires_grad and values.requires_grad
    (values * wt.tensor([1.0, 10.0, 100.0], dtype=wt.float64)).sum().backward()
    assert x.grad.tolist() == [100.0, 1.0, 10.0]


def test_second_gradient() -> None:
    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = leaf(2.0)
    assert wt.autograd.gradcheck(Cube.apply, x) and wt.autograd.gradgradcheck(Cube.apply, x)
    (g,) = wt.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (h,) = wt.autograd.grad(g.sum(), x)
    assert (g.item(), h.item()) == (12.0, 12.0)


def test_once_differentiable() -> None:
    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @wt.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            assert not wt.is_grad_enabled()
            return g * 3 * x * x

    x, v = leaf(2.0), leaf(1.0)
    (g,) = wt.autograd.grad(Cube.apply(x), x, v, create_graph=True)
    assert g.item() == 12.0
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_saved_tensors_are_guarded() -> None:
    x = leaf(1.0)
    y = Scale.apply(x, 2.0)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    w = x * 1
    y = Scale.apply(w, 2.0)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_wrong_backwards_are_named() -> None:
    def make(result: Any) -> Any:
        class Wrong(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return result

        return Wrong

    with pytest.raises(
        RuntimeError, match=r"WrongBackward.*incorrect number of gradients \(expected 1, got 2\)"
    ):
        make((wt.ones(1), wt.ones(1))).apply(leaf(1.0)).sum().backward()
    with pytest.raises(RuntimeError, match=r"WrongBackward.*invalid gradient at index 0"):
        make(wt.ones(3)).apply(leaf(1.0, 2.0)).sum().backward()
    with pytest.raises(TypeError, match="expected Variable or None"):
        make("text").apply(leaf(1.0)).sum().backward()


def test_no_backward() -> None:
    class Forward(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    with pytest.raises(NotImplementedError, match="backward"):
        Forward.apply(leaf(1.0)).sum().backward()


def test_errors_pass_through_backward() -> None:
    class Raises(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        Raises.apply(leaf(1.0)).sum().backward()


def test_saved_tensor_hooks() -> None:
    packed, unpacked = [], []

    def pack(t: Any) -> Any:
        packed.append(t)
        return len(packed) - 1

    def unpack(i: Any) -> Any:
        unpacked.append(i)
        return packed[i] * 2

    a, b = leaf(3.0), leaf(5.0)
    with wt.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = a * b
    z = y * a  # saved as usual
    assert len(packed) == 2 and unpacked == []
    z.sum().backward()
    assert sorted(unpacked) == [0, 1]
    # dz/da = y + a * (2 b) and dz/db = a * (2 a), by the doubled saved values
    assert a.grad.tolist() == [15.0 + 30.0] and b.grad.tolist() == [18.0]


def test_saved_tensor_hooks_nest() -> None:
    order = []
    hooks = wt.autograd.graph.saved_tensors_hooks
    a = leaf(2.0)
    with hooks(lambda t: order.append("outer") or t, lambda t: t):
        with hooks(lambda t: order.append("inner") or t, lambda t: t):
            a.exp()
        a.exp()
    a.exp()
    assert order == ["inner", "outer"]


def test_save_on_cpu_or_similar_keeps_values() -> None:
    a = leaf(2.0)
    with wt.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = (a * a).exp()
    y.sum().backward()
    assert a.grad.item() == pytest.approx(4.0 * 54.598150033144236)


def test_unpack_must_return_a_tensor() -> None:
    with wt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = leaf(2.0).exp()
    with pytest.raises(TypeError, match="unpack_hook should return a Tensor"):
        y.sum().backward()


def forward_that_makes_nan(x: wt.Tensor) -> wt.Tensor:
    return (x - 1.0).sqrt() * 0.0


def test_anomaly_names_the_forward_call() -> None:
    x = leaf(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with wt.autograd.detect_anomaly():
            y = forward_that_makes_nan(x)
            with pytest.raises(RuntimeError, match=r"SqrtBackward0.*returned nan values") as error:
                y.sum().backward()
    text = str(error.value) + "".join(getattr(error.value, "__notes__", []))
    assert "forward_that_makes_nan" in text and "test_function.py" in text
    y = forward_that_makes_nan(x)
    y.sum().backward()  # no error outside
    assert x.grad.isnan().all()


def test_anomaly_without_nan_check() -> None:
    x = leaf(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with wt.autograd.detect_anomaly(check_nan=False):
            forward_that_makes_nan(x).sum().backward()
    assert x.grad.isnan().all()


def test_tensors_are_variables():
    x = wt.ones(2, requires_grad=True)
    assert isinstance(x, wt.autograd.Variable) and not isinstance(2.0, wt.autograd.Variable)
    assert isinstance(wt.nn.Parameter(x.detach()), wt.autograd.Variable)
    handle = x.register_hook(lambda grad: 2 * grad)
    assert handle.id in handle.hooks_dict_ref() and handle.extra_dict_ref == ()
    handle.remove()
    assert handle.id not in handle.hooks_dict_ref()


def test_an_object_of_a_function_is_not_called() -> None:
    with pytest.raises(RuntimeError, match=r"Legacy autograd function.*Scale\.apply"):
        Scale()(leaf(1.0))
