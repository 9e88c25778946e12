"""Layer and RMS norm in one kernel with the ops around them, on CUDA: equal to eager to the bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

from .test_cuda import kernels  # noqa: F401

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not shutil.which("c++"), reason="chains need a compiler"),
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHAPES = [(5, 16), (3, 7, 64), (2, 3, 1000), (300, 8), (2, 8192)]


def tensors(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Two of the shape, a weight and a bias of its rows, and one number for each row."""
    random = np.random.default_rng(sum(shape))
    shapes = (shape, shape, shape[-1:], shape[-1:], (*shape[:-1], 1))
    return [torch.from_numpy(random.standard_normal(s)).to(DTYPES[dtype]).cuda() for s in shapes]


def same(a: Any, b: Any) -> bool:
    assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
    a, b = (t.detach().cpu().double().numpy() for t in (a, b))
    return bool(a.tobytes() == b.tobytes())


def norm(x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    return F.layer_norm(x, x.shape[-1:], w, b, eps)


def check(f: Callable[..., Any], inputs: list[Any], joined: int) -> Any:
    """The results, one by one and by the kernel."""
    compiled = torch.compile(f)
    compiled.region.adaptive = False
    expected = f(*inputs)
    for _ in range(2):
        for a, b in zip(compiled(*inputs), expected, strict=True):
            assert (a is None and b is None) or same(a, b)
        torch._C._wait_for_kernels(False)
    e = compiled.explain()
    assert e.problems == [] and e.row_kernels == joined, compiled.explain()
    return compiled


# Compiling a kernel takes seconds: each case has one dtype.
FORWARD: dict[str, Callable[..., Any]] = {
    "residual-float32": lambda x, y, w, b, c: [z := x + y, norm(z, w, b).bfloat16()],
    "behind-float16": lambda x, y, w, b, c: [F.gelu(norm(x, w, None) + y) * c],
    "both-bfloat16": lambda x, y, w, b, c: [(norm((x + y) * c, None, b) * w).relu() - y],
    "kept-bfloat16": lambda x, y, w, b, c: [z := x + y, n := norm(z, w, None), n * 2 + z],
    "rms-float32": lambda x, y, w, b, c: [F.silu(y) * F.rms_norm(x * c, x.shape[-1:], w, 1e-3)],
    "rms, no weight-bfloat16": lambda x, y, w, b, c: [F.rms_norm(x + y, x.shape[-1:]).half()],
    "cast-bfloat16": lambda x, y, w, b, c: [norm(x.float() + y, w.float(), b.float()).to(x.dtype)],
    "in_place-float32": lambda x, y, w, b, c: [norm((x + y).mul_(c), w, b).add_(x).relu_()],
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    for shape in SHAPES:
        check(FORWARD[name], tensors(shape, name.split("-")[1]), 1)


BACKWARD: dict[str, Callable[..., Any]] = {
    "layer-bfloat16": lambda x, y, w, b: norm(x + y, w, b),
    "no weight-float32": lambda x, y, w, b: norm(x + y, None, None),
    "rms-float32": lambda x, y, w, b: F.rms_norm(x + y, x.shape[-1:], w),
    "autocast-bfloat16": lambda x, y, w, b: norm((x + y).float(), w, b).bfloat16(),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_with_a_residual(name: str) -> None:
    """A norm's gradient, cast and added to that of the residual, in one kernel with the weight's sums."""
    f = BACKWARD[name]

    def step(x: Any, y: Any, w: Any, b: Any, c: Any) -> list[Any]:
        leaves = [t.detach().requires_grad_() for t in (x, y, w, b)]
        z = leaves[0] * 2
        out = f(z, *leaves[1:])
        return list(torch.autograd.grad((out * c).sum() + (z * y).sum(), leaves, allow_unused=True))

    for shape in SHAPES:
        inputs = tensors(shape, name.split("-")[1])
        if name.startswith("autocast"):
            inputs[2:4] = [t.float() for t in inputs[2:4]]
        check(step, inputs, 2)


def test_misaligned_rows_and_widths_that_do_not_fit() -> None:
    def f(x: Any, y: Any, w: Any, b: Any) -> list[Any]:
        return [norm(x + y, w, b) * 2]

    x, y, w, b, _ = tensors((6, 32), "float32")
    base = torch.zeros(6 * 32 + 1, device="cuda")
    apart = base[1:].view(6, 32).copy_(y)
    check(f, [x, apart, w, b], 1)  # joined, and run one by one
    check(f, [x, y.t().contiguous().t(), w, b], 1)  # what is behind the norm alone
    for n in (3, 13, 8196):
        x, y, w, b, _ = tensors((4, n), "float32")
        check(f, [x, y, w, b], 0)
    x, y, w, b, _ = tensors((4, 6), "bfloat16")
    check(f, [x, y, w, b], 0)
    check(f, [t.double() for t in tensors((4, 8), "float32")[:4]], 0)


def test_the_argument_of_the_norm_varies() -> None:
    x, y, w, b, _ = tensors((6, 32), "float32")
    f = torch.compile(lambda eps: norm(x + y, w, b, eps) * 2)
    f.region.adaptive = False
    for eps in (1e-5, 1e-5, 0.5, 2.0):
        assert same(f(eps), norm(x + y, w, b, eps) * 2)
        torch._C._wait_for_kernels(False)
    assert f.explain().graph_count == 1
