"""What the distributions share: broadcasting, probabilities and logits, properties computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import warptape
from warptape.nn import functional as F

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
    if not all(isinstance(v, (warptape.Tensor, int, float)) for v in values):
        raise ValueError(
            "Input arguments must all be instances of Number, Tensor or objects implementing it."
        )
    tensors = [v for v in values if isinstance(v, warptape.Tensor)]
    like: dict[str, Any] = {"dtype": tensors[0].dtype, "device": tensors[0].device} if tensors else {}
    if not like or not tensors[0].is_floating_point():
        like["dtype"] = warptape.get_default_dtype()
    made = [v if isinstance(v, warptape.Tensor) else warptape.tensor(v, **like) for v in values]
    return tuple(warptape.broadcast_tensors(*made))


def check_either(probs: Any, logits: Any) -> None:
    """ValueError unless one of the two is given."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")


def clamp_probs(probs: Any) -> Any:
    """Probabilities that keep an epsilon's distance from 0 and 1."""
    eps = warptape.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: Any, is_binary: bool = False) -> Any:
    """Probabilities of log-odds, or of unnormalised log-probabilities along the last dim."""
    return warptape.sigmoid(logits) if is_binary else F.softmax(logits, dim=-1)


def probs_to_logits(probs: Any, is_binary: bool = False) -> Any:
    """Log-odds, or log-probabilities, of probabilities; finite ones."""
    kept = clamp_probs(probs)
    return kept.log() - (-kept).log1p() if is_binary else kept.log()


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Any:
    """Normal variables with mean 0 and deviation 1."""
    return warptape.randn(shape, dtype=dtype, device=device)


def vec_to_tril_matrix(vec: Any, diag: int = 0) -> Any:
    """Vectors [*, D] as lower triangular matrices up to a diagonal, row by row: [*, N, N]."""
    n = round(((1 + 8 * vec.shape[-1]) ** 0.5 - 1) / 2) - diag
    if (n + diag) * (n + diag + 1) // 2 != vec.shape[-1]:
        raise ValueError(
            f"The size of last dimension is {vec.shape[-1]} which cannot be expressed as a triangle"
        )
    rows, columns = warptape.tril_indices(n, n, diag, device=vec.device)
    matrix = vec.new_zeros((*vec.shape[:-1], n, n))
    matrix[..., rows, columns] = vec
    return matrix


def tril_matrix_to_vec(mat: Any, diag: int = 0) -> Any:
    """The elements of matrices [*, N, N] up to a diagonal, row by row: [*, D]."""
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    rows, columns = warptape.tril_indices(n, n, diag, device=mat.device)
    return mat[..., rows, columns]


class lazy_property:
    """A property that is computed with gradients at its first use, and then kept."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__
        self.__name__ = wrapped.__name__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with warptape.enable_grad():
            value = self.wrapped(instance)
        instance.__dict__[self.__name__] = value
        return value


def sum_rightmost(value: Any, dims: int) -> Any:
    """The sum over the `dims` rightmost dims."""
    return value.sum(tuple(range(-dims, 0))) if dims else value


_sum_rightmost = sum_rightmost  # PyTorch's name
