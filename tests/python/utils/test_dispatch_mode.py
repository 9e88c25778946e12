"""TorchDispatchMode: what it is told of ops, forward and backward, and what it may put in their place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import warptape as torch
from warptape import nn
from warptape.nn import functional as F
from warptape.utils import _python_dispatch as dispatch
from warptape.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, types, args, kwargs))
        return func(*args, **(kwargs or {}))

    def names(self) -> list[str]:
        return [str(func) for func, *_ in self.calls]


X = torch.arange(6.0).view(2, 3) + 1
LABELS = torch.tensor([0, 2])
ROW = torch.tensor([0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    "call, names",
    [
        (lambda: X + 1, ["aten.add.Tensor"]),
        (lambda: 2 * X, ["aten.mul.Tensor"]),
        (lambda: X - X, ["aten.sub.Tensor"]),
        (lambda: X > 1, ["aten.gt.Scalar"]),
        (lambda: X > X, ["aten.gt.Tensor"]),
        (lambda: X**2, ["aten.pow.Tensor_Scalar"]),
        (lambda: 2**X, ["aten.pow.Scalar"]),
        (lambda: X.pow(X), ["aten.pow.Tensor_Tensor"]),
        (lambda: torch.relu(X), ["aten.relu.default"]),
        (lambda: X.sum(), ["aten.sum.default"]),
        (lambda: X.sum(1), ["aten.sum.dim_IntList"]),
        (lambda: X.mean((0, 1), keepdim=True), ["aten.mean.dim"]),
        (lambda: X.max(1), ["aten.max.dim"]),
        (lambda: X.max(), ["aten.max.default"]),
        (lambda: X @ X.T, None),
        (lambda: torch.mm(X, X.T), None),
        (lambda: X.softmax(-1), ["aten.softmax.int"]),
        (lambda: X.transpose(0, 1), ["aten.transpose.int"]),
        (lambda: X.view(6), ["aten.view.default"]),
        (lambda: X.unbind(0), ["aten.unbind.int"]),
        (lambda: X.split(1), ["aten.split.Tensor"]),
        (lambda: X.clone().add_(1), ["aten.clone.default", "aten.add_.Tensor"]),
        (lambda: torch.cat([X, X]), ["aten.cat.default"]),
        (lambda: torch.where(X > 1, X, X), ["aten.gt.Scalar", "aten.where.self"]),
        (lambda: torch.zeros(3), ["aten.zeros.default"]),
        (lambda: torch.linalg.svd(X), ["aten.linalg_svd.default"]),
        (lambda: torch.fft.fft(X), ["aten.fft_fft.default"]),
        (lambda: F.linear(X, X), ["aten.linear.default"]),
        (lambda: F.layer_norm(X, (3,)), ["aten.layer_norm.default"]),
        (lambda: F.mse_loss(X, X, reduction="sum"), ["aten.mse_loss.default"]),
        (lambda: F.cross_entropy(X, LABELS, label_smoothing=0.1), ["aten.cross_entropy_loss.default"]),
        (lambda: F.gelu(X, approximate="tanh"), ["aten.gelu.default"]),
        (lambda: F.embedding(LABELS, X.t().contiguous()), None),
        (lambda: F.embedding(LABELS, X.repeat(2, 1)), ["aten.repeat.default", "aten.embedding.default"]),
        (lambda: F.embedding(LABELS, X.repeat(2, 1), max_norm=1.0), None),
        (lambda: F.batch_norm(X, ROW * 1, ROW * 1, ROW, training=True)[:, 0], None),
        (lambda: F.batch_norm(X, ROW, ROW, ROW, ROW), ["aten.batch_norm.default"]),
        (lambda: F.dropout(X, 0.5, training=False), ["aten.dropout.default"]),
        (lambda: F.relu((-X).clone(), inplace=True), None),
        (lambda: F.relu(X), ["aten.relu.default"]),
        (lambda: F.softmax(X, dim=1), ["aten.softmax.int"]),
        (lambda: F.group_norm(X, 3, ROW), ["aten.group_norm.default"]),
        (lambda: F.conv1d(X[None], torch.ones(1, 2, 2), stride=1), None),
        (lambda: F.max_pool1d(X[None], 2), ["aten.max_pool1d.default"]),
        (lambda: F.scaled_dot_product_attention(X[None], X[None], X[None], is_causal=True), None),
        (lambda: X.to(torch.float64), ["aten.to.dtype"]),
        (lambda: torch.special.erfcx(X), ["aten.special_erfcx.default"]),
    ],
)
def test_ops_have_the_dispatchers_names_and_results(call, names):
    expected = call()
    with Log() as log:
        got = call()
    many = isinstance(expected, (tuple, list))
    for a, b in zip(got if many else [got], expected if many else [expected], strict=True):
        assert torch.equal(a, b)
    assert type(got) is type(expected)
    if names is not None:
        assert log.names() == names
    else:
        assert log.names()
    for func, types, args, kwargs in log.calls:
        assert types == () and isinstance(args, tuple) and isinstance(kwargs, dict)
        if func.namespace == "aten":
            assert func is getattr(getattr(torch.ops.aten, func._opname), func._overloadname)
        else:
            assert func.namespace == "warptape" and names is None


def test_arguments_are_those_of_the_call():
    with Log() as log:
        X.sum(1, keepdim=True)
        torch.add(X, X, alpha=3)
        X.sum()
        F.mse_loss(X, X, reduction="none")
    (_, _, args, kwargs), added, plain, loss = log.calls
    assert args[0] is X and args[1:] == ([1], True) and not kwargs
    assert added[2][1] is X and added[3] == {"alpha": 3}
    assert len(plain[2]) == 1 and plain[3] == {}
    assert loss[2][2] == 0


def test_backward_and_optimizer_steps_are_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    plain = torch.autograd.grad(F.cross_entropy(model(X), LABELS // 2), list(model.parameters()))
    with Log() as log:
        loss = F.cross_entropy(model(X), LABELS // 2)
        forward = len(log.calls)
        loss.backward()
        backward = len(log.calls)
        optimizer.step()
    assert log.names()[:forward].count("aten.linear.default") == 2
    assert backward > forward and len(log.calls) > backward
    products = [n for n in log.names()[forward:backward] if "mm" in n or "matmul" in n]
    assert len(products) >= 3  # of two weights, and of the activations between
    for p, g in zip(model.parameters(), plain, strict=True):
        assert torch.equal(p.grad, g)


def test_what_it_returns_stands_for_the_result():
    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is aten.mul.Tensor else out

    with Doubles():
        y = X * X
        values, places = X.max(1)
        assert X.numel() == 6 and X.shape == (2, 3)
    assert torch.equal(y, X * X * 2) and places.tolist() == [2, 2] and values.tolist() == [3.0, 6.0]


def test_modes_nest_and_are_off_within_themselves():
    order = []

    class Named(TorchDispatchMode):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            order.append((self.name, str(func), len(dispatch._get_current_dispatch_mode_stack())))
            return func(*args, **(kwargs or {}))

    with Named("outer") as outer, Named("inner") as inner:
        assert dispatch._get_current_dispatch_mode_stack() == [outer, inner]
        assert dispatch._get_current_dispatch_mode() is inner
        X.neg()
        with dispatch._pop_mode_temporarily():
            X.exp()
        with dispatch._disable_current_modes():
            assert not dispatch.is_in_torch_dispatch_mode()
            X.sin()
    assert order == [
        ("inner", "aten.neg.default", 1),
        ("outer", "aten.neg.default", 0),
        ("outer", "aten.exp.default", 0),
    ]
    assert dispatch._get_current_dispatch_mode() is None and not dispatch.is_in_torch_dispatch_mode()


def test_a_mode_can_turn_itself_on_within():
    class Counts(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count: Counter[str] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count[str(func)] += 1
            if func is aten.relu.default:
                with self:
                    return args[0].clamp(min=0)
            return func(*args, **(kwargs or {}))

    with Counts() as mode:
        assert torch.equal(torch.relu(X - 3), (X - 3).clamp(min=0))
    assert mode.count["aten.relu.default"] == 1 and mode.count["aten.clamp.default"] == 2


def test_errors_pass_and_leave_the_mode_in_place():
    class Fails(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.exp.default:
                raise KeyError("no exp")
            return NotImplemented if func is aten.sin.default else 3

    with Fails() as mode:
        with pytest.raises(KeyError, match="no exp"):
            X.exp()
        with pytest.raises(TypeError, match=r"returned NotImplemented for aten\.sin\.default"):
            X.sin()
        with pytest.raises(TypeError, match="expected a Tensor, got int"):
            X.cos()
        assert dispatch._get_current_dispatch_mode() is mode
    assert X.exp().shape == X.shape
    with pytest.raises(RuntimeError, match="no TorchDispatchMode to leave"):
        torch._C._pop_dispatch_mode()
    with pytest.raises(NotImplementedError), TorchDispatchMode():
        X.exp()
    with pytest.raises(NotImplementedError, match="dispatch keys"):
        TorchDispatchMode(_dispatch_key="Python")


def test_classes_of_tensors_are_told():
    class Mine(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    with Log() as log:
        X.as_subclass(Mine).exp()
    assert log.calls[-1][1] == (Mine,)


def test_it_sees_autocast_vmap_and_nested_tensors():
    with Log() as log, torch.autocast("cpu", torch.bfloat16):
        y = F.linear(X, X)
    assert y.dtype == torch.bfloat16 and "aten.linear.default" in log.names()
    with Log() as log:
        out = torch.vmap(lambda x: x.sin())(X)
    assert torch.equal(out, X.sin()) and "aten.sin.default" in log.names()
    t = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    with Log() as log:
        (t * 2).sum()
    assert "aten.mul.Tensor" in log.names() and "aten.sum.default" in log.names()


def test_a_profile_has_the_same_ops():
    from warptape.profiler import profile

    with profile() as p, Log() as log:
        torch.relu(X)
    assert log.names() == ["aten.relu.default"] and "relu" in {
        e.key.removeprefix("aten::") for e in p.key_averages()
    }
