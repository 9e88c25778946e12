"""Pooling: what the core's functions need around them, power averages, and maxima put back in place.
Legend: [N, C, L], [N, C, H, W] or [N, C, D, H, W], or without N."""

from __future__ import annotations

import math
from typing import Any

import warptape
from warptape import _C, Tensor

__all__: list[str] = []  # filled below: each family has a function for one, two and three dims


def _each(value: Any, n: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * n if len(sizes) == 1 else sizes


def _max_pool(n: int) -> Any:
    with_indices = getattr(_C._nn, f"max_pool{n}d_with_indices")

    def max_pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The maximum of each window, and with `return_indices` its flat place among the input's."""
        both = with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
        return tuple(both) if return_indices else both[0]

    return max_pool


def _wanted(input: Tensor, output_size: Any, spatial: int) -> Any:
    """The size asked for; None in it keeps the input's."""
    if isinstance(output_size, int) or not isinstance(input, Tensor):
        return output_size
    sizes = tuple(output_size)
    if None not in sizes:
        return sizes
    return tuple(
        have if want is None else want for have, want in zip(input.shape[-spatial:], sizes, strict=True)
    )


def _adaptive_avg_pool(n: int) -> Any:
    average = getattr(_C._private, f"adaptive_avg_pool{n}d")

    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        """Averages over windows that cover the input evenly, as many as output_size asks; None keeps a
        size."""
        return average(input, _wanted(input, output_size, n))

    return adaptive_avg_pool


def _adaptive_max_pool(n: int, indices: bool) -> Any:
    maximum = getattr(_C._private, f"adaptive_max_pool{n}d")

    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        """Maxima of windows that cover the input evenly, and their flat places if wanted."""
        both = maximum(input, _wanted(input, output_size, n))
        return tuple(both) if return_indices or indices else both[0]

    return adaptive_max_pool


def _lp_pool(n: int) -> Any:
    average = getattr(_C._nn, f"avg_pool{n}d")

    def lp_pool(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        """The `norm_type`-norm of each window; a negative sum of powers counts as 0."""
        mean = average(input.pow(norm_type), kernel_size, stride or kernel_size, 0, ceil_mode)
        count = math.prod(_each(kernel_size, n))
        return _C._nn.relu(mean).mul(count).pow(1.0 / norm_type)

    return lp_pool


def _unpooled(
    input: Tensor, sizes: Any, kernel: list[int], stride: list[int], padding: list[int]
) -> list[int]:
    """The spatial sizes of what was pooled: as given, or the least."""
    n = len(kernel)
    least = [
        (size - 1) * s + k - 2 * p
        for size, s, k, p in zip(input.shape[-n:], stride, kernel, padding, strict=True)
    ]
    if sizes is None:
        return least
    wanted = list(sizes)[-n:] if len(sizes) == n + 2 else list(sizes)
    if len(wanted) != n:
        raise ValueError(
            f"output_size should be a sequence containing {n} or {n + 2} elements, but it has a length of "
            f"'{len(sizes)}'"
        )
    for d, (size, low, s) in enumerate(zip(wanted, least, stride, strict=True)):
        if not low - s < size < low + s:
            raise ValueError(
                f'invalid output_size "{wanted}" (dim {d} must be between {low - s} and {low + s})'
            )
    return wanted


def _max_unpool(n: int) -> Any:
    def max_unpool(
        input: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Tensor:
        """Zeros, with each element of `input` at its place in `indices`, as a max_pool returned them."""
        if indices.dtype != _C.int64 or indices.shape != input.shape:
            raise RuntimeError(
                "max_unpool: Expected indices of dtype int64 and of the input's shape "
                f"{tuple(input.shape)}, got {indices.dtype} and {tuple(indices.shape)}"
            )
        kernel = _each(kernel_size, n)
        step = kernel if stride is None or stride == [] else _each(stride, n)
        sizes = _unpooled(input, output_size, kernel, step, _each(padding, n))
        flat = input.new_zeros((*input.shape[:-n], math.prod(sizes)))
        out = flat.scatter(-1, indices.flatten(-n), input.flatten(-n))
        return out.reshape((*input.shape[:-n], *sizes))

    return max_unpool


def _starts(sample: Tensor, size: int, pool: int, count: int) -> Tensor:
    """First positions [N, C, count] of windows at pseudo-random distances, from a number each in [0, 1)."""
    last = sample.new_full((*sample.shape, 1), size - pool).long()
    if count == 1:
        return last
    alpha = (size - pool) / (count - 1)
    steps = warptape.arange(count - 1, device=sample.device).to(sample.dtype) + sample.unsqueeze(-1)
    return warptape.cat([(steps * alpha).long() - (sample.unsqueeze(-1) * alpha).long(), last], -1)


def _fractional(name: str, n: int, indices: bool) -> Any:
    def fractional_max_pool(
        input: Tensor,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:
        """Maxima of windows at pseudo-random distances ("Fractional Max-Pooling", section 2), and their flat
        places if wanted."""
        if output_size is None and output_ratio is None:
            raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
        x = input if input.dim() == n + 2 else input.unsqueeze(0)
        spatial, kernel = x.shape[-n:], _each(kernel_size, n)
        if output_size is None:
            ratios = [output_ratio] * n if isinstance(output_ratio, float) else list(output_ratio)
            output_size = [int(size * ratio) for size, ratio in zip(spatial, ratios, strict=True)]
        sizes = _each(output_size, n)
        for size, k, count in zip(spatial, kernel, sizes, strict=True):
            if count + k - 1 > size:
                raise RuntimeError(f"{name}: pool size {k} and output size {count} too large for size {size}")
        samples = _random_samples
        if samples is None:
            samples = warptape.rand(*x.shape[:2], n, dtype=x.dtype, device=x.device)
        order = (1, 0) if n == 2 else (0, 1, 2)  # PyTorch's: the first number of a plane is the width's
        place: Any = 0
        for d in range(n):
            at = _starts(samples[..., order[d]], spatial[d], kernel[d], sizes[d])
            at = at.unsqueeze(-1) + warptape.arange(kernel[d], device=x.device)
            shape = [1] * (2 * n)
            shape[d], shape[n + d] = sizes[d], kernel[d]
            place = place * spatial[d] + at.reshape(*at.shape[:2], *shape)
        windows = place.flatten(n + 2)
        found = x.flatten(2).gather(2, windows.flatten(2)).reshape(windows.shape)
        best = found.argmax(-1, keepdim=True)
        values, places = found.gather(-1, best).squeeze(-1), windows.gather(-1, best).squeeze(-1)
        if input.dim() == n + 1:
            values, places = values.squeeze(0), places.squeeze(0)
        return (values, places) if return_indices or indices else values

    return fractional_max_pool


def _define() -> None:
    for n in (1, 2, 3):
        made = {
            f"max_pool{n}d": _max_pool(n),
            f"adaptive_avg_pool{n}d": _adaptive_avg_pool(n),
            f"lp_pool{n}d": _lp_pool(n),
            f"max_unpool{n}d": _max_unpool(n),
        }
        for end, indices in (("", False), ("_with_indices", True)):
            made[f"adaptive_max_pool{n}d{end}"] = _adaptive_max_pool(n, indices)
            if n > 1:
                name = f"fractional_max_pool{n}d"
                made[name + end] = _fractional(name, n, indices)
        for name, function in made.items():
            function.__name__ = function.__qualname__ = name
            globals()[name] = function
            __all__.append(name)


_define()
