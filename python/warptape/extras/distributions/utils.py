"""What the distributions share: broadcasting, probabilities and logits, properties computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.nn import functional as F

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
    "sum_rightmost",
    "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]


def broadcast_all(*values: Any) -> tuple[Any, ...]:
    """The values as tensors of one shape; numbers take the dtype and device of the tensors.

    Raises:
        ValueError: something that is neither a number nor a tensor.
    """
    if not all(isinstance(v, (wt.Tensor, int, float)) for v in values):
        raise ValueError(
            "Input arguments must all be instances of Number, Tensor or objects implementing it."
        )
    tensors = [v for v in values if isinstance(v, wt.Tensor)]
    like: dict[str, Any] = {"dtype": tensors[0].dtype, "device": tensors[0].device} if tensors else {}
    if not like or not tensors[0].is_floating_point():
        like["dtype"] = wt.get_default_dtype()
    as_tensors = [v if isinstance(v, wt.Tensor) else wt.tensor(v, **like) for v in values]
    return tuple(wt.broadcast_tensors(*as_tensors))


def check_either(probs: object, logits: object) -> None:
    """ValueError unless one of the two is given.

    Args:
        probs, logits: one of them is None.
    """
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")


def clamp_probs(probs: wt.Tensor) -> Any:
    """Probabilities that keep an epsilon's distance from 0 and 1.

    Args:
        probs: of a floating dtype.
    """
    eps = wt.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: wt.Tensor, is_binary: bool = False) -> Any:
    """Probabilities of log-odds, or of unnormalised log-probabilities along the last dim.

    Args:
        logits: any shape.
        is_binary: whether they are log-odds.
    """
    return wt.sigmoid(logits) if is_binary else F.softmax(logits, dim=-1)


def probs_to_logits(probs: wt.Tensor, is_binary: bool = False) -> Any:
    """Log-odds, or log-probabilities, of probabilities; finite ones.

    Args:
        probs: any shape.
        is_binary: whether log-odds are asked for.
    """
    kept = clamp_probs(probs)
    return kept.log() - (-kept).log1p() if is_binary else kept.log()


def _standard_normal(shape: Sequence[int], dtype: wt.dtype, device: Device) -> Any:
    """Normal variables with mean 0 and deviation 1."""
    return wt.randn(shape, dtype=dtype, device=device)


def vec_to_tril_matrix(vec: wt.Tensor, diag: int = 0) -> Any:
    """Vectors [*, D] as lower triangular matrices up to a diagonal, row by row: [*, N, N].

    Args:
        vec: any batch shape.
        diag: 0 for the main one.

    Raises: ValueError for a D that makes no triangle.
    """
    n = round(((1 + 8 * vec.shape[-1]) ** 0.5 - 1) / 2) - diag
    if (n + diag) * (n + diag + 1) // 2 != vec.shape[-1]:
        raise ValueError(
            f"The size of last dimension is {vec.shape[-1]} which cannot be expressed as a triangle"
        )
    rows, columns = wt.tril_indices(n, n, diag, device=vec.device)
    matrix = vec.new_zeros((*vec.shape[:-1], n, n))
    matrix[..., rows, columns] = vec
    return matrix


def tril_matrix_to_vec(mat: wt.Tensor, diag: int = 0) -> Any:
    """The elements of matrices [*, N, N] up to a diagonal, row by row: [*, D].

    Args:
        mat: any batch shape.
        diag: 0 for the main one.

    Raises: ValueError for a diagonal that there is not.
    """
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    rows, columns = wt.tril_indices(n, n, diag, device=mat.device)
    return mat[..., rows, columns]


class lazy_property:
    """A property that is computed with gradients at its first use, and then kept.

    Args:
        wrapped: of the object.
    """

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__
        self.__name__ = wrapped.__name__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        with wt.enable_grad():
            value = self.wrapped(instance)
        instance.__dict__[self.__name__] = value
        return value


def sum_rightmost(value: wt.Tensor, dims: int) -> Any:
    """The sum over the `dims` rightmost dims.

    Args:
        value: any shape.
        dims: how many.
    """
    return value.sum(tuple(range(-dims, 0))) if dims else value


_sum_rightmost = sum_rightmost  # PyTorch's name
