"""Kernels that run by rows (norm, softmax) in one step with elementwise ops: equal to eager to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
SHAPES = [(4, 1), (5, 7), (64, 300), (333, 64), (3, 50, 96), (2, 3, 40, 33), (9, 5000), (700, 129)]


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def same(a: Any, b: Any) -> bool:
    assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    a, b = (t.detach().double().numpy() for t in (a, b))
    return a.tobytes() == b.tobytes()


def by_rows(f: Callable[..., Any]) -> Any:
    compiled = torch.compile(f)
    compiled.region.adaptive, compiled.region.least_row_bytes = False, 1
    return compiled


def tensors(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Two of the shape, a weight and a bias of its rows, and one number for each row."""
    random = np.random.default_rng(sum(shape))
    shapes = (shape, shape, shape[-1:], shape[-1:], (*shape[:-1], 1))
    return [torch.from_numpy(random.standard_normal(s)).to(DTYPES[dtype]) for s in shapes]


def norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], w, b)


FORWARD: dict[str, Callable[..., Any]] = {
    "before": lambda x, y, w, b, c: norm(x * 2 + y, w, b),
    "behind": lambda x, y, w, b, c: F.gelu(norm(x, w, b) + y) * c,
    "both": lambda x, y, w, b, c: (norm((x + y) * c, w, b) * w).relu() - y,
    "kept": lambda x, y, w, b, c: [z := x + y, n := norm(z, w, None), n * 2 + z],
    "rms": lambda x, y, w, b, c: F.silu(y) * F.rms_norm(x * c, x.shape[-1:], w),
    "softmax": lambda x, y, w, b, c: (x * 0.125 + w).softmax(-1) * y,
    "log_softmax": lambda x, y, w, b, c: -(x + b).log_softmax(-1).exp() + c,
    "first_dim": lambda x, y, w, b, c: (x + y).softmax(0) * 2,
    "two": lambda x, y, w, b, c: norm(norm(x + y, w, b).relu() + x, w, b) * y,
    "mixed": lambda x, y, w, b, c: ((x + y).log_softmax(-1) * y).softmax(-1) + b,
    "in_place": lambda x, y, w, b, c: norm((x + y).mul_(c), w, b).add_(x).relu_(),
    "overwritten": lambda x, y, w, b, c: [z := x * 2, n := norm(z, w, b), z.add_(n), z * n],
    "cast": lambda x, y, w, b, c: (x.double().softmax(-1).float() + y).sigmoid(),
    "views": lambda x, y, w, b, c: norm((x + y).flatten(0, -2), w, b).view(x.shape) + y,
    "transposed": lambda x, y, w, b, c: norm((x.transpose(0, -1) + 1).transpose(0, -1) + y, w, b) * 2,
    "column": lambda x, y, w, b, c: [n := (x * 2).softmax(-1), n[..., :1] + 1, n + y],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str, dtype: str, threads: int) -> None:
    f = FORWARD[name]
    joined = 0
    for shape in SHAPES:
        inputs = tensors(shape, dtype)
        compiled = by_rows(f)
        expected = f(*inputs)
        for _ in range(2):
            got = compiled(*inputs)
            pairs = zip(got, expected, strict=True) if isinstance(got, list) else [(got, expected)]
            for a, b in pairs:
                assert same(a, b), (shape, compiled.explain().programs[-1])
        joined += compiled.explain().row_kernels
    assert joined >= (0 if name == "first_dim" else len(SHAPES) // 2)


BACKWARD: dict[str, Callable[..., Any]] = {
    "norm": lambda x, y, w, b, c: F.gelu(norm(x * y, w, b) * c),
    "norm_alone": lambda x, y, w, b, c: F.gelu(norm(x * y, w.detach(), None) * c),
    "rms": lambda x, y, w, b, c: F.silu(y) * F.rms_norm(x * c, x.shape[-1:], None),
    "softmax": lambda x, y, w, b, c: (x * y * 0.5).softmax(-1) * c,
    "log_softmax": lambda x, y, w, b, c: (x * y * 0.5 + b).log_softmax(-1).tanh(),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients(name: str, dtype: str, threads: int) -> None:
    joined = 0

    def step(*inputs: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in inputs]
        out = BACKWARD[name](*leaves)
        (out * out).sum().backward()
        return [out, *(t.grad for t in leaves if t.grad is not None)]

    for shape in SHAPES:
        inputs = tensors(shape, dtype)
        compiled = by_rows(step)
        for _ in range(2):
            got, expected = compiled(*inputs), step(*inputs)
            assert len(got) == len(expected) > 2
            for a, b in zip(got, expected, strict=True):
                assert same(a, b), (shape, compiled.explain().programs[-1])
        joined += compiled.explain().row_kernels
    assert joined >= len(SHAPES)


def test_what_is_small_stays_apart() -> None:
    f = torch.compile(FORWARD["both"])
    inputs = tensors((64, 300), "float32")
    assert same(f(*inputs), FORWARD["both"](*inputs))
    assert f.explain().row_kernels == 0


def test_no_memory_for_what_stays_inside() -> None:
    x = torch.randn(4096, 64)
    f = by_rows(lambda x: (x * 2 + 1).softmax(-1) * x)
    with torch.no_grad():
        f(x)
        before = torch._C._memory_stats()["allocated_bytes"]
        torch._C._reset_peak_memory()
        f(x)
    most = torch._C._memory_stats()["peak_allocated_bytes"] - before
    assert most < 1.1 * x.nbytes


def test_an_op_with_other_numbers_runs_the_same_program() -> None:
    f = by_rows(lambda x, eps: F.layer_norm(x + 1, (6,), eps=eps) * 2)
    x = torch.randn(8, 6)
    for eps in (1e-5, 0.5, 2.0):
        assert same(f(x, eps), F.layer_norm(x + 1, (6,), eps=eps) * 2)
    assert f.explain().graph_count == 1 and f.explain().row_kernels == 1


def test_the_text_says_which_operands_are_by_rows() -> None:
    f = by_rows(lambda x, w: F.layer_norm(x + 1, (6,), w) * 2)
    f(torch.randn(8, 6), torch.randn(6))
    (program,) = f.explain().programs
    assert "kernel rows [8, 1, 1] layer_norm(%1:float32[8, 6], %2:float32[6])" in program
    assert program.count("fused {") == 1 and program.after("recompute").count("fused {") == 0
    assert torch._C._Program.parse(program).text() == program and program.after("fuse") == program


# ---- how far a step moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "fused"), [(250, True), (300, False)])
def test_a_step_does_not_wait_longer_than_the_cache_holds(rows: int, fused: bool) -> None:
    """Between two sums others write `rows` KiB four times: what the first one reads has left the cache."""
    program = f"""
        %0: 16 bytes in
        %3: 16 bytes out
        %1[4] = add(%0[4], number)
        %4[{rows}, 256] = op roll(%0[4])
        %5[{rows}, 256] = op roll(%4[{rows}, 256])
        %6[{rows}, 256] = op roll(%5[{rows}, 256])
        %2[4] = op sum(%6[{rows}, 256])
        %7[{rows}, 256] = op roll(%6[{rows}, 256])
        %3[4] = add(%1[4], %2[4])
        """
    made = torch._C._Program.parse(re.sub(r"(%\d+)(?=\[)", r"\1:float32", program))
    made.run_pass("fuse")
    assert ("fused {" in made.text()) == fused
