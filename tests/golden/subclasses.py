"""Programs on a tensor class that holds another tensor and logs the ops that it is asked for; they run in any
runtime with PyTorch's names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np


def make_class(rt: ModuleType, log: list[str]) -> Any:
    """A wrapper of a tensor, whose ops are appended to `log`."""
    tree_map = rt.utils._pytree.tree_map

    class Logged(rt.Tensor):  # type: ignore[name-defined,misc]
        @staticmethod
        def __new__(cls: Any, held: Any, requires_grad: bool = False) -> Any:
            return rt.Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                dtype=held.dtype,
                device=held.device,
                requires_grad=requires_grad,
            )

        def __init__(self, held: Any, requires_grad: bool = False) -> None:
            self.held = held

        __torch_function__ = rt._C._disabled_torch_function_impl

        def __repr__(self) -> str:
            return f"Logged({self.held})"

        def __tensor_flatten__(self) -> Any:
            return ["held"], None

        @staticmethod
        def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
            return Logged(inner["held"])

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.append(str(func).removeprefix("aten."))

            def inner(x: Any) -> Any:
                return x.held if isinstance(x, Logged) else x

            out = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
            if func.__name__.split(".")[0].endswith("_"):
                return args[0]
            return tree_map(lambda x: Logged(x) if isinstance(x, rt.Tensor) else x, out)

    return Logged


class Programs:
    """The programs, each a method that returns tensors; `make` wraps a plain tensor or leaves it."""

    def __init__(self, rt: ModuleType, make: Callable[..., Any]) -> None:
        self.rt, self.make, self.F = rt, make, rt.nn.functional

    def t(self, *shape: int, seed: int = 0, grad: bool = False) -> Any:
        values = np.random.RandomState(seed + sum(shape)).randn(*shape).astype("float32")
        return self.make(self.rt.from_numpy(values), grad)

    def plain(self, *shape: int) -> Any:
        values = np.random.RandomState(sum(shape)).randn(*shape).astype("float32")
        return self.rt.from_numpy(values)

    def arithmetic(self) -> Any:
        x, y = self.t(3, 4), self.t(3, 4, seed=1)
        return [(x - y) * y / (x * x + 1) - 2 * x + (1 - x), x + 1]

    def linear(self) -> Any:
        w, b, f = self.t(5, 4), self.t(5), self.F.linear
        rows, blocks = self.t(3, 4), self.t(2, 3, 4)
        plain = f(blocks, self.plain(5, 4))
        return [f(rows, w, b), f(rows, w), f(blocks, w, b), f(blocks, w), plain]

    def matmul(self) -> Any:
        t = self.t
        pairs = [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4,)), ((3, 4), (4,))]
        return [t(*a) @ t(*b) for a, b in [*pairs, ((2, 1, 3, 4), (2, 4, 5))]]

    def shapes(self) -> Any:
        x = self.t(3, 4)
        views = [
            x.t(),
            x.T,
            x.mT,
            x.transpose(0, 1),
            x.permute(1, 0),
            x.view(4, 3),
            x.view(-1),
            x.expand(2, 3, 4),
        ]
        copies = [x.reshape(2, 6), x.t().reshape(12), x.flatten(), x.contiguous(), x.t().contiguous()]
        return [*views, *copies, x.unsqueeze(0).squeeze(0), x.unflatten(1, (2, 2)), x.narrow(1, 1, 2)]

    def indexing(self) -> Any:
        x = self.t(3, 4)
        return [x[0], x[1:], x[:, 1:3], x[0, 1], x[None], x[..., ::2], x[self.rt.tensor([0, 2])]]

    def splitting(self) -> Any:
        x = self.t(6, 4)
        joined = [self.rt.cat([x, x], 1), self.rt.stack([x, x])]
        return [*x.chunk(2), *x.split(2), *x.split([1, 5]), *x.unbind(1), *joined]

    def conversions(self) -> Any:
        x, rt = self.t(3, 4), self.rt
        return [x.to(rt.float64), x.double(), x.half(), x.to("cpu"), x.float(), x.type_as(x.double())]

    def activations(self) -> Any:
        x, F = self.t(3, 4), self.F
        smooth = [F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), x.sigmoid(), x.tanh(), x.exp()]
        return [*smooth, x.relu(), x.abs().sqrt(), x.clamp(-1, 1), x.softmax(-1), F.log_softmax(x, -1)]

    def reductions(self) -> Any:
        x = self.t(3, 4)
        sums = [x.sum(), x.sum(1), x.mean(), x.mean(-1, keepdim=True)]
        return [*sums, x.amax(1), x.max(), x.var(1), x.argmax(1), x.std(), x.norm()]

    def choices(self) -> Any:
        x = self.t(3, 4)
        return [x > 0, x == x, self.rt.where(x > 0, x, -x), x.masked_fill(x > 0, 0.0)]

    def in_place(self) -> Any:
        x = self.t(3, 4)
        x.add_(1).mul_(2)
        y = x.clone()
        x.copy_(self.t(3, 4, seed=3))
        return [y, x, self.t(3, 4).zero_(), self.t(3, 4).fill_(2.0)]

    def factories(self) -> Any:
        x, rt = self.t(3, 4), self.rt
        return [rt.zeros_like(x), rt.ones_like(x), rt.full_like(x, 2.0), x.new_zeros(2), rt.empty_like(x) * 0]

    # ---- gradients ----

    def leaves(self, *shapes: tuple[int, ...]) -> Any:
        return [self.t(*shape, seed=i, grad=True) for i, shape in enumerate(shapes)]

    def grad_mul(self) -> Any:
        x, y = self.leaves((3, 4), (3, 4))
        (x * y + x).sum().backward()
        return [x.grad, y.grad]

    def grad_linear(self) -> Any:
        x, w, b = self.leaves((3, 4), (5, 4), (5,))
        self.F.linear(x, w, b).sum().backward()
        return [x.grad, w.grad, b.grad]

    def grad_linear_without_bias(self) -> Any:
        x, w = self.leaves((3, 4), (5, 4))
        self.F.linear(x, w).pow(2).mean().backward()
        return [x.grad, w.grad]

    def grad_linear_of_blocks(self) -> Any:
        x, w, b = self.leaves((2, 3, 4), (5, 4), (5,))
        self.F.linear(x, w, b).relu().sum().backward()
        return [x.grad, w.grad, b.grad]

    def grad_mlp(self) -> Any:
        (w1, b1, w2), F = self.leaves((8, 4), (8,), (2, 8)), self.F
        F.linear(F.gelu(F.linear(self.t(3, 4), w1, b1)), w2).pow(2).sum().backward()
        return [w1.grad, b1.grad, w2.grad]

    def grad_twice(self) -> Any:
        (w,) = self.leaves((5, 4))
        for seed in range(2):
            self.F.linear(self.t(3, 4, seed=seed), w).sum().backward()
        return [w.grad]

    def grad_bmm(self) -> Any:
        x, y = self.leaves((2, 3, 4), (2, 4, 5))
        self.rt.bmm(x, y).sum().backward()
        return [x.grad, y.grad]

    def grad_views(self) -> Any:
        (x,) = self.leaves((3, 4))
        (x.t().reshape(12)[2:8].view(2, 3).unsqueeze(0) * 2).sum().backward()
        return [x.grad]

    def grad_select_cat(self) -> Any:
        (x,) = self.leaves((3, 4))
        self.rt.cat([x[0], x[1]]).sum().backward()
        return [x.grad]

    def grad_activations(self) -> Any:
        (x,), F = self.leaves((3, 4)), self.F
        (x.relu() + x.sigmoid() + x.tanh() + F.silu(x) + x.exp() + F.gelu(x)).sum().backward()
        return [x.grad]

    def grad_softmax(self) -> Any:
        (x,) = self.leaves((3, 4))
        (x.softmax(-1) * self.t(3, 4)).sum().backward()
        return [x.grad]

    def grad_cross_entropy(self) -> Any:
        (x,) = self.leaves((3, 4))
        self.F.cross_entropy(x, self.rt.tensor([0, 2, 1])).backward()
        return [x.grad]

    def grad_layer_norm(self) -> Any:
        x, w, b = self.leaves((3, 4), (4,), (4,))
        (self.F.layer_norm(x, (4,), w, b) * self.t(3, 4)).sum().backward()
        return [x.grad, w.grad, b.grad]

    def grad_embedding(self) -> Any:
        (w,) = self.leaves((6, 4))
        self.F.embedding(self.rt.tensor([[0, 2], [1, 0]]), w).sum().backward()
        return [w.grad]

    def grad_broadcast(self) -> Any:
        x, b = self.leaves((3, 4), (4,))
        ((x + b) * b).sum().backward()
        return [x.grad, b.grad]

    def grad_conversion(self) -> Any:
        (x,) = self.leaves((3, 4))
        x.to(self.rt.float64).sum().backward()
        return [x.grad]

    def grad_convolution(self) -> Any:
        x, w, b = self.leaves((1, 2, 5, 5), (3, 2, 3, 3), (3,))
        self.F.conv2d(x, w, b).sum().backward()
        return [x.grad, w.grad, b.grad]

    def grad_mse(self) -> Any:
        (x,) = self.leaves((3, 4))
        self.F.mse_loss(x, self.t(3, 4, seed=7)).backward()
        return [x.grad]

    def grad_steps(self) -> Any:
        (x,) = self.leaves((3, 4))
        (x.round() + x.sign() * x + x.floor()).sum().backward()
        return [x.grad]

    def grad_overwritten(self) -> Any:
        x, y = self.leaves((3, 4), (3, 4))
        (x * 3).uniform_().sum().backward()
        (y * 3).eq_(self.t(3, 4)).sum().backward()
        return [x.grad, y.grad]

    # ---- parameters ----

    def parameter(self) -> Any:
        nn = self.rt.nn
        p = nn.Parameter(self.t(3, 4))
        q = copy.deepcopy(p)
        assert isinstance(q, nn.Parameter) and type(q) is type(p) and q.requires_grad and q.is_leaf
        return [q.detach()]

    def adamw(self) -> Any:
        p = self.rt.nn.Parameter(self.t(2, 4))
        optimizer = self.rt.optim.AdamW([p], 0.1, foreach=False)
        for seed in range(2):
            (p * self.t(2, 4, seed=seed)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach()]

    def state_dict(self) -> Any:
        nn = self.rt.nn
        layers = [nn.Linear(4, 2, bias=False) for _ in range(2)]
        for seed, layer in enumerate(layers):
            layer.weight = nn.Parameter(self.t(2, 4, seed=seed))
        layers[0].load_state_dict(layers[1].state_dict())
        return [layers[0].weight.detach()]


NAMES = [
    name
    for name, f in vars(Programs).items()
    if callable(f) and name not in ("__init__", "t", "plain", "leaves")
]


def run(rt: ModuleType, name: str) -> tuple[list[str], list[Any], list[Any]]:
    """The ops that the class was asked for, what the program gave, and what it gives on plain tensors."""
    log: list[str] = []
    cls = make_class(rt, log)
    found = getattr(Programs(rt, cls), name)()
    ops = list(log)
    held = [x.held if isinstance(x, cls) else x for x in found]
    plain = getattr(Programs(rt, lambda x, grad: x.requires_grad_(grad)), name)()
    return ops, held, plain
