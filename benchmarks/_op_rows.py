"""Single calls of many functions, by dtype, for benchmarks/ops.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SIZE = 512
# Of operands [512, 512].
DTYPES = ["float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64"]


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[[Any], Callable[[], Any]]
    threaded: bool = False
    calls: int | None = None
    units: int = 1


def draw(lib: Any, dtype: str, *shape: int, seed: int = 0) -> Any:
    """Values that are the same in both libraries: normal ones, whole numbers below 100, truth values."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return lib.from_numpy(rng.random(shape) < 0.5)
    if "int" in dtype:
        return lib.from_numpy(rng.integers(0, 100, shape)).to(getattr(lib, dtype))
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
        return lib.from_numpy(values.astype(dtype))
    return lib.from_numpy(values.astype(np.float32)).to(getattr(lib, dtype))


# Names: functions of a tensor, of functional, methods along rows, functions of the whole, of two tensors.
_POINTWISE = """
abs neg exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
erfinv sigmoid logit floor ceil round trunc frac sign sgn reciprocal square expm1 log1p log2 log10
exp2 lgamma digamma i0 sinc isnan isinf isfinite logical_not bitwise_not nan_to_num signbit clone
relu
"""
POINTWISE = _POINTWISE.split()
_ACTIVATIONS = """
gelu silu mish softplus elu selu celu hardtanh hardswish hardsigmoid leaky_relu relu6 logsigmoid
tanhshrink softshrink hardshrink softsign glu
"""
ACTIVATIONS = _ACTIVATIONS.split()
_ALONG_ROWS = """
cumsum cumprod cummax cummin logcumsumexp sort argsort any all sum mean prod max min amax amin
argmax argmin median nanmedian mode std var logsumexp count_nonzero nansum nanmean softmax
log_softmax
"""
ALONG_ROWS = _ALONG_ROWS.split()
_WHOLE = """
tril triu nonzero diag rot90 fliplr flipud corrcoef cov unique histc aminmax
"""
WHOLE = _WHOLE.split()
_OPERATORS = """
add sub mul div floor_divide remainder fmod pow atan2 hypot maximum minimum fmax fmin eq lt
logical_and bitwise_and bitwise_xor bitwise_left_shift gcd lcm copysign nextafter ldexp logaddexp
xlogy dist isclose allclose matmul cdist
"""
OPERATORS = _OPERATORS.split()

# name: (library, x [512, 512], y as x, columns [512] and places [512, 512] below 512, mask as x) -> call
SELECTIONS: dict[str, Callable[[Any, Any, Any, Any, Any, Any], Any]] = {
    "index_select": lambda lib, x, y, i, p, m: x.index_select(1, i),
    "gather": lambda lib, x, y, i, p, m: x.gather(1, p),
    "scatter": lambda lib, x, y, i, p, m: x.scatter(1, p, y),
    "scatter_add": lambda lib, x, y, i, p, m: x.scatter_add(1, p, y),
    "index_add": lambda lib, x, y, i, p, m: x.index_add(0, i, y),
    "index_fill": lambda lib, x, y, i, p, m: x.index_fill(1, i, 1),
    "take": lambda lib, x, y, i, p, m: x.take(p),
    "put": lambda lib, x, y, i, p, m: x.clone().put_(p, y),
    "index": lambda lib, x, y, i, p, m: x[i, i],
    "where": lambda lib, x, y, i, p, m: lib.where(m, x, y),
    "masked_fill": lambda lib, x, y, i, p, m: x.masked_fill(m, 1),
    "masked_select": lambda lib, x, y, i, p, m: x.masked_select(m),
    "flip": lambda lib, x, y, i, p, m: x.flip(1),
    "roll": lambda lib, x, y, i, p, m: x.roll(5, 1),
    "transpose": lambda lib, x, y, i, p, m: x.t().contiguous(),
    "permute": lambda lib, x, y, i, p, m: x.reshape(8, 64, 8, 64).permute(0, 2, 1, 3).contiguous(),
    "cat": lambda lib, x, y, i, p, m: lib.cat([x, y, x], 1),
    "stack": lambda lib, x, y, i, p, m: lib.stack([x, y, x], 2),
    "repeat": lambda lib, x, y, i, p, m: x.repeat(2, 3),
    "topk": lambda lib, x, y, i, p, m: x.topk(10, 1),
    "kthvalue": lambda lib, x, y, i, p, m: x.kthvalue(10, 1),
    "searchsorted": lambda lib, x, y, i, p, m: lib.searchsorted(x.sort(1).values, y),
    "clamp": lambda lib, x, y, i, p, m: x.clamp(1, 50),
    "lerp": lambda lib, x, y, i, p, m: lib.lerp(x, y, 0.3),
    "addcmul": lambda lib, x, y, i, p, m: lib.addcmul(x, y, y),
    "addcdiv": lambda lib, x, y, i, p, m: lib.addcdiv(x, y, y),
    "outer": lambda lib, x, y, i, p, m: lib.outer(x[0], y[0]),
    "kron": lambda lib, x, y, i, p, m: lib.kron(x[:32, :32], y[:32, :32]),
    "cross": lambda lib, x, y, i, p, m: lib.linalg.cross(x[:, :3], y[:, :3]),
    "quantile": lambda lib, x, y, i, p, m: lib.quantile(x, 0.3, 1),
    "trapezoid": lambda lib, x, y, i, p, m: lib.trapezoid(x),
    "diff": lambda lib, x, y, i, p, m: lib.diff(x),
}

# name: (library, functional, images [8, 32, 64, 64], rows [512, 1000], classes [512]) -> call
LAYERS: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "max_pool2d": lambda lib, F, x, r, c: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda lib, F, x, r, c: F.avg_pool2d(x, 2),
    "lp_pool2d": lambda lib, F, x, r, c: F.lp_pool2d(x, 2, 2),
    "adaptive_avg_pool2d": lambda lib, F, x, r, c: F.adaptive_avg_pool2d(x, 7),
    "adaptive_max_pool2d": lambda lib, F, x, r, c: F.adaptive_max_pool2d(x, 7),
    "max_pool3d": lambda lib, F, x, r, c: F.max_pool3d(x.view(8, 32, 16, 16, 16), 2),
    **{
        f"interpolate_{mode}": lambda lib, F, x, r, c, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)
        for mode in ("nearest", "bilinear", "bicubic", "area")
    },
    "grid_sample": lambda lib, F, x, r, c: F.grid_sample(
        x, draw(lib, "float32", 8, 64, 64, 2).tanh(), align_corners=False
    ),
    "pad_reflect": lambda lib, F, x, r, c: F.pad(x, (2, 2, 2, 2), mode="reflect"),
    "depthwise conv2d": lambda lib, F, x, r, c: F.conv2d(
        x, r[:32, :9].reshape(32, 1, 3, 3), padding=1, groups=32
    ),
    "unfold": lambda lib, F, x, r, c: F.unfold(x, 3),
    "fold": lambda lib, F, x, r, c: F.fold(F.unfold(x, 3), (64, 64), 3),
    "pixel_shuffle": lambda lib, F, x, r, c: F.pixel_shuffle(x, 4),
    "batch_norm": lambda lib, F, x, r, c: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda lib, F, x, r, c: F.instance_norm(x),
    "group_norm": lambda lib, F, x, r, c: F.group_norm(x, 8),
    "layer_norm": lambda lib, F, x, r, c: F.layer_norm(r, (1000,)),
    "local_response_norm": lambda lib, F, x, r, c: F.local_response_norm(x, 5),
    "embedding": lambda lib, F, x, r, c: F.embedding(c, r),
    "embedding_bag": lambda lib, F, x, r, c: F.embedding_bag(c.view(64, 8), r),
    "one_hot": lambda lib, F, x, r, c: F.one_hot(c, 1000),
    "cross_entropy": lambda lib, F, x, r, c: F.cross_entropy(r, c),
    "cross_entropy of images": lambda lib, F, x, r, c: F.cross_entropy(
        x, c[:64, None].expand(64, 512).reshape(8, 64, 64) % 32
    ),
    "multi_margin_loss": lambda lib, F, x, r, c: F.multi_margin_loss(r, c),
    **{
        name: lambda lib, F, x, r, c, name=name: getattr(F, name)(r, r)
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "cosine_similarity")
    },
    "binary_cross_entropy": lambda lib, F, x, r, c: F.binary_cross_entropy_with_logits(r, r.sigmoid()),
    "pdist": lambda lib, F, x, r, c: F.pdist(r[:200]),
    "dropout": lambda lib, F, x, r, c: F.dropout(r, 0.3),
    "stft": lambda lib, F, x, r, c: lib.stft(
        r.flatten()[:64000].view(4, -1), 400, 160, window=lib.hann_window(400), return_complex=True
    ),
    "fft": lambda lib, F, x, r, c: lib.fft.fft(r),
    "einsum": lambda lib, F, x, r, c: lib.einsum("bcij,bcik->bcjk", x, x),
    **{
        f"linalg_{name}": lambda lib, F, x, r, c, name=name: getattr(lib.linalg, name)(r[:200, :200])
        for name in ["pinv", "matrix_exp"]
    },
    **{name: lambda lib, F, x, r, c, name=name: getattr(lib, name)(SIZE, SIZE) for name in ("rand", "randn")},
    "randperm": lambda lib, F, x, r, c: lib.randperm(100000),
    "multinomial": lambda lib, F, x, r, c: lib.multinomial(r.abs(), 10),
    "trunc_normal_": lambda lib, F, x, r, c: lib.nn.init.trunc_normal_(lib.empty(SIZE, SIZE)),
}


# name: (library, A [*, n, n], Hermitian positive definite S [*, n, n] and its factor L, B as A)
# -> what a loss depends on
LINALG: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    **{
        name: lambda lib, A, S, L, B, name=name: getattr(lib.linalg, name)(A)
        for name in ("inv", "det", "slogdet", "qr", "svd")
    },
    **{
        name: lambda lib, A, S, L, B, name=name: getattr(lib.linalg, name)(S) for name in ("cholesky", "eigh")
    },
    "solve": lambda lib, A, S, L, B: lib.linalg.solve(A, B),
    "solve_vector": lambda lib, A, S, L, B: lib.linalg.solve(A, B[..., :1]),
    "cholesky_solve": lambda lib, A, S, L, B: lib.cholesky_solve(B, L),
    "lstsq": lambda lib, A, S, L, B: lib.linalg.lstsq(A, B)[0],
}
# Sizes of batches of square matrices.
MATRICES = [(8, 8), (32, 32), (200, 200), (512, 512), (64, 8, 8)]


def with_gradients(lib: Any, call: Callable[[], Any], leaves: list[Any], wanted: bool) -> Callable[[], Any]:
    """The call; where wanted, with the gradients of its first result by the leaves that it depends on."""
    if not wanted:
        return call
    for leaf in leaves:
        leaf.requires_grad_()

    def run() -> Any:
        out = call()
        while isinstance(out, (tuple, list)):
            out = out[0]
        return lib.autograd.grad(out, leaves, lib.ones_like(out), allow_unused=True)

    return run


def by_dtype(
    call: Callable[[Any, Any, Any], Callable[[], Any]], dtype: str, backward: bool
) -> Callable[[Any], Callable[[], Any]]:
    """call(library, x, y) on operands of that dtype."""

    def build(lib: Any) -> Callable[[], Any]:
        x, y = draw(lib, dtype, SIZE, SIZE), draw(lib, dtype, SIZE, SIZE, seed=1)
        return with_gradients(lib, call(lib, x, y), [x, y], backward)

    return build


def selection(name: str, dtype: str, backward: bool) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        rng = np.random.default_rng(2)
        columns = lib.from_numpy(rng.integers(0, SIZE, SIZE))
        places = lib.from_numpy(rng.integers(0, SIZE, (SIZE, SIZE)))
        x, y = draw(lib, dtype, SIZE, SIZE), draw(lib, dtype, SIZE, SIZE, seed=1)
        mask = draw(lib, "bool", SIZE, SIZE, seed=3)
        call = lambda: SELECTIONS[name](lib, x, y, columns, places, mask)
        return with_gradients(lib, call, [x, y], backward)

    return build


def layer(name: str, backward: bool) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        images, rows = draw(lib, "float32", 8, 32, 64, 64), draw(lib, "float32", 512, 1000)
        classes = lib.from_numpy(np.random.default_rng(4).integers(0, 500, 512))
        call = lambda: LAYERS[name](lib, lib.nn.functional, images, rows, classes)
        return with_gradients(lib, call, [images, rows], backward)

    return build


def matrices(
    name: str, dtype: str, shape: tuple[int, ...], backward: bool
) -> Callable[[Any], Callable[[], Any]]:
    """LINALG's call, with the gradients of all that it gives where `backward`."""

    def build(lib: Any) -> Callable[[], Any]:
        A, B = draw(lib, dtype, *shape), draw(lib, dtype, *shape, seed=1)
        S = A @ A.mT / shape[-1] + lib.eye(shape[-1], dtype=A.dtype)
        L = lib.linalg.cholesky(S)
        leaves = [A, S, L, B]

        def call() -> Any:
            found = LINALG[name](lib, *leaves)
            if not backward:
                return found
            losses = [found] if isinstance(found, lib.Tensor) else [x for x in found if x.requires_grad]
            return lib.autograd.grad([x.sum() for x in losses], leaves, allow_unused=True)

        for x in leaves:
            x.requires_grad_(backward)
        return call

    return build


def matrix_rows(dtype: str) -> list[Row]:
    return [
        Row(
            f"linalg_{name}{'_backward' * backward}_{'x'.join(map(str, shape))}[{dtype}]",
            matrices(name, dtype, shape, backward),
        )
        for name in LINALG
        for shape in MATRICES
        for backward in (False, True)
    ]


def rows_of(dtype: str, backward: bool = False) -> list[Row]:
    calls: dict[str, Callable[[Any], Callable[[], Any]]] = {}
    for name in POINTWISE + WHOLE:
        calls[name] = by_dtype(lambda lib, x, y, name=name: lambda: getattr(lib, name)(x), dtype, backward)
    for name in ACTIVATIONS:
        calls[name] = by_dtype(
            lambda lib, x, y, name=name: lambda: getattr(lib.nn.functional, name)(x), dtype, backward
        )
    for name in ALONG_ROWS:
        calls[name] = by_dtype(lambda lib, x, y, name=name: lambda: getattr(x, name)(1), dtype, backward)
    for name in OPERATORS:
        calls[name] = by_dtype(lambda lib, x, y, name=name: lambda: getattr(lib, name)(x, y), dtype, backward)
    for name in SELECTIONS:
        calls[name] = selection(name, dtype, backward)
    kind = f"{dtype}, backward" if backward else dtype
    return [Row(f"{name}[{kind}]", build) for name, build in calls.items()]


ROWS = [
    *(row for dtype in DTYPES for row in rows_of(dtype)),
    *(Row(name, layer(name, False)) for name in LAYERS),
    *rows_of("float32", backward=True),
    *(Row(f"{name}[backward]", layer(name, True)) for name in LAYERS),
    *(row for dtype in ("float32", "float64") for row in matrix_rows(dtype)),
]
