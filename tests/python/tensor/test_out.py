"""What out= refuses, where it puts results and how it lays them out: PyTorch's rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

X = torch.arange(12.0).reshape(3, 4) / 8


def nine() -> Any:
    return torch.arange(9.0)


EXACT: dict[str, tuple[Callable[..., Any], Any]] = {
    "gather": (lambda out: torch.gather(X, 1, torch.zeros(3, 4, dtype=torch.int64), out=out), torch.float64),
    "softmax": (lambda out: torch.softmax(X, 0, out=out), torch.float64),
    "softmax in a dtype": (lambda out: torch.softmax(X, 0, dtype=torch.float64, out=out), torch.float32),
    "complex": (lambda out: torch.complex(X.double(), X.double(), out=out), torch.complex64),
    "all": (lambda out: torch.all(X, out=out), torch.float32),
    "any over a dim": (lambda out: torch.any(X, 0, out=out), torch.float32),
    "isin": (lambda out: torch.isin(X, X, out=out), torch.float32),
    "neg": (lambda out: torch.neg(X, out=out), torch.float64),
    "floor": (lambda out: torch.floor(X, out=out), torch.float64),
    "round": (lambda out: torch.round(X, out=out), torch.float64),
    "sgn": (lambda out: torch.sgn(X, out=out), torch.complex64),
    "sign": (lambda out: torch.sign(X, out=out), torch.float64),
    "bitwise_not": (lambda out: torch.bitwise_not(X.int(), out=out), torch.int64),
    "conj_physical": (lambda out: torch.conj_physical(X, out=out), torch.float64),
    "clamp": (lambda out: torch.clamp(X, 0, out=out), torch.float64),
    "nonzero": (lambda out: torch.nonzero(X, out=out), torch.float32),
    "isposinf": (lambda out: torch.isposinf(X, out=out), torch.int64),
    "signbit": (lambda out: torch.signbit(X, out=out), torch.float32),
    "multinomial": (lambda out: torch.multinomial(X, 2, out=out), torch.float64),
    "cumsum in a dtype": (lambda out: torch.cumsum(X, 0, dtype=torch.float64, out=out), torch.float32),
    "permute_copy": (lambda out: torch.permute_copy(X, (1, 0), out=out), torch.float64),
}


@pytest.mark.parametrize("name", EXACT)
def test_another_dtype_is_refused(name: str) -> None:
    call, dtype = EXACT[name]
    out = torch.zeros(0, dtype=dtype)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        call(out)
    assert out.shape == (0,)


def test_what_casts_is_cast() -> None:
    assert torch.add(X, 1, out=torch.zeros(3, 4, dtype=torch.float64)).tolist() == (X + 1).tolist()
    for wrong in (torch.int64, torch.bool):
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(X, 1, out=torch.zeros(3, 4, dtype=wrong))
    assert torch.all(X > -1, out=torch.zeros((), dtype=torch.uint8)).tolist() == 1


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "sum", "prod"])
def test_out_says_the_dtype_to_compute_in(name: str) -> None:
    x = torch.tensor([1.75, 2.5, 1.0])
    out = torch.zeros(0, dtype=torch.int64)
    assert getattr(torch, name)(x, 0, out=out) is out
    assert out.tolist() == getattr(torch, name)(x.long(), 0).tolist()


def test_overlap_with_an_argument_is_refused() -> None:
    x, index = nine(), torch.arange(3)
    calls: list[Callable[[], Any]] = [
        lambda: torch.cat([x[:3], x[3:6]], out=x[2:8]),
        lambda: torch.gather(x, 0, index, out=x[:3]),
        lambda: torch.gather(torch.arange(5), 0, index, out=index),
        lambda: torch.gather(torch.arange(5), 0, index[1:], out=index[:1]),  # it grows into the index
        lambda: torch.take(x, index, out=x[4:7]),
        lambda: torch.index_select(x, 0, index, out=x[:3]),
        lambda: torch.masked_select(x, x > 4, out=x[1:5]),
        lambda: torch.kthvalue(x, 2, out=(x[2], torch.tensor(0))),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            call()
    assert x.tolist() == nine().tolist()
    columns = x.reshape(3, 3)  # beside each other, not on each other
    assert torch.take(columns[:, 0], index, out=columns[:, 1]).tolist() == [0, 3, 6]


def test_out_may_be_an_argument() -> None:
    x = nine()
    torch.add(x, 1, out=x)
    torch.cumsum(x, 0, out=x)
    torch.sort(x, descending=True, out=(x, torch.empty(0, dtype=torch.int64)))
    assert x[0] == sum(range(1, 10))


def test_elements_on_each_other_are_refused() -> None:
    x = torch.ones(3, 4)
    for out in (torch.zeros(1).expand(3), torch.zeros(2, 1).expand(2, 9)):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            torch.sum(x, 1, out=out)


def test_resizing_warns_and_keeps_the_layout_of_the_result() -> None:
    out = torch.zeros(2, 2)
    with pytest.warns(UserWarning, match="was resized since it had shape"):
        torch.add(X.t(), 1, out=out)
    assert out.shape == (4, 3)
    assert out.stride() == (1, 4)
    kept = torch.zeros(4, 6)[:, ::2]
    torch.add(X.t(), 1, out=kept)
    assert kept.stride() == (6, 2)
    assert kept.tolist() == (X.t() + 1).tolist()


A = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 5.0]])


@pytest.mark.parametrize(
    ("call", "empty", "resized"),
    [
        (torch.linalg.inv, (1, 3), (1, 3)),
        (torch.cholesky, (3, 1), (3, 1)),
        (torch.cholesky_inverse, (1, 3), (3, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_layout_of_linear_algebra(call: Any, empty: tuple[int, int], resized: tuple[int, int]) -> None:
    for out, strides in ((torch.zeros(0), empty), (torch.zeros(2), resized)):
        call(A, out=out)
        assert out.stride() == strides
        assert torch.equal(out, call(A))


def test_a_sequence_fills_an_out_of_as_many_elements() -> None:
    for call in (torch.arange, lambda n, out: torch.linspace(0, n - 1, n, out=out)):
        out = torch.zeros(2, 3)
        assert call(6, out=out) is out
        assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.zeros(6, out=out).shape == (6,)


def test_several_results() -> None:
    outs = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    found = torch.cummax(X, 1, out=outs)
    assert all(a is b for a, b in zip(found, outs, strict=True))
    assert torch.equal(outs[1], torch.arange(4).expand(3, 4))
    pieces = [torch.zeros(0), torch.zeros(0)]
    torch.split_with_sizes_copy(X, [1, 2], out=pieces)
    assert [p.shape for p in pieces] == [(1, 4), (2, 4)]
    with pytest.raises(TypeError, match="must be a tuple of 2 Tensors"):
        torch.aminmax(X, out=torch.zeros(()))


def test_normal_numbers_are_floating() -> None:
    with pytest.raises(NotImplementedError, match="int64"):
        torch.normal(torch.zeros(3), torch.ones(3), out=torch.zeros(3, dtype=torch.int64))
    drawn = torch.normal(torch.zeros(3), torch.ones(3), out=torch.zeros(3, dtype=torch.float64))
    assert all(math.isfinite(value) for value in drawn.tolist())


def test_strides_of_dims_of_one_element() -> None:
    x = torch.randn(1, 1, 4, 12)[..., ::2].permute(2, 0, 1, 3)
    for found in (torch.add(x, x, out=torch.empty(0)), torch.exp(x, out=torch.empty(0)), x + torch.randn(6)):
        assert found.stride() == (6, 24, 24, 1)
    contiguous = torch.randn(1, 1, 4, 6).permute(2, 0, 1, 3)
    assert (contiguous + torch.randn(6)).stride() == contiguous.stride() == (6, 24, 24, 1)
    channels = torch.rand(10, 3, 1, 1).to(memory_format=torch.channels_last)
    bias = torch.rand(3, 1, 1)
    assert (channels + bias).stride() == (bias + channels).stride() == channels.stride() == (3, 1, 3, 3)
