"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from warptape import core as wt
from warptape.core import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after the other, as a vector that gradients flow through.

    >>> nn.utils.parameters_to_vector(nn.Linear(2, 3).parameters()).shape
    torch.Size([9])
    """
    parameters = list(parameters)
    _expect_one_device(parameters)
    return wt.cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Makes each parameter's values a view of its part of `vec`, in the order of `parameters_to_vector`.

    Args:
        vec: [n], as long as all parameters together.
        parameters: tensors on one device.

    Raises: TypeError unless `vec` is a tensor.

    >>> layer = nn.Linear(2, 1)
    >>> nn.utils.vector_to_parameters(torch.tensor([1.0, 2.0, 3.0]), layer.parameters())
    >>> layer.weight.tolist(), layer.bias.tolist()
    ([[1.0, 2.0]], [3.0])
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected warptape.Tensor, but got: {type(vec).__name__}")
    parameters = list(parameters)
    _expect_one_device(parameters)
    start = 0
    for parameter in parameters:
        count = parameter.numel()
        parameter.data = vec[start : start + count].view_as(parameter).data
        start += count


def _expect_one_device(parameters: list[Tensor]) -> None:
    if len({str(p.device) for p in parameters}) > 1:
        raise TypeError("Found two parameters on different devices, this is currently not supported.")
