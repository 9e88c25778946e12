"""Ops over lists of tensors, torch._foreach_*: each item by the op of one tensor, in one call."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as wt

ONE_LIST = {
    "abs": np.abs,
    "acos": np.arccos,
    "ceil": np.ceil,
    "erf": np.vectorize(math.erf),
    "exp": np.exp,
    "expm1": np.expm1,
    "frac": lambda x: x - np.trunc(x),
    "lgamma": np.vectorize(math.lgamma),
    "log": np.log,
    "log1p": np.log1p,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sign": np.sign,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
TWO_LISTS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
}


def arrays(seed: int, dtype: str = "float64") -> list[np.ndarray]:
    """Positive numbers below 1 of several shapes, one of them empty."""
    numbers = np.random.default_rng(seed)
    return [numbers.uniform(0.1, 0.9, shape).astype(dtype) for shape in ((3, 4), (5,), (), (0, 2))]


def tensors(values: list[np.ndarray]) -> list[wt.Tensor]:
    return [wt.tensor(x) for x in values]


def check(found: list[wt.Tensor], expected: list[np.ndarray]) -> None:
    assert [tuple(t.shape) for t in found] == [x.shape for x in expected]
    for t, x in zip(found, expected, strict=True):
        np.testing.assert_allclose(t.detach().numpy(), x, rtol=1e-6)


def call(name: str, self: list[wt.Tensor], *args: object, **kwargs: object) -> None:
    """Both forms, against each other: the op in place writes what the other returns, into the same memory."""
    out = getattr(wt, f"_foreach_{name}")(self, *args, **kwargs)
    places = [t.data_ptr() for t in self]
    assert all(
        a is b for a, b in zip(getattr(wt, f"_foreach_{name}_")(self, *args, **kwargs), self, strict=True)
    )
    assert [t.data_ptr() for t in self] == places and all(map(wt.equal, out, self))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE_LIST)
def test_one_list(name: str, dtype: str) -> None:
    x = arrays(0, dtype)
    expected = [np.asarray(ONE_LIST[name](a), dtype) for a in x[:3]]
    check(getattr(wt, f"_foreach_{name}")(tensors(x)), [*expected, x[3]])
    call(name, tensors(x))


@pytest.mark.parametrize("name", TWO_LISTS)
def test_two_lists_a_number_and_numbers(name: str) -> None:
    x, y, f = arrays(0), arrays(1), TWO_LISTS[name]
    op = getattr(wt, f"_foreach_{name}")
    check(op(tensors(x), tensors(y)), [f(a, b) for a, b in zip(x, y, strict=True)])
    check(op(tensors(x), 0.5), [f(a, 0.5) for a in x])
    check(op(tensors(x), [0.5, 2, 3.0, 4]), [f(a, b) for a, b in zip(x, [0.5, 2, 3.0, 4], strict=True)])
    for other in (tensors(y), 0.5, [1, 2, 3, 4]):
        call(name, tensors(x), other)


def test_the_forms_of_their_own() -> None:
    x, y, z = arrays(0), arrays(1), arrays(2)
    check(wt._foreach_add(tensors(x), tensors(y), alpha=3), [a + 3 * b for a, b in zip(x, y, strict=True)])
    check(wt._foreach_add(tensors(x), wt.tensor(2.0), alpha=3), [a + 6 for a in x])
    check(wt._foreach_mul(tensors(x), wt.tensor(2.0)), [2 * a for a in x])
    check(wt._foreach_div(tensors(x), wt.tensor(2.0)), [a / 2 for a in x])
    check(wt._foreach_pow(2.0, tensors(x)), [2.0**a for a in x])
    triples = list(zip(x, y, z, strict=True))
    check(wt._foreach_lerp(tensors(x), tensors(y), 0.25), [a + 0.25 * (b - a) for a, b, _ in triples])
    check(wt._foreach_lerp(tensors(x), tensors(y), tensors(z)), [a + c * (b - a) for a, b, c in triples])
    check(wt._foreach_addcmul(tensors(x), tensors(y), tensors(z), 2), [a + 2 * b * c for a, b, c in triples])
    check(wt._foreach_addcdiv(tensors(x), tensors(y), tensors(z)), [a + b / c for a, b, c in triples])
    numbers = [1.0, 2.0, 3.0, 4.0]
    expected = [a + n * b * c for (a, b, c), n in zip(triples, numbers, strict=True)]
    for given in (numbers, wt.tensor(numbers), wt.tensor(numbers)[:, None].expand(4, 2)[:, 1]):
        check(wt._foreach_addcmul(tensors(x), tensors(y), tensors(z), given), expected)
        call("addcmul", tensors(x), tensors(y), tensors(z), given)
    matrices = [x[0], x[0].T]
    check(wt._foreach_mm(tensors(matrices), tensors(matrices[::-1])), [x[0] @ x[0].T, x[0].T @ x[0]])


def test_norms_maxima_copies() -> None:
    x = arrays(0)[:3]
    for order in (1, 2, 3, math.inf):
        check(wt._foreach_norm(tensors(x), order), [np.asarray(np.linalg.norm(a.ravel(), order)) for a in x])
    assert wt._foreach_norm(tensors(x), 2, wt.float32)[0].dtype == wt.float32
    check(wt._foreach_max(tensors(x)), [np.asarray(a.max()) for a in x])
    target = [wt.empty_like(t, dtype=wt.float32) for t in tensors(x)]
    wt._foreach_copy_(target, tensors(x))
    check(target, x)
    copies = wt._foreach_clone(target)
    wt._foreach_zero_(target)
    assert not any(t.any() for t in target)
    check(copies, x)


@pytest.mark.parametrize("dtype", [wt.int64, wt.bool, wt.bfloat16, wt.complex64])
def test_other_dtypes_follow_the_op_of_one_tensor(dtype: wt.dtype) -> None:
    x = [wt.ones(3, dtype=dtype), wt.ones(2, 2, dtype=wt.float32)]
    assert [t.dtype for t in wt._foreach_mul(x, 2.5)] == [(t * 2.5).dtype for t in x]
    y = [wt.full((3,), 2.0), wt.ones(1, dtype=dtype)]
    assert [t.dtype for t in wt._foreach_add(x, y)] == [(a + b).dtype for a, b in zip(x, y, strict=True)]
    if dtype != wt.complex64:
        assert all(map(wt.equal, wt._foreach_exp(x), [t.exp() for t in x]))


def test_gradients_and_views() -> None:
    values = arrays(0)[:3]
    x = [t.requires_grad_() for t in tensors(values)]
    sum(t.sum() for t in wt._foreach_mul(x, x)).backward()
    check([t.grad for t in x], [2 * a for a in values])
    x = [t.requires_grad_() for t in tensors(values)]
    inner = wt._foreach_mul(x, 1.0)
    wt._foreach_exp_(inner)
    sum(t.sum() for t in inner).backward()
    check([t.grad for t in x], [np.exp(a) for a in values])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        wt._foreach_add_(x, 1)
    base = wt.arange(12.0).reshape(3, 4)
    wt._foreach_add_([base.t()[1], base[:, ::2]], [100.0, 1000.0])
    assert base[1].tolist() == [1004.0, 105.0, 1006.0, 7.0]


def test_wrong_lists() -> None:
    x = [wt.ones(2), wt.ones(3)]
    with pytest.raises(RuntimeError, match="must have at least one tensor"):
        wt._foreach_exp([])
    with pytest.raises(RuntimeError, match="must have the same number of tensors, got 2 and 1"):
        wt._foreach_add(x, x[:1])
    with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
        wt._foreach_mul_(x, [1.0])
    with pytest.raises(RuntimeError, match="scalar tensor expected to be 0 dim"):
        wt._foreach_mul(x, wt.ones(2))
    with pytest.raises(RuntimeError, match="to be of dimension 1"):
        wt._foreach_addcmul(x, x, x, wt.ones(2, 1))
    with pytest.raises(TypeError):
        wt._foreach_exp(x[0])
    assert all(t.eq(1).all() for t in x)


@pytest.mark.parametrize("numbers", [[2j, 3.0], [True, True], [True, 2], [1, 2.5], [wt.tensor(2), 3j]])
@pytest.mark.parametrize("dtype", [wt.bool, wt.int32, wt.float32, wt.complex64])
def test_lists_of_numbers_of_several_kinds(numbers: list[object], dtype: wt.dtype) -> None:
    x = [wt.ones(2, dtype=dtype), wt.ones(3, dtype=dtype)]
    for name in ("mul", "add", "div"):
        found = getattr(wt, f"_foreach_{name}")(x, numbers)
        expected = [getattr(wt, name)(t, n) for t, n in zip(x, numbers, strict=True)]
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        assert all(map(wt.equal, found, expected))
    copies = [t.to(wt.complex64) for t in x]
    wt._foreach_addcmul_(copies, copies, copies, numbers)
    assert copies[0].tolist() == [1 + complex(numbers[0])] * 2


def error_of(call, *args) -> RuntimeError | None:
    try:
        call(*args)
    except RuntimeError as error:
        return error
    return None


@pytest.mark.parametrize(
    "name, dtype, args",
    [
        ("erf", wt.complex64, ()),
        ("clamp_max", wt.complex64, (2,)),
        ("clamp_max", wt.int32, (2.5,)),
        ("addcdiv", wt.int32, ("list", "list")),
        ("abs", wt.complex64, ()),
        ("add", wt.float32, ("wide",)),
        ("round", wt.complex64, ()),
        ("frac", wt.int32, ()),
    ],
)
@pytest.mark.parametrize("tail", ["", "_"])
def test_the_first_line_of_an_error_is_that_of_one_tensor(
    name: str, dtype: wt.dtype, args: tuple[object, ...], tail: str
) -> None:
    given = {"list": wt.ones(2, dtype=dtype), "wide": wt.ones(3, dtype=dtype)}
    each = [given[a] if isinstance(a, str) else a for a in args]
    lists = [[given[a]] if isinstance(a, str) else a for a in args]
    expected = error_of(getattr(wt.Tensor, name + tail), wt.ones(2, dtype=dtype), *each)
    found = error_of(getattr(wt, f"_foreach_{name}{tail}"), [wt.ones(2, dtype=dtype)], *lists)
    assert type(found) is type(expected)
    if expected:
        first, *rest = str(found).splitlines()
        assert first in str(expected)
        assert rest == [f"(for a tensor of _foreach_{name}{tail})"]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: wt._foreach_add([wt.ones(5)], [wt.ones(2, 4)]), r"^add: shapes"),
        (lambda: wt._foreach_add([wt.ones(5, 5)], [wt.ones(4, 4)]), r"at non-singleton dimension 1"),
        (lambda: wt._foreach_asin_([wt.ones(2, dtype=wt.int64)]), r"^asin_: result type float32 can't be"),
        (lambda: wt._foreach_add([], []), r"^_foreach_add: Tensor list must have at least one"),
    ],
)
def test_errors_are_those_of_one_tensor(call, words):
    with pytest.raises(RuntimeError, match=words):
        call()
