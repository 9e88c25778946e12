"""Initial values of parameters, written in place and outside of the tape.

Every function returns the tensor it fills. The generator is drawn from as PyTorch does, so that the same seed
gives the same start. `fan_in` and `fan_out` count what flows into and out of one unit: [out, in, *kernel] ->
in and out times the kernel's size.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ..core.placed import Placed


def _on_full_tensor(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function; of a tensor that ranks hold shards of it fills the full tensor, and this rank's shard is
    kept."""

    @functools.wraps(function)
    def fill(tensor: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(tensor, Placed):
            return tensor.filled_as_full(lambda full_tensor: function(full_tensor, *args, **kwargs))
        return function(tensor, *args, **kwargs)

    return fill


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which weights must grow for the values after `nonlinearity` to keep their spread.

    `param` is the slope below zero of "leaky_relu". Raises ValueError for a name it does not know.
    """
    if re.fullmatch("linear|sigmoid|conv(_transpose)?[123]d", nonlinearity):
        return 1
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "selu":
        return 3.0 / 4
    if nonlinearity != "leaky_relu":
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    if param is None:
        param = 0.01
    elif isinstance(param, bool) or not isinstance(param, (int, float)):
        raise ValueError(f"negative_slope {param} not a valid number")
    return math.sqrt(2.0 / (1 + param**2))


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    units_out, units_in, *kernel = tensor.shape
    return units_in * math.prod(kernel), units_out * math.prod(kernel)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return fan_in if mode == "fan_in" else fan_out


@_on_full_tensor
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: wt.Generator | None = None) -> Tensor:
    """Values between `a` and `b`, each as likely.

    >>> bool(nn.init.uniform_(torch.empty(100), 2, 3).min() >= 2)
    True
    """
    with wt.no_grad():
        return tensor.uniform_(a, b, generator=generator)


@_on_full_tensor
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: wt.Generator | None = None
) -> Tensor:
    """Values of the normal distribution.

    >>> nn.init.normal_(torch.empty(2, 3), std=0.02).shape
    torch.Size([2, 3])
    """
    with wt.no_grad():
        return tensor.normal_(mean, std, generator=generator)


@_on_full_tensor
def _embedding_(tensor: Tensor, padding_idx: int | None) -> Tensor:
    """Normal rows, but zeros in the row `padding_idx`."""
    normal_(tensor)
    if padding_idx is not None:
        with wt.no_grad():
            tensor[padding_idx].fill_(0)
    return tensor


@_on_full_tensor
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: wt.Generator | None = None,
) -> Tensor:
    """Values of the normal distribution but those outside [a, b] (values, not multiples of std).

    >>> bool(nn.init.trunc_normal_(torch.empty(100), a=-1, b=1).abs().max() <= 1)
    True
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be "
            "incorrect.",
            stacklevel=2,
        )
    if tensor.is_meta:
        return tensor
    inside = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)
    draw = _draw_normal_inside if inside > 0.3 else _draw_uniform_under_density
    with wt.no_grad():
        return draw(tensor, mean, std, a, b, generator)


def _draw_normal_inside(
    tensor: Tensor, mean: float, std: float, a: float, b: float, generator: wt.Generator
) -> Tensor:
    """Draws normal values until all have come out inside [a, b]; every round draws for the full tensor."""
    low, high = wt.tensor([a, b], dtype=tensor.dtype).tolist()  # as the tensor can hold them
    tensor.normal_(mean, std, generator=generator)
    while bool((outside := (tensor < low) | (tensor > high)).any()):
        again = wt.empty_like(tensor).normal_(mean, std, generator=generator)
        tensor.copy_(wt.where(outside, again, tensor))
    return tensor


def _draw_uniform_under_density(
    tensor: Tensor, mean: float, std: float, a: float, b: float, generator: wt.Generator
) -> Tensor:
    """Draws from [a, b], where normal values seldom fall, and keeps each as often as it is dense."""
    peak = -0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2

    def candidates() -> tuple[Tensor, Tensor]:
        values = wt.empty_like(tensor).uniform_(a, b, generator=generator)
        log_density = ((values - mean) / std).pow(2).mul(-0.5).sub(peak)
        chance = wt.empty_like(values).uniform_(generator=generator)
        return values, chance.log() > log_density

    values, rejected = candidates()
    tensor.copy_(values)
    while bool(rejected.any()):
        values, failed = candidates()
        tensor.copy_(wt.where(rejected, values, tensor))
        rejected = rejected & failed
    return tensor


def _normal_cdf(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The one value `val`.

    >>> nn.init.constant_(torch.zeros(2), 0.5)
    tensor([0.5000, 0.5000])
    """
    with wt.no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones.

    >>> nn.init.ones_(torch.zeros(2))
    tensor([1., 1.])
    """
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros.

    >>> nn.init.zeros_(torch.ones(2))
    tensor([0., 0.])
    """
    with wt.no_grad():
        return tensor.zero_()


@_on_full_tensor
def eye_(tensor: Tensor) -> Tensor:
    """[n, m] -> ones on the diagonal, zeros elsewhere.

    Args:
        tensor: a matrix, changed in place and returned.

    Raises: ValueError for other dimensions than 2.

    >>> nn.init.eye_(torch.empty(2, 3))
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with wt.no_grad():
        tensor.zero_()
        tensor.diagonal().fill_(1)
    return tensor


@_on_full_tensor
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """[out, in, *kernel] -> a convolution that hands its input channels through, in each of `groups`.

    Args:
        tensor: 3-D to 5-D, changed in place and returned; a 1 stands in the middle of the kernel of each
            channel that is handed through.
        groups: into so many the outputs are divided.

    Raises: ValueError for other dimensions and for groups that do not divide the outputs.

    >>> nn.init.dirac_(torch.empty(1, 1, 3))
    tensor([[[0., 1., 0.]]])
    """
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups != 0:
        raise ValueError("dim 0 must be divisible by groups")
    per_group = tensor.shape[0] // groups
    centre = [n // 2 for n in tensor.shape[2:]]
    with wt.no_grad():
        tensor.zero_()
        for group in range(groups):
            for channel in range(min(per_group, tensor.shape[1])):
                tensor[tuple([group * per_group + channel, channel] + centre)] = 1
    return tensor


def _xavier_std(tensor: Tensor, gain: float) -> float:
    return gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor)))


@_on_full_tensor
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: wt.Generator | None = None) -> Tensor:
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010, section 4.2.1).

    >>> bool(nn.init.xavier_uniform_(torch.empty(3, 3)).abs().max() <= 1)
    True
    """
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


@_on_full_tensor
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: wt.Generator | None = None) -> Tensor:
    """Normal with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010, section 4.2.1).

    >>> nn.init.xavier_normal_(torch.empty(3, 6)).shape
    torch.Size([3, 6])
    """
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float | None:
    """None, with a warning, for a tensor of no elements."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return None
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


@_on_full_tensor
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: wt.Generator | None = None,
) -> Tensor:
    """Uniform with variance gain^2 / fan (He et al. 2015, section 2.2); `a` is the slope of leaky_relu.

    >>> bool(nn.init.kaiming_uniform_(torch.empty(3, 6)).abs().max() <= 1)
    True
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else uniform_(tensor, -math.sqrt(3.0) * std, math.sqrt(3.0) * std, generator)


@_on_full_tensor
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: wt.Generator | None = None,
) -> Tensor:
    """Normal with variance gain^2 / fan (He et al. 2015, section 2.2); `a` is the slope of leaky_relu.

    >>> nn.init.kaiming_normal_(torch.empty(3, 6), nonlinearity="relu").shape
    torch.Size([3, 6])
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0.0, std, generator)


@_on_full_tensor
def orthogonal_(tensor: Tensor, gain: float = 1, generator: wt.Generator | None = None) -> Tensor:
    """[rows, *rest] -> a (semi-)orthogonal matrix [rows, prod(rest)], times `gain` (Saxe et al. 2013).

    The decomposition runs on the host, in NumPy.

    >>> q = nn.init.orthogonal_(torch.empty(3, 3))
    >>> torch.allclose(q @ q.T, torch.eye(3), atol=1e-5)
    True
    """
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if 0 in tensor.shape:
        return tensor
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    with wt.no_grad():
        start = tensor.new_empty((rows, columns)).normal_(0, 1, generator=generator)
        import numpy  # here, for it is half of what importing warptape would take

        matrix = start.detach().cpu().to(wt.promote_types(start.dtype, wt.float32)).numpy()
        q, r = numpy.linalg.qr(matrix if rows >= columns else matrix.T)
        q = q * numpy.sign(numpy.diagonal(r))  # makes the draw uniform over the orthogonal matrices
        q = numpy.ascontiguousarray(q if rows >= columns else q.T)
        return tensor.copy_(wt.from_numpy(q).reshape(tensor.shape)).mul_(gain)


@_on_full_tensor
def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: wt.Generator | None = None
) -> Tensor:
    """[rows, columns] -> normal values, a `sparsity` share of each column zero (Martens 2010).

    From Martens, "Deep learning via Hessian-free optimization" (2010), section 5.

    Args:
        tensor: a matrix, changed in place and returned.
        sparsity: the share of each column that is zero, rounded up to whole elements.
        std: of the other values; their mean is 0.
        generator: draws the values; the default one if None.

    Raises: ValueError for other dimensions than 2.

    >>> (nn.init.sparse_(torch.empty(4, 2), sparsity=0.5) == 0).sum(0)
    tensor([2, 2])
    """
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with wt.no_grad():
        tensor.normal_(0, std, generator=generator)
        for column in range(columns):
            # The default generator, as PyTorch draws them, even when another is handed in.
            tensor[wt.randperm(rows)[:zeros], column] = 0
    return tensor


def _deprecated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    new, old = function.__name__, function.__name__[:-1]

    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(
            f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`.", FutureWarning, stacklevel=2
        )
        return function(*args, **kwargs)

    renamed.__name__ = old
    renamed.__doc__ = f"Deprecated name of `{new}`."
    return renamed


uniform, normal, constant = map(_deprecated, (uniform_, normal_, constant_))
eye, dirac, sparse, orthogonal = map(_deprecated, (eye_, dirac_, sparse_, orthogonal_))
xavier_uniform, xavier_normal = map(_deprecated, (xavier_uniform_, xavier_normal_))
kaiming_uniform, kaiming_normal = map(_deprecated, (kaiming_uniform_, kaiming_normal_))
