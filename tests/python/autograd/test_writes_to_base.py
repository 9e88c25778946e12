"""A view whose memory is written through its base, another view, or another tensor of the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import view_programs
import warptape as wt

PROGRAMS, STEP = 400, 1e-6

OVERLAPPING: dict[str, tuple[Callable[[Any], Any], list[float]]] = {  # view, how often it shows each element
    "expand": (lambda a: a.expand(4, 3), [4, 4, 4]),
    "broadcast_to": (lambda a: wt.broadcast_to(a, (4, 3)), [4, 4, 4]),
    "unsqueeze": (lambda a: a[:, None].expand(3, 5), [5, 5, 5]),
    "meshgrid": (lambda a: wt.meshgrid(a, wt.zeros(4), indexing="ij")[0], [4, 4, 4]),
    "unfold": (lambda a: a.unfold(0, 2, 1), [1, 2, 1]),
    "unfold of unfold": (lambda a: a.unfold(0, 2, 1).unfold(0, 2, 1), [1, 2, 1]),
    "as_strided": (lambda a: a.as_strided((2, 2), (1, 1)), [1, 2, 1]),
    "as_strided, all at once": (lambda a: a.as_strided((3, 2, 2), (0, 1, 0)), [6, 6, 0]),
    "broadcast_tensors": (lambda a: wt.broadcast_tensors(a, wt.zeros(2, 3))[0], [2, 2, 2]),
}
WRITES: dict[str, tuple[Callable[[Any], Any], list[float]]] = {  # write, factors of the old values
    "mul_": (lambda a: a.mul_(2), [2, 2, 2]),
    "one element": (lambda a: a.__setitem__(0, 0.0), [0, 1, 1]),
    "by a view": (lambda a: a[1:].mul_(3), [1, 3, 3]),
    "copy_": (lambda a: a.copy_(wt.ones(3)), [0, 0, 0]),
    "masked": (lambda a: a.masked_fill_(wt.tensor([True, False, False]), 1.0), [0, 1, 1]),
}


@pytest.mark.parametrize("view", OVERLAPPING)
@pytest.mark.parametrize("write", WRITES)
def test_elements_that_share_memory_are_summed(view: str, write: str) -> None:
    x = wt.ones(3, requires_grad=True)
    a = x * 1
    v = OVERLAPPING[view][0](a)
    WRITES[write][0](a)
    v.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [n * f for n, f in zip(OVERLAPPING[view][1], WRITES[write][1], strict=True)]


@pytest.mark.parametrize("view", OVERLAPPING)
def test_update_of_a_parameter_without_recording(view: str) -> None:
    w = wt.nn.Parameter(wt.zeros(3))
    v = OVERLAPPING[view][0](w)
    with wt.no_grad():
        w.add_(0.1)
    (v * v).sum().backward()
    assert w.grad is not None
    wt.testing.assert_close(w.grad, 0.2 * wt.tensor(OVERLAPPING[view][1]))


def test_second_derivative_through_a_written_overlap() -> None:
    x = wt.tensor([1.0, 2.0, 3.0], dtype=wt.float64, requires_grad=True)

    def function(x: Any) -> Any:
        a = x * x
        v = a.unfold(0, 2, 1)
        a.mul_(x)
        return v * v

    assert wt.autograd.gradcheck(function, (x,)) and wt.autograd.gradgradcheck(function, (x,))


class Viewing(wt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return t.view(2, 2)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.reshape(4)


def under(mode: Any, t: Any) -> Any:
    with mode():
        return t.view(2, 2)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "chunk": (lambda a: a.chunk(2)[0], "multiple views"),
    "split": (lambda a: a.split([1, 3])[1], "multiple views"),
    "unbind": (lambda a: a.unbind()[0], "multiple views"),
    "iteration": (lambda a: next(iter(a)), "multiple views"),
    "view of a chunk": (lambda a: a.chunk(2)[0].view(2, 1)[:, 0], "multiple views"),
    "custom Function": (Viewing.apply, "custom Function"),
    "view of a custom Function's": (lambda a: Viewing.apply(a)[0], "custom Function"),
    "no_grad": (lambda a: under(wt.no_grad, a), "no_grad mode"),
    "view of one of no_grad": (lambda a: under(wt.no_grad, a)[0], "no_grad mode"),
    "inference_mode": (lambda a: under(wt.inference_mode, a), "inference mode"),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "base": lambda a: a.mul_(2),
    "another view": lambda a: a[0].mul_(2),
    "not recorded": lambda a: wt.no_grad()(a.mul_)(2),
    "detached": lambda a: a.detach().mul_(2),
}


@pytest.mark.parametrize("view", REFUSED)
@pytest.mark.parametrize("change", CHANGES)
def test_views_without_a_history_of_their_own_are_refused(view: str, change: str) -> None:
    make, message = REFUSED[view]
    x = wt.ones(4, requires_grad=True)
    a = x * 1
    v = make(a)
    CHANGES[change](a)
    with pytest.raises(
        RuntimeError, match=f"its base or another view of its base has been modified.*{message}|{message}"
    ):
        v.sum()
    assert v.requires_grad and v.detach().shape == v.shape
    with pytest.raises(RuntimeError, match=message):
        make(x * 1).mul_(2)


def test_unsafe_split_may_be_written() -> None:
    x = wt.ones(4, requires_grad=True)
    first, second = (x * 1).unsafe_split(2)
    first.mul_(3)
    (first.sum() + second.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3, 1, 1]


def test_changes_of_data_are_counted_among_themselves() -> None:
    x = wt.ones(3, requires_grad=True)
    d = x.data
    y = x * d
    d.add_(1)
    assert x._version == 0 and d._version == d[0]._version == d.detach()._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    x.data.mul_(2)
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8, 8, 8]


def test_view_of_data_follows_its_base() -> None:
    x = wt.ones(3, requires_grad=True)
    d = wt.zeros(3).data
    v = d[:2]
    d.copy_(x)
    v.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 0]


def test_view_of_a_base_that_has_no_history_any_more() -> None:
    x = wt.ones(3, requires_grad=True)
    a = x * 1
    v = a[:2]
    a.detach_()
    a.mul_(2)
    (v.sum() + x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]


def test_recorded_writes_to_overlapping_views_are_refused() -> None:
    x = wt.ones(6, requires_grad=True)
    v = (x * 1).unfold(0, 2, 1)
    with pytest.raises(RuntimeError, match="single memory location"):
        v.mul_(2)
    (x * 1).as_strided((2, 2), (3, 2)).mul_(2)  # no two elements meet


def numerical(steps: Any, values: list[float], shape: tuple[int, ...]) -> list[float]:
    found = []
    for i in range(len(values)):
        ends = [
            view_programs.run(wt, steps, moved(values, i, sign * STEP), shape, False)[0] for sign in (1, -1)
        ]
        found.append((ends[0].item() - ends[1].item()) / (2 * STEP))
    return found


def moved(values: list[float], i: int, by: float) -> list[float]:
    return [v + by if k == i else v for k, v in enumerate(values)]


def test_random_programs_against_finite_differences() -> None:
    compared = refused = 0
    for seed in range(PROGRAMS):
        steps, values, shape = view_programs.program(wt, seed)
        try:
            loss, leaf = view_programs.run(wt, steps, values, shape, True)
            (gradient,) = wt.autograd.grad(loss, leaf)
        except RuntimeError as error:
            if "modified" not in str(error) and "single memory location" not in str(error):
                raise
            refused += 1
            continue
        want = wt.tensor(numerical(steps, values, shape), dtype=wt.float64).reshape(shape)
        assert (gradient - want).abs().max() < 1e-5 * (1 + want.abs().max()), (seed, steps)
        compared += 1
    assert compared > PROGRAMS / 3 and refused > PROGRAMS / 20


@pytest.mark.parity
def test_random_programs_against_torch() -> None:
    torch = pytest.importorskip("torch")
    for seed in range(PROGRAMS, 4 * PROGRAMS):
        steps, values, shape = view_programs.program(torch, seed)
        found = []
        for rt in (torch, wt):
            try:
                loss, leaf = view_programs.run(rt, steps, values, shape, True)
                found.append(rt.autograd.grad(loss, leaf)[0].tolist())
            except RuntimeError:
                found.append(None)
        assert (found[0] is None) == (found[1] is None), (seed, steps)
        if found[0] is not None:
            torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]))
