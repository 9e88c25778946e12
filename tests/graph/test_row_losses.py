"""Cross entropy by rows, in one step with what is before and behind it: equal to eager to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

from .test_rows import by_rows, same

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
SHAPES = [(4, 1), (5, 7), (333, 64), (9, 5000), (6, 33, 20), (1, 8)]


@pytest.fixture(params=[1, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tensors(shape: tuple[int, ...], dtype: str) -> tuple[Any, Any, Any, Any]:
    """Logits, a bias of the classes, class indices of which some are ignored, weights of the classes."""
    random = np.random.default_rng(sum(shape))
    classes = shape[1]
    target = random.integers(0, classes, (shape[0], *shape[2:]))
    target.flat[::3] = -100
    column = (classes, *(1,) * (len(shape) - 2))
    values = [random.standard_normal(shape), random.standard_normal(column), random.random(classes) + 0.5]
    x, bias, weight = (torch.from_numpy(v).to(DTYPES[dtype]) for v in values)
    return x, bias, torch.from_numpy(target), weight


LOSSES: dict[str, Callable[..., Any]] = {
    "mean": lambda x, b, t, w: F.cross_entropy(x * 0.5 + b, t),
    "sum": lambda x, b, t, w: F.cross_entropy(x * 2, t, reduction="sum"),
    "none": lambda x, b, t, w: F.cross_entropy(x - b, t, reduction="none"),
    "weight": lambda x, b, t, w: F.cross_entropy(x * 0.5 + b, t, w),
    "smooth": lambda x, b, t, w: F.cross_entropy(x * 0.5 + b, t, w, label_smoothing=0.1),
    "cast": lambda x, b, t, w: F.cross_entropy((x + b).float(), t),
    "alone": lambda x, b, t, w: F.cross_entropy(x, t),
    "kept": lambda x, b, t, w: F.cross_entropy(z := x * 2, t) + z.sum() * 0.1,
    "one_row": lambda x, b, t, w: F.cross_entropy(x[0].flatten() * 2, t.flatten()[1:2].abs().squeeze()),
    "twice": lambda x, b, t, w: F.cross_entropy(z := x * 2, t) + F.cross_entropy(z, t, reduction="sum"),
    "square": lambda x, b, t, w: F.cross_entropy(x * x, t) * 3,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients(name: str, dtype: str, threads: int) -> None:
    joined = 0

    def step(x: Any, b: Any, t: Any, w: Any) -> Any:
        x, b = x.detach().requires_grad_(), b.detach().requires_grad_()
        loss = LOSSES[name](x * 1.5, b, t, w)
        loss.sum().backward()
        return [loss, x.grad, *([] if b.grad is None else [b.grad])]

    for shape in SHAPES:
        inputs = tensors(shape, dtype)
        if name == "one_row" and (shape[0] < 2 or len(shape) > 2):
            continue
        compiled = by_rows(step)
        for _ in range(2):
            got, expected = compiled(*inputs), step(*inputs)
            assert len(got) == len(expected) > 1
            for a, b in zip(got, expected, strict=True):
                assert same(a, b), (shape, compiled.explain().programs[-1])
        joined += compiled.explain().row_kernels
    assert joined >= (0 if name == "one_row" else len(SHAPES) - 2)


def test_a_second_derivative() -> None:
    def step(x: Any, t: Any) -> Any:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(x * 2, t), x, create_graph=True)
        (g * g).sum().backward()
        return x.grad

    x, _, t, _ = tensors((64, 300), "float32")
    compiled = by_rows(step)
    assert same(compiled(x, t), step(x, t))


def test_no_memory_for_logits_that_stay_inside() -> None:
    x, target = torch.randn(4096, 64), torch.randint(0, 64, (4096,))
    f = by_rows(lambda x: F.cross_entropy(x.double() * 2 + 1, target))
    with torch.no_grad():
        f(x)
        before = torch._C._memory_stats()["allocated_bytes"]
        torch._C._reset_peak_memory()
        f(x)
    assert torch._C._memory_stats()["peak_allocated_bytes"] - before < 0.5 * x.nbytes


def test_the_gradient_takes_the_memory_of_logits_that_nobody_needs() -> None:
    """As in eager code, which has one matrix as large as the logits where these come from a product."""
    x, w, target = torch.randn(512, 8), torch.randn(2048, 8).requires_grad_(), torch.randint(0, 9, (512,))

    def step() -> Any:
        w.grad = None
        loss = F.cross_entropy(F.linear(x, w), target)
        loss.backward()
        return loss

    f = torch.compile(step)
    f.region.adaptive = False
    for run in (f, step):
        run()
        before = torch._C._memory_stats()["allocated_bytes"]
        torch._C._reset_peak_memory()
        run()
        logits = 512 * 2048 * 4
        assert torch._C._memory_stats()["peak_allocated_bytes"] - before < 1.3 * logits


# ---- indices out of range ---------------------------------------------------------------------------------


@pytest.mark.parametrize("least_row_bytes", [1, 1 << 60])
def test_a_bad_index_is_the_error_of_eager_code(least_row_bytes: int, threads: int) -> None:
    def step(x: Any, total: Any, count: Any, target: Any) -> Any:
        x.mul_(2)
        total.add_(1)
        z = x * 3
        loss = F.cross_entropy(z, target)
        x.add_(1)
        count.add_(1)
        return loss, z.relu()

    def after(f: Any, bad: int) -> list[Any]:
        x, _, target, _ = tensors((700, 129), "float32")
        target = target.clone()
        target[650] = bad
        total, count = torch.zeros(()), torch.zeros(3)
        said = ""
        try:
            f(x, total, count, target)
        except IndexError as error:
            said = str(error)
        return [said, x, total, count]

    f = torch.compile(step)
    f.region.adaptive, f.region.least_row_bytes = False, least_row_bytes
    with torch.no_grad():
        for bad in (129, 5, -1):
            got, expected = after(f, bad), after(step, bad)
            assert got[0] == expected[0] and ("index" in got[0]) == (bad != 5)
            for a, b in zip(got[1:], expected[1:], strict=True):
                assert same(a, b)


def test_the_first_of_two_bad_indices_is_found() -> None:
    def step(x: Any, a: Any, b: Any) -> Any:
        z = x * 2
        return F.cross_entropy(z, a) + F.cross_entropy(z, b)

    f = by_rows(step)
    good, x = torch.zeros(4).long(), torch.randn(4, 3)
    for first, second in ((7, 0), (0, 8), (7, 8)):
        with pytest.raises(IndexError, match=f"index {first or second} is out of bounds"):
            f(x, good + first, good + second)
    assert same(f(x, good, good), step(x, good, good))


def test_the_text_says_that_indices_are_checked() -> None:
    f = by_rows(lambda x, t: F.cross_entropy(x * 2, t))
    f(torch.randn(8, 6), torch.zeros(8).long())
    (program,) = f.explain().programs
    assert "= kernel checked rows [8, 3, 7] cross_entropy(" in program
    assert "kernel cross_entropy_sum(" in program
    assert torch._C._Program.parse(program).text() == program and program.after("fuse") == program


def test_what_others_see_is_written_on_its_side_of_a_check() -> None:
    program = """
        %0: 64 bytes in out
        %1: 32 bytes in
        %3: 16 bytes out
        %4: 16 bytes out
        %5: 4 bytes in out
        %5:float32[1] = add(%5:float32[1], number)
        %2:float32[4, 4] = mul(%0:float32[4, 4], number)
        %3:float32[4] = kernel checked rows [4, 3, 1] first(%2:float32[4, 4], %1:int64[4])
        %4:float32[4] = kernel checked rows [4, 3, 1] second(%2:float32[4, 4], %1:int64[4])
        %0:float32[4, 4] = sub(%0:float32[4, 4], number)
        """
    made = torch._C._Program.parse(program)
    made.run_pass("fuse", least_row_bytes=1)
    text = made.text()
    places = [text.index(name) for name in ("add(", "mul(", "first(", "}", "second(", "sub(")]
    assert places == sorted(places), text
    assert text.count("fused {") == 1, text


@pytest.mark.parametrize("apart", [True, False])
def test_a_lone_cast_joins_only_what_saves_memory(apart: bool) -> None:
    """Logits that backward reads are stored in any case, and its gradient takes their memory."""
    target = torch.randint(0, 64, (32,))

    def step(x: Any) -> Any:
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(x.float() if apart else x.float() * 2, target)
        loss.backward()
        return loss, x.grad

    f, x = by_rows(step), torch.randn(32, 64).bfloat16()
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(f(x), step(x), strict=True))
    assert f.explain().row_kernels == (0 if apart else 2)
    assert "kernel over rows [32, 7, 1] cross_entropy_backward(" in f.explain().programs[-1]


@pytest.mark.parametrize(
    "first, second, over, joined",
    [
        ("", "", "", True),
        (" out", "", "", True),
        (" out", " out", "", False),  # all results are stored
        ("", "", "over ", False),  # the kernel needs no memory,
        (" out", "", "over ", True),  # unless others see what it reads
    ],
)
@pytest.mark.parametrize("before", ["copy<float32>(%0:bfloat16[4, 4])", "neg(%0:float32[4, 4])"])
def test_casts_around_a_kernel(before: str, first: str, second: str, over: str, joined: bool) -> None:
    made = torch._C._Program.parse(f"""
        %0: 64 bytes in out
        %1: 64 bytes{first}
        %2: 64 bytes{second}
        %3: 32 bytes out
        %1:float32[4, 4] = {before}
        %2:float32[4, 4] = kernel {over}rows [4, 1, 1] kernel(%1:float32[4, 4])
        %3:bfloat16[4, 4] = copy<float32>(%2:float32[4, 4])
        """)
    made.run_pass("fuse", least_row_bytes=1)
    assert ("fused {" in made.text()) == (joined or before.startswith("neg")), made.text()
