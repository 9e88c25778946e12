"""Products, convolutions, norms, pooling, attention, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from warptape import core as wt

from ._builder import Builder, Names, maps
from ._errors import UnsupportedOperatorError
from ._sizes import Uniform

Args = SimpleNamespace


def _axes(b: Builder, dims: list[int]) -> str:
    return b.constant(dims, wt.int64)


def _swapped(b: Builder, x: str, rank: int) -> str:
    """The last two dims the other way round."""
    return b.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


@maps("linear")
def _linear(b: Builder, a: Args, out: int) -> str:
    weight = _swapped(b, str(b(a.weight)), 2) if len(b.sizes(a.weight)) == 2 else b(a.weight)
    product = b.node("MatMul", b(a.input), weight)
    return product if a.bias is None else b.node("Add", product, b(a.bias))


@maps("role=product")
def _matmul(b: Builder, a: Args, out: int) -> str:
    other = next(getattr(a, name) for name in ("other", "mat2", "vec") if hasattr(a, name))
    return b.node("MatMul", b(a.input), b(other))


@maps("role=add_product")
def _addmm(b: Builder, a: Args, out: int) -> str:
    left, right = [value for name, value in vars(a).items() if name not in ("input", "alpha", "beta")]
    product, added, dtype = b.node("MatMul", b(left), b(right)), b(a.input), b.dtype(out)
    product = product if a.alpha == 1 else b.node("Mul", product, b.constant(a.alpha, dtype))
    added = added if a.beta == 1 else b.node("Mul", added, b.constant(a.beta, dtype))
    return b.node("Add", product, added)


@maps("einsum")
def _einsum(b: Builder, a: Args, out: int) -> str:
    return b.node("Einsum", *[b(t) for t in a.operands], equation=a.equation)


@maps("outer")
def _outer(b: Builder, a: Args, out: int) -> str:
    column = b.node("Unsqueeze", b(a.input), _axes(b, [1]))
    return b.node("Mul", column, b(a.vec2))


def _each(value: list[Any], dims: int) -> list[Any]:
    return list(value) * dims if len(value) == 1 else list(value)


def _padding(a: Args, dims: int, kernel: list[int]) -> dict[str, Any]:
    if a.padding == "valid":
        return {}
    if a.padding == "same":  # the odd one behind
        total = [s * (k - 1) for s, k in zip(_each(a.dilation, dims), kernel, strict=True)]
        return {"pads": [n // 2 for n in total] + [n - n // 2 for n in total]}
    return {"pads": _each(a.padding, dims) * 2}


def _batched(b: Builder, a: Args, dims: int, f: Callable[[Any], str]) -> str:
    """f(input [N, C, ..]): inputs without a batch dim get one."""
    if len(b.sizes(a.input)) == dims + 2:
        return f(b(a.input))
    lead = _axes(b, [0])
    return b.node("Squeeze", f(b.node("Unsqueeze", b(a.input), lead)), lead)


def _spatial(name: str, dims: int) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Registers the pooling f(builder, arguments, input [N, C, ..], its result)."""

    def add(f: Callable[..., str]) -> Callable[..., str]:
        @maps(name)
        def _(b: Builder, a: Args, out: int) -> str:
            if not b.dtype(out).is_floating_point or getattr(a, "return_indices", False):
                raise UnsupportedOperatorError("pooling of integers, or with return_indices")
            return _batched(b, a, dims, lambda x: f(b, a, x, out))

        return f

    return add


def _window(a: Args, dims: int) -> dict[str, Any]:
    return {
        "kernel_shape": _each(a.kernel_size, dims),
        "strides": _each(a.stride or a.kernel_size, dims),
        "pads": _each(a.padding, dims) * 2,
    }


def _convolved(b: Builder, a: Args, out: int, kind: str, dims: int, **attributes: Any) -> str:
    if not b.dtype(out).is_floating_point:
        raise UnsupportedOperatorError("a convolution of integers")
    attributes |= {
        "strides": _each(a.stride, dims),
        "dilations": _each(a.dilation, dims),
        "group": a.groups,
    }
    return _batched(b, a, dims, lambda x: b.node(kind, x, b(a.weight), b(a.bias), **attributes))


@maps("role=convolution")
def _convolution(b: Builder, a: Args, out: int) -> str:
    kernel = b.sizes(a.weight)[2:]
    dims = len(kernel)
    return _convolved(b, a, out, "Conv", dims, **_padding(a, dims, kernel))


@maps("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(b: Builder, a: Args, out: int) -> str:
    dims = len(b.sizes(a.weight)) - 2
    pads = {"output_padding": _each(a.output_padding, dims), "pads": _each(a.padding, dims) * 2}
    return _convolved(b, a, out, "ConvTranspose", dims, **pads)


def _pools(dims: int) -> None:
    @_spatial(f"max_pool{dims}d", dims)
    def _(b: Builder, a: Args, x: str, out: int) -> str:
        more: dict[str, Any] = {"dilations": _each(a.dilation, dims), "ceil_mode": int(a.ceil_mode)}
        return b.node("MaxPool", x, **_window(a, dims), **more)

    @_spatial(f"avg_pool{dims}d", dims)
    def _(b: Builder, a: Args, x: str, out: int) -> str:
        if a.ceil_mode or getattr(a, "divisor_override", None) is not None:
            raise UnsupportedOperatorError("avg_pool with ceil_mode or divisor_override")
        return b.node("AveragePool", x, **_window(a, dims), count_include_pad=int(a.count_include_pad))

    def adaptive(name: str, reduction: str, pool: str) -> None:
        @_spatial(f"adaptive_{name}_pool{dims}d", dims)
        def _(b: Builder, a: Args, x: str, out: int) -> str:
            have, wanted = b.sizes(a.input)[-dims:], b.sizes(out)[-dims:]
            if wanted == [1] * dims:
                return b.node(reduction, x, _axes(b, list(range(2, dims + 2))), keepdims=1)
            fixed = all(isinstance(n, int) for n in (*have, *wanted))
            if not fixed or any(n % m for n, m in zip(have, wanted, strict=True)):
                raise UnsupportedOperatorError("adaptive pooling of sizes that vary or do not divide")
            kernel = [n // m for n, m in zip(have, wanted, strict=True)]
            return b.node(pool, x, kernel_shape=kernel, strides=kernel)

    adaptive("avg", "ReduceMean", "AveragePool")
    adaptive("max", "ReduceMax", "MaxPool")


for _dims in (1, 2, 3):
    _pools(_dims)


# ---- norms -----------------------------------------------------------------------------------------------


def _affine(b: Builder, x: str, weight: Any, bias: Any, shape: list[int] | None = None) -> str:
    for kind, t in (("Mul", weight), ("Add", bias)):
        if t is not None:
            name = str(b(t)) if shape is None else b.node("Reshape", b(t), _axes(b, shape))
            x = b.node(kind, x, name)
    return x


@maps("batch_norm")
def _batch_norm(b: Builder, a: Args, out: int) -> str:
    if a.training or a.running_mean is None:
        raise UnsupportedOperatorError("batch_norm in training mode; call eval() first")
    channels, dtype = b.sizes(a.running_mean), b.dtype(a.running_mean)
    weight = b(a.weight) or b.constant([1.0] * channels[0], dtype)
    bias = b(a.bias) or b.constant([0.0] * channels[0], dtype)
    return b.node(
        "BatchNormalization", b(a.input), weight, bias, b(a.running_mean), b(a.running_var), epsilon=a.eps
    )


@maps("layer_norm")
def _layer_norm(b: Builder, a: Args, out: int) -> str:
    dims = len(a.normalized_shape)
    weight = b(a.weight) or b.node("Expand", b.constant(1.0, b.dtype(out)), b.ints(list(a.normalized_shape)))
    return b.node("LayerNormalization", b(a.input), weight, b(a.bias), axis=-dims, epsilon=a.eps)


@maps("rms_norm")
def _rms_norm(b: Builder, a: Args, out: int) -> str:
    x, dtype = b(a.input), b.dtype(out)
    eps = wt.finfo(wt.promote_types(dtype, wt.float32)).eps if a.eps is None else a.eps
    dims = _axes(b, list(range(-len(a.normalized_shape), 0)))
    mean = b.node("ReduceMean", b.node("Mul", x, x), dims, keepdims=1)
    root = b.node("Sqrt", b.node("Add", mean, b.constant(eps, dtype)))
    return _affine(b, b.node("Div", x, root), a.weight, None)


@maps("group_norm", "instance_norm")
def _group_norm(b: Builder, a: Args, out: int) -> str:
    if getattr(a, "use_input_stats", True) is False:
        raise UnsupportedOperatorError("instance_norm with running statistics")
    sizes, dtype = b.sizes(a.input), b.dtype(out)
    groups = getattr(a, "num_groups", sizes[1])
    x = b.node("Reshape", b(a.input), b.ints([sizes[0], groups, -1]))
    one, zero = b.constant([1.0] * groups, dtype), b.constant([0.0] * groups, dtype)
    x = b.node("InstanceNormalization", x, one, zero, epsilon=a.eps)
    x = b.node("Reshape", x, b.ints(sizes))
    return _affine(b, x, a.weight, a.bias, [-1, *[1] * (len(sizes) - 2)])


# ---- resizing --------------------------------------------------------------------------------------------


_RESIZES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear"},
    "bilinear": {"mode": "linear"},
    "trilinear": {"mode": "linear"},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.75},
}


@maps("interpolate", "upsample")
def _interpolate(b: Builder, a: Args, out: int) -> str:
    if a.mode not in (*_RESIZES, "nearest-exact") or getattr(a, "antialias", False):
        raise UnsupportedOperatorError(f"interpolate with mode={a.mode!r} or antialias")
    spatial = len(b.sizes(out)) - 2
    axes, x = list(range(2, spatial + 2)), str(b(a.input))
    given = None if a.scale_factor is None else _each(a.scale_factor, spatial)
    sizes = b.ints(b.sizes(out)[2:]) if given is None else _scaled(b, x, axes, given)
    scales = None if getattr(a, "recompute_scale_factor", None) else given
    if a.mode == "nearest-exact" or (a.mode == "nearest" and not all(s % 1 == 0 for s in scales or [0.5])):
        return _nearest(b, x, a.mode == "nearest-exact", out, sizes, scales)
    attributes = _RESIZES[a.mode] | {"axes": axes}
    if a.mode != "nearest":
        kind = "align_corners" if a.align_corners else "half_pixel"
        attributes["coordinate_transformation_mode"] = kind
    if scales is None or a.align_corners:  # where the sizes alone count
        return b.node("Resize", x, None, None, sizes, **attributes)
    if all(s % 1 == 0 for s in scales):
        return b.node("Resize", x, None, b.constant(scales, wt.float32), **attributes)
    # onnxruntime multiplies sizes in float32, which may give one element too few, and copies an input whose
    # sizes do not change: it gets more at the ends, and a scale that is not below the right one.
    more = [math.ceil(1 / (s - 1)) if 1 < s < 2 else 0 for s in scales]
    x = b.node("Pad", x, b.constant([0, 0] + [0] * spatial + [0, 0] + more, wt.int64), mode="edge")
    above = wt.tensor(scales).nextafter(wt.tensor(math.inf))
    resized = b.node("Resize", x, None, b.initializer("scales", above), **attributes)
    return b.node("Slice", resized, _axes(b, [0] * spatial), sizes, _axes(b, axes))


def _scaled(b: Builder, x: str, axes: list[int], scales: list[float]) -> str:
    """The sizes of some dims times numbers, rounded down, as eager code computes them."""
    have = b.node("Gather", b.node("Shape", x), _axes(b, axes), axis=0)
    double = wt.float64
    wanted = b.node("Mul", b.cast(have, wt.int64, double), b.constant(scales, double))
    return b.cast(b.node("Floor", wanted), double, wt.int64)


def _nearest(b: Builder, x: str, exact: bool, out: int, sizes: str, scales: list[float] | None) -> str:
    """By indices in eager code's arithmetic: Resize rounds another way where a product is nearly whole."""
    dtype = wt.float64 if b.dtype(out) == wt.float64 else wt.float32
    double, int64 = wt.float64, wt.int64
    shape = b.node("Shape", x)
    for d in range(len(b.sizes(out)) - 2):
        have = b.node("Gather", shape, b.constant(d + 2, int64), axis=0)
        size = b.node("Gather", sizes, b.constant(d, int64), axis=0)
        real = [b.cast(n, int64, double) for n in (have, size)]
        if scales is None:
            step = b.cast(b.node("Div", *real), double, dtype)
        else:
            step = b.constant(1 / scales[d], dtype)
        at = b.cast(b.node("Range", b.constant(0, int64), size, b.constant(1, int64)), int64, dtype)
        half = b.constant(0.5, dtype)
        if not exact:
            at = b.node("Mul", step, at)
        else:
            at = b.node("Sub", b.node("Mul", step, b.node("Add", at, half)), half)
            at = b.node("Add", b.node("Max", at, b.constant(0.0, dtype)), half)
        at = b.cast(b.node("Floor", b.cast(at, dtype, wt.float32)), wt.float32, int64)
        x = b.node("Gather", x, b.node("Min", at, b.node("Sub", have, b.constant(1, int64))), axis=d + 2)
    return x


@maps("pad")
def _pad(b: Builder, a: Args, out: int) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    rank, pairs = len(b.sizes(a.input)), list(a.pad)
    before, after = [0] * rank, [0] * rank
    for k in range(len(pairs) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pairs[2 * k], pairs[2 * k + 1]
    if modes[a.mode] == "wrap":
        raise UnsupportedOperatorError("circular padding")
    value = b.constant(a.value or 0, b.dtype(out)) if a.mode == "constant" else None
    return b.node("Pad", b(a.input), b.ints([*before, *after]), value, mode=modes[a.mode])


@maps("pixel_shuffle")
def _pixel_shuffle(b: Builder, a: Args, out: int) -> str:
    return b.node("DepthToSpace", b(a.input), blocksize=a.upscale_factor, mode="CRD")


# ---- attention -------------------------------------------------------------------------------------------


def _causal(b: Builder, queries: Any, keys: Any) -> str:
    """True where a query sees a key, [T, S]."""
    ones = b.node("Expand", b.constant(1, wt.int32), b.ints([queries, keys]))
    return b.cast(b.node("Trilu", ones, upper=0), wt.int32, wt.bool)


def _attention(
    b: Builder, q: str, k: str, v: str, mask: tuple[str, bool] | None, scale: float, dtype: wt.dtype
) -> str:
    """Of [.., T, D] with a mask that is added, or is True where a query sees a key."""
    scores = b.node("MatMul", b.node("Mul", q, b.constant(scale, dtype)), k)
    if mask is not None and mask[1]:
        scores = b.node("Where", mask[0], scores, b.constant(-math.inf, dtype))
    elif mask is not None:
        scores = b.node("Add", scores, mask[0])
    weights = b.node("Softmax", scores, axis=-1)
    if mask is not None and mask[1]:  # a query that sees no key gets zeros, where softmax has NaN
        weights = b.node("Where", mask[0], weights, b.constant(0.0, dtype))
    return b.node("MatMul", weights, v)


def _given_mask(b: Builder, mask: Any, causal: bool, queries: Any, keys: Any) -> tuple[str, bool] | None:
    if mask is not None:
        return str(b(mask)), b.dtype(mask) == wt.bool
    return (_causal(b, queries, keys), True) if causal else None


@maps("scaled_dot_product_attention")
def _sdpa(b: Builder, a: Args, out: int) -> str:
    if a.dropout_p:
        raise UnsupportedOperatorError("attention with dropout; call eval() first")
    sizes, keys = b.sizes(a.query), b.sizes(a.key)
    k, v = str(b(a.key)), str(b(a.value))
    if a.enable_gqa and sizes[-3] != keys[-3]:
        repeats = sizes[-3] // keys[-3]
        k, v = (_repeated(b, x, b.sizes(t), repeats) for x, t in ((k, a.key), (v, a.value)))
    scale = 1 / math.sqrt(sizes[-1]) if a.scale is None else a.scale
    mask = _given_mask(b, a.attn_mask, a.is_causal, sizes[-2], keys[-2])
    return _attention(b, str(b(a.query)), _swapped(b, k, len(keys)), v, mask, scale, b.dtype(out))


def _repeated(b: Builder, x: str, sizes: list[Any], repeats: int) -> str:
    """Each head of [.., K, S, D] several times."""
    x = b.node("Unsqueeze", x, _axes(b, [-3]))
    x = b.node("Expand", x, b.ints([*sizes[:-2], repeats, *sizes[-2:]]))
    return b.node("Reshape", x, b.ints([*sizes[:-3], sizes[-3] * repeats, *sizes[-2:]]))


@maps("multi_head_attention")
def _multi_head_attention(b: Builder, a: Args, out: int) -> Names:
    unusual = (a.bias_k, a.bias_v, a.key_padding_mask, a.q_proj_weight, a.static_k, a.static_v)
    if any(x is not None for x in unusual) or a.add_zero_attn or a.need_weights or a.training:
        raise UnsupportedOperatorError("multi_head_attention other than of plain projections in eval mode")
    sizes, keys, dtype = b.sizes(a.query), b.sizes(a.key), b.dtype(out)
    if len(sizes) != 3:
        raise UnsupportedOperatorError("multi_head_attention without a batch dim")
    width, heads = a.embed_dim_to_check, a.num_heads
    weights = b.node("Split", b(a.in_proj_weight), b.ints([width] * 3), outputs=3, axis=0)
    biases = [None] * 3
    if a.in_proj_bias is not None:
        biases = b.node("Split", b(a.in_proj_bias), b.ints([width] * 3), outputs=3, axis=0)

    def projected(x: Any, k: int, order: list[int]) -> str:
        """[.., E] as heads, in the given order of (batch, tokens, heads, D)."""
        y = b.node("MatMul", b(x), _swapped(b, weights[k], 2))
        y = y if biases[k] is None else b.node("Add", y, biases[k])
        y = b.node("Reshape", y, b.ints([*b.sizes(x)[:2], heads, width // heads]))
        place = order if a.batch_first else [{0: 1, 1: 0}.get(d, d) for d in order]
        return b.node("Transpose", y, perm=place)

    q, v = projected(a.query, 0, [0, 2, 1, 3]), projected(a.value, 2, [0, 2, 1, 3])
    k = projected(a.key, 1, [0, 2, 3, 1])
    dim = 1 if a.batch_first else 0
    mask = _given_mask(b, a.attn_mask, a.is_causal, sizes[dim], keys[dim])
    y = _attention(b, q, k, v, mask, 1 / math.sqrt(width // heads), dtype)
    y = b.node("Transpose", y, perm=[0, 2, 1, 3] if a.batch_first else [2, 0, 1, 3])
    y = b.node("MatMul", b.node("Reshape", y, b.ints(sizes)), _swapped(b, str(b(a.out_proj_weight)), 2))
    return [y if a.out_proj_bias is None else b.node("Add", y, b(a.out_proj_bias)), None]


# ---- recurrent layers ------------------------------------------------------------------------------------

# ONNX's order of gates, in those of this library (input, forget, cell, output; reset, update, new).
_GATES = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}


@maps("recurrent_layer")
def _recurrent(b: Builder, a: Args, out: int) -> Names:
    kind = {"LSTM": "LSTM", "GRU": "GRU", "RNN_TANH": "RNN", "RNN_RELU": "RNN"}[a.mode.upper()]
    if a.weight_hr is not None or not isinstance(a.batch_sizes, Uniform):
        raise UnsupportedOperatorError("a recurrent layer of packed sequences, or with projections")
    hidden = b.sizes(a.weight_hh)[1]
    order = b.constant([g * hidden + i for g in _GATES[kind] for i in range(hidden)], wt.int64)
    lead = _axes(b, [0])

    def stacked(t: Any) -> str:
        return b.node("Unsqueeze", b.node("Gather", b(t), order, axis=0), lead)

    bias = None
    if a.bias_ih is not None:
        bias = b.node("Concat", stacked(a.bias_ih), stacked(a.bias_hh), axis=1)
    batch, steps = a.batch_sizes
    x = b.node("Reshape", b(a.input), b.ints([steps, batch, b.sizes(a.input)[-1]]))
    states = [b.node("Reshape", b(t), b.ints([1, batch, hidden])) for t in (a.hx, a.cx) if t is not None]
    more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    if kind == "RNN":
        more = {"activations": ["Relu" if a.mode.upper() == "RNN_RELU" else "Tanh"]}
    result = b.node(
        kind,
        x,
        stacked(a.weight_ih),
        stacked(a.weight_hh),
        bias,
        None,
        *states,
        outputs=len(states) + 1,
        hidden_size=hidden,
        direction="reverse" if a.reverse else "forward",
        **more,
    )
    return [b.node("Reshape", y, b.ints(b.sizes(i))) for y, i in zip(result, b.results, strict=False)]
