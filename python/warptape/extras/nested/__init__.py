"""torch.nested: batches of sequences of several lengths, without padding, in the jagged layout.

The layout torch.strided of nested tensors, which PyTorch keeps as a prototype, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ... import _C
from ...core import Tensor, as_tensor
from . import _attention, _ops, _reductions  # they register their handlers
from ._ragged import Ragged
from ._tensor import NestedTensor, attach, plain

__all__ = [
    "as_nested_tensor",
    "masked_select",
    "narrow",
    "nested_tensor",
    "nested_tensor_from_jagged",
    "to_padded_tensor",
]


def _check_layout(layout: wt.layout | None, where: str) -> None:
    if layout is None or layout is wt.strided:
        raise NotImplementedError(
            f"{where}: nested tensors of the layout torch.strided, a prototype in PyTorch, are not here; "
            "pass layout=torch.jagged"
        )
    if layout is not wt.jagged:
        raise RuntimeError(f"Specified layout is unsupported for nested tensors: {layout}")


def nested_tensor(
    tensor_list: Any,
    *,
    dtype: wt.dtype | None = None,
    layout: wt.layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> NestedTensor:
    """A nested tensor with a copy of the tensors in a list, or of what torch.tensor takes; a leaf.

    Args:
        layout: torch.jagged.

    Raises:
        RuntimeError: no tensor, several dtypes or devices, or more than one dim of several sizes.
        NotImplementedError: the layout torch.strided, which is PyTorch's default.

    Example::

        >>> t = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
        >>> t.offsets(), t.sum(1)
        (tensor([0, 2, 3]), tensor([[2., 2., 2.],
                [0., 0., 0.]]))
    """
    _check_layout(layout, "nested_tensor")
    tensors = [t if isinstance(t, Tensor) else as_tensor(t) for t in tensor_list]
    with wt.no_grad():
        nested: Any = _of_list(tensors, dtype, device)
    nested = nested.detach().requires_grad_(requires_grad)
    return nested.pin_memory() if pin_memory else nested


def as_nested_tensor(
    ts: Any, dtype: wt.dtype | None = None, device: Any = None, layout: wt.layout | None = None
) -> NestedTensor:
    """A nested tensor of tensors in a list, or of the rows of a dense tensor [B, n, ..], with their history.

    A nested tensor is returned as it is, in another dtype or on another device where one is given.

    Raises:
        TypeError: anything else.
        RuntimeError: as nested_tensor, or a tensor of less than two dims.
        NotImplementedError: the layout torch.strided, which is PyTorch's default.
    """
    is_list = isinstance(ts, (list, tuple)) and all(isinstance(t, Tensor) for t in ts)
    if not isinstance(ts, Tensor) and not is_list:
        raise TypeError(
            "as_nested_tensor(): Expected first argument to be a tensor or a list / tuple of tensors "
        )
    _check_layout(layout, "as_nested_tensor")
    if is_list:
        return _of_list(list(ts), dtype, device)
    if isinstance(ts, NestedTensor):
        return ts.to(device=device or ts.device, dtype=dtype or ts.dtype)  # type: ignore[return-value]
    if ts.dim() < 2:
        raise RuntimeError("as_nested_tensor(): Expected tensor argument to have dim() > 1")
    values = ts.contiguous().flatten(0, 1).to(device=device or ts.device, dtype=dtype or ts.dtype)
    count, length = ts.shape[:2]
    offsets = wt.arange(count + 1, device=values.device) * length
    return _nested(values, Ragged(offsets, None, length, length))


def _of_list(tensors: list[Tensor], dtype: wt.dtype | None, device: Any) -> NestedTensor:
    if not tensors:
        raise RuntimeError("Cannot construct a nested tensor from an empty tensor list")
    for what, kinds in (
        ("have the same dtype", {t.dtype for t in tensors}),
        ("be on the same device", {t.device for t in tensors}),
        ("have the same dim", {t.dim() for t in tensors}),
    ):
        if len(kinds) > 1:
            raise RuntimeError(f"When constructing a nested tensor, all tensors in list must {what}")
    first = tensors[0]
    if first.dim() == 0:
        raise RuntimeError("Cannot construct a nested tensor from a list of zero-dim tensors")
    ragged = [d for d in range(first.dim()) if any(t.size(d) != first.size(d) for t in tensors)]
    if len(ragged) > 1:
        raise RuntimeError(
            "Cannot represent given tensor list as a nested tensor with the jagged layout. Note that the "
            "jagged layout only allows for a single ragged dimension. For example: "
            "(B, *, D_0, D_1, ..., D_N), with ragged * dim."
        )
    dim = ragged[0] if ragged else 0
    values = wt.cat(tensors, dim)
    values = values.to(device=device or values.device, dtype=dtype or values.dtype)
    sizes = [t.size(dim) for t in tensors]
    ends = wt.tensor([0, *sizes], dtype=wt.int64).cumsum(0)
    return _nested(values, Ragged(ends.to(values.device), None, min(sizes), max(sizes)), dim + 1)


def _nested(values: Tensor, ragged: Ragged, ragged_idx: int = 1) -> NestedTensor:
    return attach(_C._as_subclass(values, NestedTensor), ragged, ragged_idx)


def nested_tensor_from_jagged(
    values: Tensor,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    jagged_dim: int | None = None,
    min_seqlen: int | None = None,
    max_seqlen: int | None = None,
) -> NestedTensor:
    """A nested tensor that views `values`, which have the sequences one behind the other.

    Args:
        values: [rows, ..], or with the rows in the dim `jagged_dim` - 1.
        offsets: [B + 1], where the sequences begin, and the last ends.
        lengths: [B]; with offsets as well, the rows of a sequence after that many belong to none.
        jagged_dim: of the result; 1 by default.
        min_seqlen: the shortest length; found out where it is left out.
        max_seqlen: the longest length; likewise.

    Raises:
        RuntimeError: neither offsets nor lengths, or some that do not fit.
        ValueError: a jagged_dim less than 1.
    """
    if offsets is None:
        if lengths is None:
            raise RuntimeError("nested_tensor_from_jagged(): At least one of offsets or lengths is required.")
        sums = lengths.cumsum(0)
        offsets, lengths = wt.cat([sums.new_zeros(1), sums]), None
    dim = 1 if jagged_dim is None else jagged_dim
    if dim < 1:
        raise ValueError(f"Expected jagged_dim >=1, but got {dim}.")
    if offsets.ndim != 1 or dim > values.ndim or offsets.size(0) < 1:
        raise RuntimeError(
            f"nested_tensor_from_jagged(): expected offsets [B + 1] and values with at least {dim} dims, got "
            f"{list(offsets.shape)} and {list(values.shape)}"
        )
    if lengths is not None and tuple(lengths.shape) != (offsets.size(0) - 1,):
        raise RuntimeError(
            "nested_tensor_from_jagged(): offsets and lengths batch sizes must match, got "
            f"{list(offsets.shape)} and {list(lengths.shape)}"
        )
    if values.device != offsets.device:
        raise RuntimeError(
            "nested_tensor_from_jagged(): values and offsets must be on the same device, got "
            f"{values.device} and {offsets.device}"
        )
    return _nested(plain(values), Ragged(offsets, lengths, min_seqlen, max_seqlen), dim)


def narrow(
    tensor: Tensor, dim: int, start: int | Tensor, length: int | Tensor, layout: wt.layout | None = None
) -> NestedTensor:
    """Of each row of a dense tensor [B, n, ..] the elements start..start + length - 1, as a view.

    Args:
        dim: 1.
        start: for all rows, or [B].
        length: likewise.

    Raises:
        RuntimeError: another dim, or numbers that do not fit.
        NotImplementedError: the layout torch.strided, which is PyTorch's default.
    """
    if not isinstance(start, (int, Tensor)):
        raise RuntimeError("start must be an integer or a tensor")
    if not isinstance(length, (int, Tensor)):
        raise RuntimeError("length must be an integer or a tensor")
    _check_layout(layout, "narrow")
    if dim != 1:
        raise RuntimeError("jagged layout only supports dim=1")
    count, most = tensor.shape[:2]
    try:
        starts, lengths = (as_tensor(x, device=tensor.device).expand(count) for x in (start, length))
    except RuntimeError:
        raise RuntimeError(
            "When constructing a jagged nested tensor using narrow(), your start and length must be Tensors "
            "that broadcast to input.shape[0]"
        ) from None
    first = starts + wt.arange(count, device=tensor.device) * most
    offsets = wt.cat([first, first[-1:] + lengths[-1:]])
    values = tensor.view(-1, *tensor.shape[2:])
    if bool((lengths == most).all()):
        return _nested(values, Ragged(offsets, None, most, most))
    return _nested(values, Ragged(offsets, lengths.contiguous()))


def masked_select(tensor: Tensor, mask: Tensor) -> NestedTensor:
    """Of each row of a dense tensor the elements where `mask`, which is broadcast, is True.

    Raises:
        RuntimeError: tensors that are not strided.
    """
    for what, t in (("tensor", tensor), ("mask", mask)):
        if t.layout is not wt.strided:
            raise RuntimeError(f"torch.nested.masked_select requires a strided {what}, given {t.layout}")
    values = tensor.masked_select(mask)
    lengths = mask.expand(tensor.shape).sum(tensor.ndim - 1).view(-1)
    sums = lengths.cumsum(0)
    return _nested(values, Ragged(wt.cat([sums.new_zeros(1), sums]), None))


def to_padded_tensor(
    input: Tensor, padding: float, output_size: Sequence[int] | None = None, out: Tensor | None = None
) -> Tensor:
    """The dense tensor [B, longest, ..] of a nested one, with `padding` behind the shorter sequences.

    Args:
        output_size: what to pad to, at least the longest.

    Raises:
        NotImplementedError: a tensor that is not nested.
        RuntimeError: an output_size that is too small.
    """
    if not isinstance(input, NestedTensor):
        raise NotImplementedError("to_padded_tensor: expected a nested tensor, got a dense one")
    return input.to_padded_tensor(padding, output_size, out)
