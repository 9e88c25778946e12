"""The names of codes and of how they lie, where PyTorch has dtypes of its own for them."""

from __future__ import annotations

from enum import Enum


class qscheme(Enum):
    """One scale for a tensor or one for each channel; with a zero point or with the middle code for zero."""

    per_tensor_affine = "torch.per_tensor_affine"
    per_tensor_symmetric = "torch.per_tensor_symmetric"
    per_channel_affine = "torch.per_channel_affine"
    per_channel_symmetric = "torch.per_channel_symmetric"
    per_channel_affine_float_qparams = "torch.per_channel_affine_float_qparams"

    def __repr__(self) -> str:
        return self.value


class CodeType(Enum):
    """The codes of a value: what torch.quint8 and torch.qint8 name. Tensors of codes are uint8 and int8."""

    quint8 = "torch.quint8"
    qint8 = "torch.qint8"

    def __repr__(self) -> str:
        return self.value


per_tensor_affine, per_tensor_symmetric = qscheme.per_tensor_affine, qscheme.per_tensor_symmetric
per_channel_affine, per_channel_symmetric = qscheme.per_channel_affine, qscheme.per_channel_symmetric
per_channel_affine_float_qparams = qscheme.per_channel_affine_float_qparams
quint8, qint8 = CodeType.quint8, CodeType.qint8


def range_of(dtype: object, reduce_range: bool = False) -> tuple[int, int]:
    """The least and greatest code. Raises: ValueError for another dtype."""
    name = str(dtype).rpartition(".")[2]
    if name not in ("quint8", "qint8", "uint8", "int8"):
        raise ValueError(f"expected codes of quint8 or qint8, got {dtype!r}")
    low, high = (0, 255) if "u" in name else (-128, 127)
    return (low // 2, high // 2) if reduce_range else (low, high)
