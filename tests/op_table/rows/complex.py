"""Complex numbers. A row's tensors are real and imaginary parts, its result is seen as pairs: so the drivers
check values, layouts, first and second gradients of complex functions as those of real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample

COMPLEX = ("float64", "float32")
LOOSE = {"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-11)}
SHAPES = ((3, 5), (7,), ())


def parts(z: Any) -> Any:
    """Complex values as pairs along a new last dim; real ones and lists of them as they are."""
    z = np.asarray(z)
    return np.stack([z.real, z.imag], -1) if np.iscomplexobj(z) else z


def pairs(rt: Any, z: Any) -> Any:
    return rt.view_as_real(z.resolve_conj()) if z.is_complex() else z


def draws(count: int, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Callable[[Rng], Sequence[Sample]]:
    """Parts of `count` complex tensors, away from the axes, on which some functions have their cuts."""

    def samples(r: Rng) -> list[Sample]:
        return [S(*(r(*shape) for _ in range(2 * count))) for shape in shapes]

    return samples


def row(name: str, ref: Callable[..., Any], count: int = 1, args: tuple[Any, ...] = (), **options: Any) -> Op:
    """A row for a function of `count` complex tensors and `args`, in PyTorch and in NumPy."""

    def call(rt: Any, *given: Any) -> Any:
        target = rt
        for part in name.split("."):
            target = getattr(target, part)
        numbers = [rt.complex(given[i], given[i + 1]) for i in range(0, 2 * count, 2)]
        return pairs(rt, target(*numbers, *args))

    def reference(*given: Any) -> Any:
        return parts(ref(*(given[i] + 1j * given[i + 1] for i in range(0, 2 * count, 2)), *args))

    shapes = options.pop("shapes", SHAPES)
    options = {"dtypes": COMPLEX, "label": f"{name} (complex)", "tol": LOOSE} | options
    samples = options.pop("samples", draws(count, shapes))
    return Op(name, samples, reference, call=call, **options)


def sgn(z: np.ndarray) -> np.ndarray:
    return z / np.where(z == 0, 1, np.abs(z))


def sinc(z: np.ndarray) -> np.ndarray:
    return np.sin(np.pi * z) / (np.pi * z)


UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": lambda z: np.exp(z * np.log(2)), "expm1": np.expm1, "log": np.log,
    "log2": lambda z: np.log(z) / np.log(2), "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda z: 1 / np.sqrt(z), "reciprocal": lambda z: 1 / z, "square": np.square, "neg": np.negative,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "sinc": sinc, "sgn": sgn, "abs": np.abs,
    "angle": np.angle, "conj": np.conj, "conj_physical": np.conj, "real": np.real, "imag": np.imag,
    "sum": np.sum, "mean": np.mean, "view_as_real": lambda z: np.stack([z.real, z.imag], -1),
    "prod": np.prod, "var": lambda z: np.var(z, ddof=1), "std": lambda z: np.std(z, ddof=1),
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
}  # fmt: skip


def binary(name: str, ref: Callable[..., Any], **options: Any) -> Op:
    return row(name, ref, 2, **options)


def with_real(name: str, ref: Callable[..., Any]) -> Op:
    """A real operand first: its gradient is real, the real part of what complex numbers would have."""

    def call(rt: Any, x: Any, re: Any, im: Any) -> Any:
        return pairs(rt, getattr(rt, name)(x, rt.complex(re, im)))

    def samples(r: Rng) -> list[Sample]:
        return [S(r.positive(2, 3), r(2, 3), r(2, 3)), S(r.positive(3), r(2, 1), r(2, 1)), S(r(), r(2), r(2))]

    return Op(
        name, samples, lambda x, re, im: parts(ref(x, re + 1j * im)), call=call, dtypes=COMPLEX,
        label=f"{name} (real, complex)", tol=LOOSE, layouts=("stepped", "transposed"),
    )  # fmt: skip


PAD = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def padded(mode: str) -> Op:
    """By one on the left and two on the right of the last dim, from 4 and from 9 to let whole rows move."""

    def reference(z: np.ndarray, *_: Any) -> np.ndarray:
        return np.pad(z, ((0, 0), (0, 0), (1, 2)), mode)  # type: ignore[call-overload,no-any-return]

    return row(
        "nn.functional.pad", reference, args=((1, 2), PAD[mode]), shapes=((1, 2, 4), (2, 1, 9)),
        label=f"pad, {PAD[mode]} (complex)",
    )  # fmt: skip


def products(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Callable[[Rng], Sequence[Sample]]:
    return lambda r: [S(r(*a), r(*a), r(*b), r(*b)) for a, b in shapes]


def rms_norm(z: np.ndarray, *_: Any) -> np.ndarray:
    return np.asarray(z / np.sqrt(np.mean(z * z, -1, keepdims=True) + 0.25))


def logcumsumexp(z: np.ndarray, dim: int) -> np.ndarray:
    return np.asarray(np.log(np.cumsum(np.exp(z), dim)))


def vdot(a: np.ndarray, b: np.ndarray) -> Any:
    return np.sum(np.conj(a) * b)


MATRICES = products(((2, 3), (3, 4)), ((1, 5), (5, 1)), ((2, 0), (0, 3)))
BATCHES = products(((2, 2, 3), (2, 3, 2)))
VECTORS = products(((5,), (5,)))

ROWS = (
    *(row(name, ref, shapes=SHAPES[: 2 if name in ("var", "std") else 3]) for name, ref in UNARY.items()),
    *(binary(name, ref) for name, ref in BINARY.items()),
    *(padded(mode) for mode in PAD),
    *(with_real(name, BINARY[name]) for name in ("add", "mul", "div", "pow")),
    row("pow", np.power, args=(3,), label="pow (complex, int)"),
    row("pow", np.power, args=(-1.5,), label="pow (complex, float)"),
    row("pow", np.power, args=(1.5 - 0.5j,), label="pow (complex, complex number)"),
    row("mul", np.multiply, args=(2 - 3j,), label="mul (complex, complex number)"),
    binary("logaddexp", lambda a, b: np.log(np.exp(a) + np.exp(b))),
    binary("float_power", np.power, dtypes=("float64",)),
    row("logsumexp", lambda z, d: np.log(np.sum(np.exp(z), d)), args=(1,), shapes=((3, 4),)),
    # Parts small enough that the sums' arguments stay within (-pi, pi].
    row("logcumsumexp", logcumsumexp, args=(0,), samples=lambda r: [S(r(4, 2), r(4, 2) / 2)]),
    row("nn.functional.silu", lambda z: z / (1 + np.exp(-z)), grad=False),
    row("nn.functional.softsign", lambda z: z / (1 + np.abs(z))),
    row("nn.functional.rms_norm", rms_norm, args=((5,), None, 0.25), shapes=((3, 5), (5,))),
    binary("nn.functional.l1_loss", lambda a, b: np.mean(np.abs(a - b))),
    Op(
        "linspace",
        lambda r: [S(-1 + 2j, 3 - 1j, n) for n in (0, 1, 2, 7)],
        lambda a, b, n: parts(np.linspace(a, b, n)),
        call=lambda rt, *args: rt.view_as_real(rt.linspace(*args, dtype=rt.complex128)),
        label="linspace (complex)",
        meta=None,
        dtypes=("float64",),
        grad=False,
        layouts=(),
    ),
    row("cumsum", lambda z, d: np.cumsum(z, d), args=(0,), shapes=((5,), (3, 2))),
    row("cumprod", lambda z, d: np.cumprod(z, d), args=(0,), shapes=((5,), (3, 2))),
    row("sum", lambda z, d: np.sum(z, d), args=(1,), shapes=((2, 3),), label="sum over dim (complex)"),
    row("linalg.norm", lambda z: np.linalg.norm(z), shapes=((4,), (2, 3))),
    row("adjoint", lambda z: np.conj(np.swapaxes(z, -1, -2)), shapes=((2, 3), (2, 2, 3))),
    binary("matmul", np.matmul, samples=products(((2, 3), (3,)), ((3,), (3, 2)), ((2, 2, 3), (3, 4)))),
    binary("mm", np.matmul, samples=MATRICES),
    binary("bmm", np.matmul, samples=BATCHES),
    binary("dot", np.dot, samples=VECTORS),
    binary("vdot", vdot, samples=VECTORS),
    binary("outer", np.outer, samples=VECTORS),
    row("flip", lambda z, d: np.flip(z, d), args=((0,),), shapes=((3, 2),)),
    row("tril", np.tril, shapes=((3, 3),)),
    row("roll", lambda z, n: np.roll(z, n), args=(2,), shapes=((5,),)),
    row("lerp", lambda a, b, w: a + w * (b - a), 3, shapes=((2, 3), ())),
    row(
        "nn.functional.conv1d",
        lambda x, w: np.convolve(x[0], w[0, 0, ::-1], "valid")[None],
        2,
        samples=products(((1, 5), (1, 1, 3)), ((1, 4), (1, 1, 1))),
    ),
    row(
        "nn.functional.conv_transpose1d",
        lambda x, w: np.convolve(x[0], w[0, 0])[None],
        2,
        samples=products(((1, 5), (1, 1, 3)), ((1, 4), (1, 1, 1))),
    ),
    row("_fft_c2c", lambda z, *_: np.fft.fftn(z), args=((0, 1), 0, True), shapes=((3, 4), (1, 5))),
    row("_fft_c2r", lambda z, *_: np.fft.irfft(z, 6), args=((1,), 2, 6), shapes=((1, 4), (3, 4))),
    row(
        "_fft_c2r",
        lambda z, *_: np.fft.irfft(z, 7),
        args=((1,), 2, 7),
        shapes=((1, 4), (3, 4)),
        label="_fft_c2r (complex, odd)",
    ),
    Op(
        "_fft_r2c",
        lambda r: [S(r(6)), S(r(2, 5)), S(r(3, 4))],
        lambda x: parts(np.fft.rfft(x, norm="ortho")),
        call=lambda rt, x: rt.view_as_real(rt._fft_r2c(x, (x.ndim - 1,), 1, True)),
        dtypes=COMPLEX,
        label="_fft_r2c (to complex)",
        tol=LOOSE,
        errors=(
            E("DtypeError", np.ones(2), dtype="int64"),
            E("DtypeError", np.ones(2), dtype="float16", stricter=True),
        ),
    ),
    Op(
        "complex",
        lambda r: [S(r(2, 3), r(2, 3)), S(r(2, 1), r(3)), S(r(), r())],
        lambda re, im: parts(re + 1j * im),
        call=lambda rt, re, im: rt.view_as_real(rt.complex(re, im)),
        dtypes=COMPLEX,
        exact=True,
        errors=(
            E("DtypeError", np.ones(2), np.ones(2), dtype="int64"),
            E("DtypeError", np.ones(2), np.ones(2), dtype="float16", stricter=True),
        ),
    ),
    Op(
        "polar",
        lambda r: [S(r.positive(2, 3), r(2, 3)), S(r.positive(2, 1), r(3))],
        lambda length, turn: parts(length * np.exp(1j * turn)),
        call=lambda rt, length, turn: rt.view_as_real(rt.polar(length, turn)),
        dtypes=COMPLEX,
        errors=(E("DtypeError", np.ones(2), np.ones(2), dtype="int64"),),
    ),
    Op(
        "view_as_complex",
        lambda r: [S(r(3, 2)), S(r(2, 1, 2))],
        lambda x: x,
        call=lambda rt, x: rt.view_as_real(rt.view_as_complex(x.contiguous())),
        dtypes=COMPLEX,
        exact=True,
        errors=(
            E("ShapeError", np.ones(3)),
            E("DtypeError", np.ones(2), dtype="int64"),
        ),
    ),
)
