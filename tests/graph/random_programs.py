"""Random programs: steps drawn from a seed, run on a list of tensors that they read, write and extend.

A step is drawn for the shapes that are there when it runs, so that the same seed makes the same program
eagerly and compiled as long as both see the same values.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[["World"], None]
STEPS: list[tuple[int, Step]] = []
SHAPES = ((4, 6), (6, 4), (4,), (6,), (4, 1), (2, 4, 6), (), (1, 6))
WIDE = ((200, 300), (300, 200), (300,), (200, 1), (60000,))


def step(weight: int = 2) -> Callable[[Step], Step]:
    """Registers a step that is drawn with that weight."""

    def add(function: Step) -> Step:
        STEPS.append((weight, function))
        return function

    return add


class World:
    """What a program works on. `seen` is what it read in its middle."""

    def __init__(self, rt: Any, seed: int):
        self.rt = rt
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.shapes = WIDE if seed % 5 == 0 else SHAPES
        self.leaves: list[Any] = []
        self.buffers: list[Any] = []
        for _ in range(3):
            self.leaves.append(self.fresh().requires_grad_(True))
            self.buffers.append(self.fresh())
        self.live = [*self.leaves, *self.buffers]
        self.seen: list[Any] = []

    def fresh(self) -> Any:
        values = self.numbers.uniform(-2, 2, self.rng.choice(self.shapes))
        return self.rt.tensor(values.astype(np.float32 if self.rng.random() < 0.8 else np.float64))

    def pick(self, where: Callable[[Any], bool] = lambda t: True) -> Any:
        """A live tensor that satisfies `where`, a new one if there is none."""
        found = [t for t in self.live if where(t)]
        return self.rng.choice(found) if found else self.fresh()

    def float(self, dims: int = 0) -> Any:
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= dims and t.numel() > 0)

    def partner(self, t: Any) -> Any:
        """A tensor that broadcasts with t to t's shape."""

        def fits(o: Any) -> bool:
            pairs = zip(reversed(o.shape), reversed(t.shape), strict=False)
            return o.dim() <= t.dim() and all(a in (1, b) for a, b in pairs)

        return self.pick(lambda o: fits(o)) if any(fits(o) for o in self.live) else t

    def target(self) -> Any:
        """A floating tensor that may be written in place."""
        found = [
            t
            for t in self.live
            if t.is_floating_point() and not (t.is_leaf and t.requires_grad) and t.numel() > 0
        ]
        return self.rng.choice(found) if found else self.fresh()

    def add(self, t: Any) -> None:
        if t.numel() > 300000:
            return
        self.live.append(t)
        if len(self.live) > 14:  # what is dropped may be dead code, or not
            del self.live[self.rng.randrange(len(self.leaves), len(self.live))]

    def run(self, steps: int) -> Any:
        functions = [f for _, f in STEPS]
        weights = [w for w, _ in STEPS]
        names = []
        for _ in range(steps):
            function = self.rng.choices(functions, weights)[0]
            names.append(function.__name__)
            try:
                function(self)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                # A refusal is part of the program; so is what it says.
                self.seen.append((function.__name__, type(error).__name__, str(error)))
        return names


def dims_of(w: World, t: Any) -> int:
    return w.rng.randrange(-t.dim(), t.dim())


# ---- out of place ------------------------------------------------------------------------------------------


@step(10)
def unary(w: World) -> None:
    name = w.rng.choice(
        [
            "neg",
            "abs",
            "exp",
            "tanh",
            "sigmoid",
            "relu",
            "sin",
            "cos",
            "square",
            "sign",
            "erf",
            "floor",
            "sqrt",
            "log",
        ]
    )
    w.add(getattr(w.rt, name)(w.float()))


@step(12)
def binary(w: World) -> None:
    a = w.float()
    b = w.partner(a)
    name = w.rng.choice(["add", "sub", "mul", "div", "maximum", "minimum", "atan2", "fmod", "remainder"])
    w.add(getattr(w.rt, name)(a, b))


@step(6)
def with_number(w: World) -> None:
    a = w.pick()
    number = w.rng.choice((2, 0.5, -1.25, 3, 1e-3))
    w.add(w.rng.choice((a.__add__, a.__mul__, a.__rsub__, a.__sub__, a.__truediv__))(number))


@step(3)
def ternary(w: World) -> None:
    a = w.float()
    b, c = w.partner(a), w.partner(a)
    w.add(w.rt.addcmul(a, b, c, value=0.5) if w.rng.random() < 0.5 else w.rt.lerp(a, a * 2, 0.25))


@step(3)
def where(w: World) -> None:
    a = w.float()
    w.add(w.rt.where(w.partner(a) > 0, a, w.partner(a)))


@step(3)
def compare(w: World) -> None:
    a = w.float()
    w.add(w.rng.choice((w.rt.gt, w.rt.le, w.rt.eq))(a, w.partner(a)))


@step(4)
def cast(w: World) -> None:
    dtype = w.rng.choice((w.rt.bfloat16, w.rt.float64, w.rt.int64, w.rt.float32, w.rt.float16, w.rt.bool))
    w.add(w.pick().to(dtype))


@step(2)
def clamp(w: World) -> None:
    w.add(w.float().clamp(-0.5, 0.75))


# ---- views -------------------------------------------------------------------------------------------------


@step(8)
def view(w: World) -> None:
    t = w.float(1)
    kind = w.rng.randrange(7)
    d = dims_of(w, t)
    if kind == 0:
        w.add(t.transpose(d, -1))
    elif kind == 1:
        w.add(t.narrow(d, 0, max(1, t.shape[d] // 2)))
    elif kind == 2:
        w.add(t[..., :: w.rng.choice((1, 2))])
    elif kind == 3:
        w.add(t.reshape(-1))
    elif kind == 4:
        w.add(t.unsqueeze(d))
    elif kind == 5:
        w.add(t.select(d, 0))
    else:
        w.add(t.unsqueeze(0).expand(2, *t.shape) if t.dim() < 3 else t.squeeze())


@step(2)
def chunk(w: World) -> None:
    t = w.float(1)
    for part in t.chunk(2, dims_of(w, t)):
        w.add(part)


@step(2)
def contiguous(w: World) -> None:
    w.add(w.pick().contiguous())


@step(2)
def detach(w: World) -> None:
    w.add(w.pick().detach())


@step(3)
def clone(w: World) -> None:
    w.add(w.pick().clone())


# ---- reductions, products, indices -------------------------------------------------------------------------


@step(6)
def reduce(w: World) -> None:
    t = w.float(1)
    name = w.rng.choice(
        [
            "sum",
            "mean",
            "amax",
            "amin",
            "var",
            "prod",
            "logsumexp",
            "cumsum",
            "softmax",
            "log_softmax",
            "argmax",
            "any",
        ]
    )
    w.add(getattr(t, name)(dims_of(w, t)))


@step(2)
def reduce_all(w: World) -> None:
    w.add(getattr(w.float(), w.rng.choice(["sum", "mean", "max", "norm", "std"]))())


@step(3)
def matmul(w: World) -> None:
    t = w.pick(lambda o: o.is_floating_point() and o.dim() >= 2 and 0 < max(o.shape[-2:]) < 1000)
    if t.dim() < 2 or max(t.shape[-2:]) >= 1000:
        return
    w.add(t @ t.transpose(-1, -2) if w.rng.random() < 0.5 else t.transpose(-1, -2) @ t)


@step(2)
def linear(w: World) -> None:
    t = w.float(2)
    weight = w.pick(lambda o: o.dim() == 2 and o.dtype == t.dtype and o.shape[1] == t.shape[-1])
    if max(*t.shape, *weight.shape) < 1000:
        w.add(w.rt.nn.functional.linear(t, weight))


@step(2)
def cat(w: World) -> None:
    t = w.float(1)
    w.add(w.rt.cat([t, t * 2, t], dims_of(w, t)) if w.rng.random() < 0.5 else w.rt.stack([t, t.neg()]))


@step(3)
def index(w: World) -> None:
    t = w.float(1)
    d = dims_of(w, t)
    at = w.rt.tensor([0, t.shape[d] - 1, 0])
    w.add(t.index_select(d, at) if w.rng.random() < 0.5 else t[at.clamp(max=t.shape[0] - 1)])


@step(1)
def mask(w: World) -> None:
    t = w.float(1)
    w.add(t[t > 0])


@step(1)
def sort(w: World) -> None:
    t = w.float(1)
    values, order = t.sort(dims_of(w, t), stable=True)
    w.add(values)
    w.add(order)


@step(3)
def norm(w: World) -> None:
    t = w.float(1)
    f = w.rt.nn.functional
    w.add(f.layer_norm(t, t.shape[-1:]) if w.rng.random() < 0.5 else f.gelu(t))


@step(2)
def loss(w: World) -> None:
    t = w.float(2)
    if t.dim() == 2:
        w.add(w.rt.nn.functional.cross_entropy(t, w.rt.zeros(t.shape[0], dtype=w.rt.int64)))
    w.add(w.rt.nn.functional.mse_loss(t, t.detach() * 0.5))


@step(2)
def dropout(w: World) -> None:
    w.add(w.rt.nn.functional.dropout(w.float(), 0.5))


# ---- in place ----------------------------------------------------------------------------------------------


@step(8)
def inplace(w: World) -> None:
    t = w.target()
    o = w.partner(t)
    name = w.rng.choice(
        [
            "add_",
            "mul_",
            "sub_",
            "copy_",
            "clamp_",
            "relu_",
            "zero_",
            "fill_",
            "neg_",
            "exp_",
            "div_",
            "fmod_",
        ]
    )
    if name in ("add_", "mul_", "sub_", "copy_", "div_", "fmod_"):
        getattr(t, name)(o)
    elif name == "clamp_":
        t.clamp_(-1, 1)
    elif name == "fill_":
        t.fill_(0.25)
    else:
        getattr(t, name)()


@step(4)
def inplace_on_view(w: World) -> None:
    t = w.target()
    part = t[..., ::2] if t.dim() else t
    if w.rng.random() < 0.5:
        part.mul_(0.5)
    else:
        part += 1
    w.add(part)


@step(2)
def set_item(w: World) -> None:
    t = w.target()
    if t.dim():
        t[0] = w.rng.choice((1.5, 0.0))


@step(2)
def masked_fill(w: World) -> None:
    t = w.target()
    t.masked_fill_(t > 0.5, 0.1)


@step(2)
def scatter(w: World) -> None:
    t = w.target()
    if t.dim():
        t.index_add_(0, w.rt.tensor([0]), t[:1].clone())


@step(2)
def random_fill(w: World) -> None:
    t = w.target()
    with w.rt.no_grad():
        t.uniform_() if w.rng.random() < 0.5 else t.normal_()
    w.add(w.rt.randn_like(t))


@step(2)
def empty(w: World) -> None:
    t = w.float()
    made = w.rt.empty_like(t)
    made.copy_(t)
    w.add(made)


@step(2)
def swap(w: World) -> None:
    with w.rt.no_grad():
        a = w.target()
        b = w.pick(lambda o: o.shape == a.shape and o.dtype == a.dtype)
        if b.shape == a.shape:
            keep = a.clone()
            a.copy_(b)
            b.copy_(keep)


# ---- values that are needed again later, and seen by nobody ------------------------------------------------


@step(5)
def temporaries(w: World) -> None:
    t, rt = w.float(), w.rt
    square = rt.linspace(-1, 1, 1024).reshape(32, 32)
    pool = [square * t.reshape(-1)[0].float(), square.t() * t.sum().float()]
    with rt.set_grad_enabled(w.rng.random() < 0.5):
        for _ in range(w.rng.randrange(6, 16)):
            a, b = w.rng.choice(pool), w.rng.choice(pool)
            kind = w.rng.randrange(10)
            if kind < 4:
                pool.append(w.rng.choice((rt.tanh, rt.nn.functional.gelu, rt.sigmoid, rt.abs))(a))
            elif kind < 6:
                pool.append(w.rng.choice((rt.add, rt.mul, rt.maximum))(a, b))
            elif kind < 8:
                pool.append(a @ b / 32)
            elif kind < 9:
                w.rng.choice((a.add_, a.mul_))(b.detach())
            else:
                del pool[next(i for i, p in enumerate(pool) if p is a)]
                pool.append(a.square().mean() * square)
        total = pool[0] * pool[-1]
        for p in pool[1:-1]:
            total = total * 0.5 + p
        w.add(total.sum())


# ---- reads, branches, modes --------------------------------------------------------------------------------


@step(2)
def read(w: World) -> None:
    t = w.pick()
    kind = w.rng.randrange(3)
    if kind == 0:
        w.seen.append(repr(t.sum().item()))
    elif kind == 1:
        w.seen.append(repr(t.reshape(-1)[:2].tolist()))
    else:
        w.seen.append(t.detach().float().numpy().copy().tobytes())


@step(2)
def branch(w: World) -> None:
    t = w.float()
    w.add(t * 2 if bool(t.sum() > 0) else t - 1)


@step(2)
def look(w: World) -> None:
    t = w.pick()
    w.seen.append((t._version, t.requires_grad, type(t.grad_fn).__name__, tuple(t.stride()), t._is_view()))


@step(2)
def without_grad(w: World) -> None:
    with w.rt.no_grad():
        unary(w)
        binary(w)
        inplace(w)


# ---- gradients ---------------------------------------------------------------------------------------------


def scalar(w: World) -> Any:
    t = w.pick(lambda o: o.requires_grad and o.is_floating_point())
    return t.sum() if t.requires_grad else (w.leaves[0] * 2).sum()


@step(4)
def backward(w: World) -> None:
    scalar(w).backward(retain_graph=w.rng.random() < 0.7)


@step(2)
def second(w: World) -> None:
    out = scalar(w)
    first = w.rt.autograd.grad(out, w.leaves, create_graph=True, allow_unused=True)
    for g in first:
        if g is not None:
            w.add(g)


@step(3)
def update(w: World) -> None:
    with w.rt.no_grad():
        for p in w.leaves:
            if p.grad is not None:
                p.add_(p.grad, alpha=-0.01)
                if w.rng.random() < 0.5:
                    p.grad.zero_()
                else:
                    p.grad = None


@step(1)
def tensor_hook(w: World) -> None:
    t = w.pick(lambda o: o.requires_grad)
    if t.requires_grad:
        kept = w.seen
        double = w.rng.random() < 0.5

        def hook(g: Any) -> Any:
            kept.append(tuple(g.shape))
            return g * 2 if double else None

        t.register_hook(hook)


@step(1)
def retain(w: World) -> None:
    t = w.pick(lambda o: o.requires_grad)
    if t.requires_grad:
        t.retain_grad()


@step(1)
def own_function(w: World) -> None:
    rt = w.rt

    class Cube(rt.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    w.add(Cube.apply(w.float()))


@step(1)
def checkpointed(w: World) -> None:
    t = w.float()
    w.add(w.rt.utils.checkpoint.checkpoint(lambda x: (x.sin() * x).exp(), t, use_reentrant=False))


@step(1)
def saved_hooks(w: World) -> None:
    manager: Any = w.rt.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x * 1)
    with manager if w.rng.random() < 0.7 else contextlib.nullcontext():
        unary(w)
        binary(w)
