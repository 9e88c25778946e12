"""Complex tensors: making, views of the parts, refusals, printing, exchange, autograd's convention.
Values and gradients of functions are in tests/op_table/rows/complex.py."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import warptape as torch
from warptape import _C


def numbers(*shape: int, dtype: str = "complex128", seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return (draw.normal(size=shape) + 1j * draw.normal(size=shape)).astype(dtype)


# ---- making ----


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_makers(dtype: torch.dtype) -> None:
    assert dtype.is_complex and not dtype.is_floating_point and dtype.itemsize == 2 * dtype.to_real().itemsize
    assert torch.zeros(2, dtype=dtype).tolist() == [0j, 0j]
    assert torch.ones(2, dtype=dtype).tolist() == [1 + 0j] * 2
    assert torch.full((2,), 1 - 2j, dtype=dtype).tolist() == [1 - 2j] * 2
    assert torch.tensor([1, 2.5, 3j], dtype=dtype).tolist() == [1, 2.5, 3j]
    assert torch.eye(2, dtype=dtype)[0, 0].item() == 1 + 0j
    assert torch.empty(3, dtype=dtype).is_complex()
    torch.manual_seed(0)
    big = torch.randn(20000, dtype=dtype)
    assert float(big.abs().square().mean()) == pytest.approx(1, abs=0.05)
    assert 0 <= float(torch.view_as_real(torch.rand(100, dtype=dtype)).min()) < 1


def test_dtype_of_python_complex() -> None:
    assert torch.tensor(1j).dtype is torch.complex64 is torch.cfloat
    assert torch.full((1,), 1j).dtype is torch.complex64
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.tensor(1j).dtype is torch.complex128 is torch.cdouble
        assert (torch.ones(1, dtype=torch.int64) * 1j).dtype is torch.complex128
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.tensor(1 + 2j).item() == 1 + 2j
    assert torch.tensor(np.complex64(1j)).dtype is torch.complex64
    assert torch.tensor([np.complex128(1j)]).dtype is torch.complex128
    with pytest.raises(TypeError):
        torch.tensor(1j, dtype=torch.float32)


# ---- views of the parts ----


def test_parts_are_views() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert x.real.tolist() == [1, 3] and x.imag.tolist() == [2, -4]
    assert x.real.data_ptr() == x.data_ptr() and x.imag.stride() == (2,)
    x.real[0], x.imag = 10, torch.tensor([0.5, 1.5])
    assert x.tolist() == [10 + 0.5j, 3 + 1.5j]
    x.real = 7
    assert x.real.tolist() == [7, 7]
    assert x._version > 0 and torch.view_as_real(x).shape == (2, 2)
    y = torch.arange(12.0).reshape(3, 2, 2)
    z = torch.view_as_complex(y)
    z[1, 0] = 100j
    assert y[1, 0].tolist() == [0, 100] and z.shape == (3, 2)
    assert torch.view_as_complex(y[1:]).tolist() == z[1:].tolist()
    real = torch.ones(2)
    assert real.real is real and real.conj() is real
    with pytest.raises(RuntimeError, match="non-complex"):
        _ = real.imag


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: torch.ones(3), "last dimension of size 2"),
        (lambda: torch.ones(2, 2).t(), "stride 1"),
        (lambda: torch.ones(2, 3)[:, 1:], "divisible by 2"),
        (lambda: torch.ones(5)[1:3], "divisible by 2"),
        (lambda: torch.ones(2, dtype=torch.float16), "floating point"),
    ],
)
def test_pairs_that_are_no_complex_numbers(make: object, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        torch.view_as_complex(make())


def test_changes_of_views_reach_the_tape() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
    y = x * 1
    y.real.mul_(3)
    assert y.tolist() == [3 + 2j, 9 - 1j]
    (y * torch.tensor([1 + 1j, 2 - 1j])).sum().abs().backward()
    assert torch.autograd.gradcheck(change_parts, (x,)) and torch.autograd.gradgradcheck(change_parts, (x,))
    pairs = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(change_pairs, (pairs,))


def change_parts(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.real.mul_(y.imag.clone())
    y.imag[0] = 5
    return y * y


def change_pairs(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    torch.view_as_complex(y).mul_(1 + 2j)
    return y * y


# ---- moving ----


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_moving_by_item_size(dtype: str) -> None:
    a = numbers(4, 5, 6, dtype=dtype)
    x = torch.from_numpy(a)
    index, mask = torch.tensor([2, 0, 2]), torch.from_numpy(a.real > 0)
    pairs = [
        (x.permute(2, 0, 1).contiguous(), np.ascontiguousarray(a.transpose(2, 0, 1))),
        (x[:, 1:4:2, ::3].clone(), a[:, 1:4:2, ::3]),
        (x[index], a[[2, 0, 2]]),
        (x[mask], a[a.real > 0]),
        (torch.cat([x, x], 1), np.concatenate([a, a], 1)),
        (torch.stack([x, x], -1), np.stack([a, a], -1)),
        (torch.where(mask, x, 2j), np.where(a.real > 0, a, 2j)),
        (x.masked_fill(mask, 1 + 1j), np.where(a.real > 0, 1 + 1j, a)),
        (x.flip(0, 2), a[::-1, :, ::-1]),
        (x.roll(2, 1), np.roll(a, 2, 1)),
        (x.tril(), np.tril(a)),
        (x.gather(1, torch.zeros(4, 1, 6, dtype=torch.int64)), a[:, :1]),
        (x.index_select(2, index), a[..., [2, 0, 2]]),
        (torch.nn.functional.pad(x, (1, 2), value=0), np.pad(a, ((0, 0), (0, 0), (1, 2)))),
        (x.repeat(2, 1, 1), np.tile(a, (2, 1, 1))),
        (x.unfold(2, 3, 2), np.lib.stride_tricks.sliding_window_view(a, 3, 2)[..., ::2, :]),
    ]
    for i, (got, want) in enumerate(pairs):
        assert got.dtype is x.dtype, i
        np.testing.assert_array_equal(got.numpy(), want.astype(dtype), err_msg=str(i))
    y = torch.zeros(3, dtype=x.dtype)
    y.index_add_(0, torch.tensor([1, 1]), torch.tensor([1 + 1j, 2j], dtype=x.dtype), alpha=2)
    y.index_put_((torch.tensor([0, 0]),), torch.tensor([1j, 1j], dtype=x.dtype), accumulate=True)
    assert y.tolist() == [2j, 2 + 6j, 0]
    assert x.nonzero().shape == (120, 3) and int(x.count_nonzero()) == 120


def test_conversions() -> None:
    x = torch.tensor([1 + 2j, 0, 2j])
    assert x.to(torch.complex128).tolist() == x.tolist() and x.bool().tolist() == [True, False, True]
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        assert x.to(torch.float32).tolist() == [1, 0, 0]
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        torch.zeros(3).copy_(x)
    assert torch.tensor([1, 2]).to(torch.complex64).tolist() == [1, 2]
    assert torch.tensor([True]).cfloat().tolist() == [1]
    assert complex(torch.tensor(1 + 2j)) == 1 + 2j and float(torch.tensor(3 + 0j)) == 3
    for convert in (float, int):
        with pytest.raises(RuntimeError):
            convert(torch.tensor(1j))
    for refused in (
        lambda: torch.zeros(1).fill_(1j),
        lambda: torch.zeros(1).add_(torch.ones(1) * 1j),
        lambda: torch.zeros(1).__setitem__(0, 1j),
        lambda: torch.zeros(1).masked_fill_(torch.tensor([True]), 1j),
        lambda: torch.full((1,), 1j, dtype=torch.float32),
    ):
        with pytest.raises(RuntimeError):
            refused()


def test_exchange() -> None:
    a = numbers(3, 2, dtype="complex64")
    x = torch.from_numpy(a)
    a[0, 0] = 9
    assert x[0, 0].item() == 9 and x.numpy().ctypes.data == a.ctypes.data
    assert torch.from_dlpack(np.asarray(a)).tolist() == x.tolist() and np.from_dlpack(x)[0, 0] == 9
    assert pickle.loads(pickle.dumps(x)).equal(x) and copy.deepcopy(x).equal(x)
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert torch.load(file)["x"].equal(x)


def test_numbers() -> None:
    z = torch.tensor([complex("nan"), complex(math.inf, 0), 1j, complex(0, math.nan)])
    assert torch.isnan(z).tolist() == [True, False, False, True]
    assert torch.isinf(z).tolist() == [False, True, False, False]
    assert torch.isfinite(z).tolist() == [False, False, True, False]
    assert torch.isreal(torch.tensor([1j, 1])).tolist() == [False, True]
    assert torch.isreal(torch.ones(2)).tolist() == [True, True]
    x = torch.tensor([1 + 1e-9j, 2j], dtype=torch.complex128)
    assert torch.allclose(x, torch.tensor([1, 2j], dtype=torch.complex128)) and not torch.equal(x, x.conj())
    assert (x == x).all() and (x != x.conj()).any() and torch.any(x) and torch.all(x)
    assert torch.angle(torch.tensor([-1.0, 0.0, 2.0])).tolist() == [pytest.approx(math.pi), 0, 0]
    assert torch.tensor([0j, 3 + 4j]).sgn().tolist() == [0, pytest.approx(0.6 + 0.8j)]
    assert torch.finfo(torch.complex64).bits == 32 and torch.finfo(torch.complex128).eps == 2**-52
    assert not x.is_conj() and not x.is_neg() and x.resolve_conj() is x and x.resolve_neg() is x
    assert torch.typename(x) == "torch.ComplexDoubleTensor" and not torch.can_cast(x.dtype, torch.float64)
    np.testing.assert_allclose(torch.cov(torch.from_numpy(numbers(3, 4))), np.cov(numbers(3, 4)))
    assert torch.tensor([1e30 + 1e30j]).div(torch.tensor([1e30 + 1e30j])).item() == pytest.approx(1)


def test_printing() -> None:
    assert repr(torch.tensor([1 + 2j, -3.5 - 0.25j])) == "tensor([ 1.0000+2.0000j, -3.5000-0.2500j])"
    assert repr(torch.tensor(1j)) == "tensor(0.+1.j)"
    assert repr(torch.tensor([1j], dtype=torch.complex128)) == "tensor([0.+1.j], dtype=torch.complex128)"
    assert repr(torch.tensor([100 + 2j, 3 - 40j])) == "tensor([100.+2.j,   3.-40.j])"


# ---- what has no meaning for complex numbers is refused ----


def arguments_of(row: tuple[object, ...], z: torch.Tensor) -> list[object]:
    """Complex tensors for the tensors of a declaration, and something for all else that is required."""
    given = {
        "Tensor": z, "tuple of Tensors": [z, z], "tuple of Tensors or None": [z], "int": 0, "float": 1.0,
        "bool": False, "Number": 1, "tuple of ints": [0], "tuple of tuples of ints": [[0], [0]],
        "torch.dtype": z.dtype, "str": "sum", "tuple of floats": [1.0], "tuple of Numbers": [1, 1.0],
        "torch.device": torch.device("cpu"), "torch.Generator": None,
    }  # fmt: skip
    return [given[kind] for _, kind, _, default, *_ in row[2] if not default]


TAKES_COMPLEX = 1 << 9  # kComplex in csrc/op/op.h


@pytest.mark.parametrize("shape", [(3, 3), (3,), ()], ids=str)
def test_every_op_computes_or_refuses(shape: tuple[int, ...]) -> None:
    """An op that is not declared to take complex numbers names itself and refuses them."""
    names = {1: _C._functions, 4: _C._nn, 16: _C._linalg, 32: _C._private, 64: _C._special, 128: _C._fft}
    names |= {1 << 30: _C._windows, 1 << 31: _C._masked}
    refused = computed = 0
    for row in _C._list_ops():
        name, places = row[0], row[1]
        z = torch.from_numpy(numbers(*shape, dtype="complex64")) if shape else torch.tensor(1 + 2j)
        call = next((getattr(m, name) for bit, m in names.items() if places & bit), None)
        call = call or getattr(torch.Tensor, name)
        if not any(
            kind.startswith(("Tensor", "tuple of T")) for _, kind, _, default, *_ in row[2] if not default
        ):
            continue
        try:
            call(*arguments_of(row, z))
        except torch.DtypeError as error:
            refused += name.rstrip("_") in str(error)
        except (RuntimeError, TypeError, ValueError, IndexError):
            pass
        else:
            computed += 1
            assert places & TAKES_COMPLEX, name
    assert refused > 50 and computed > 50


@pytest.mark.parametrize(
    "call",
    [
        lambda z: z < z, lambda z: z.max(), lambda z: z.sort(), lambda z: z.argmax(),
        lambda z: z.clamp(0, 1),
        lambda z: z.relu(), lambda z: z.floor(), lambda z: z.sign(), lambda z: z % 2, lambda z: z // 2,
        lambda z: z.softmax(0), lambda z: z & z, lambda z: torch.maximum(z, z), lambda z: z.abs_(),
        lambda z: torch.gcd(z, z), lambda z: torch.special.i0(z), lambda z: z.clone().cauchy_(),
        lambda z: torch.nn.functional.cosine_similarity(z, z, 0), lambda z: torch.optim.Adafactor([z]),
        lambda z: torch.arange(0, 1, 1j), lambda z: torch.atan2(z, z),
    ],
)  # fmt: skip
def test_refusals(call: object) -> None:
    with pytest.raises(torch.DtypeError, match="complex"):
        call(torch.tensor([1 + 1j, 2j]))


# ---- autograd ----


def test_convention() -> None:
    """For a real loss the gradient is d loss / d re + i d loss / d im."""
    z = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128, requires_grad=True)
    z.abs().square().sum().backward()
    assert torch.allclose(z.grad, 2 * z.detach())
    z.grad = None
    (z * z).real.sum().backward()
    assert torch.allclose(z.grad, 2 * z.detach().conj())
    with pytest.raises(RuntimeError, match="real scalar"):
        (z * z).sum().backward()


def test_real_inputs_have_real_gradients() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([1 + 1j, 2 - 3j], dtype=torch.complex128, requires_grad=True)
    (x * w).abs().sum().backward()
    assert x.grad.dtype is torch.float64 and w.grad.dtype is torch.complex128
    np.testing.assert_allclose(x.grad.numpy(), np.abs(w.detach().numpy()))
    y = x.detach().clone().requires_grad_()
    torch.stack([y.to(torch.complex128), w.detach()]).abs().sum().backward()
    assert y.grad.tolist() == [1, 1]


def test_zero_has_no_direction() -> None:
    z = torch.zeros(1, dtype=torch.complex128, requires_grad=True)
    for function in (torch.abs, torch.angle):
        z.grad = None
        function(z).sum().backward()
        assert z.grad.tolist() == [0]


@pytest.mark.parametrize(
    "function",
    [
        lambda z, w: torch.addcmul(z, z, w, value=2 - 1j), lambda z, w: torch.addcdiv(z, z, w, value=0.5),
        lambda z, w: z[torch.tensor([1, 1, 0])] * w[0], lambda z, w: torch.einsum("ij,kj->ik", z, w),
        lambda z, w: z.index_add(0, torch.tensor([0, 0]), w[:2], alpha=1j),
        lambda z, w: torch.where(z.real > 0, z, w) * z,
        lambda z, w: torch.addmm(z, w, z, alpha=2, beta=3),
        lambda z, w: z.gather(1, torch.zeros(2, 2, dtype=torch.int64)) * w, lambda z, w: 1j / z - 2j * w,
        lambda z, w: torch.nn.functional.linear(z, w, w[0]), lambda z, w: z.clone().mul_(w).div_(z).add_(w),
        lambda z, w: z.masked_fill(torch.eye(2).bool(), 1) ** w, lambda z, w: (z @ w).mH,
        lambda z, w: 2**z * w,
        lambda z, w: z.real * w.imag + z.abs(), lambda z, w: torch.view_as_real(z)[..., 1] * w,
        lambda z, w: torch.linalg.norm(z) * w, lambda z, w: z.cfloat().cdouble() * 0 + w,
    ],
)  # fmt: skip
def test_gradients(function: object) -> None:
    z, w = (torch.from_numpy(numbers(2, 2, seed=i)).requires_grad_() for i in (1, 2))
    assert torch.autograd.gradcheck(function, (z, w))
    assert torch.autograd.gradgradcheck(function, (z, w))


def rotated(rt: object, x: object) -> tuple[object, object]:
    """(angles, x with pairs of features turned by angles that grow with the position), as Llama writes it."""
    length, dim = x.shape[1], x.shape[-1]
    freqs = rt.outer(rt.arange(length).float(), 1.0 / 10000 ** (rt.arange(0, dim, 2).float() / dim))
    turns = rt.polar(rt.ones_like(freqs), freqs)
    pairs = rt.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return freqs, rt.view_as_real(pairs * turns.view(1, length, 1, dim // 2)).flatten(3).type_as(x)


@pytest.mark.parity
def test_rotary_embedding_is_pytorchs() -> None:
    other = pytest.importorskip("torch")
    a, found = np.random.default_rng(0).normal(size=(2, 7, 3, 16)).astype("float32"), []
    for rt in (torch, other):
        x = rt.from_numpy(a.copy()).requires_grad_()
        out = rotated(rt, x)[1]
        (out * rt.arange(16.0)).sum().backward()
        found.append((out.detach().numpy(), x.grad.numpy()))
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_rotary_embedding() -> None:
    x = torch.randn(1, 5, 2, 8, requires_grad=True)
    freqs, out = rotated(torch, x)
    a = x.detach().numpy().reshape(1, 5, 2, -1, 2)
    c, s = (f(freqs.numpy())[None, :, None] for f in (np.cos, np.sin))
    want = np.stack([a[..., 0] * c - a[..., 1] * s, a[..., 0] * s + a[..., 1] * c], -1).reshape(x.shape)
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-5, atol=1e-6)
    out.square().sum().backward()  # a rotation keeps lengths
    assert torch.allclose(x.grad, 2 * x.detach(), rtol=1e-5, atol=1e-5)


def test_collectives_take_the_parts() -> None:
    from warptape import distributed as dist

    def run() -> tuple[list[complex], list[complex]]:
        x, one = torch.full((2,), 1 + 1j * dist.get_rank()), torch.tensor([1j * dist.get_rank()])
        dist.all_reduce(x)
        every = [torch.zeros_like(one) for _ in range(2)]
        dist.all_gather(every, one)
        with pytest.raises(torch.DtypeError, match="complex"):
            dist.all_reduce(x, dist.ReduceOp.MAX)
        return x.tolist(), torch.cat(every).tolist()

    assert dist.simulate(2, run) == [([2 + 1j, 2 + 1j], [0, 1j])] * 2
