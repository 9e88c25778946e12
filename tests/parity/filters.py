"""Which of PyTorch's entries are compared, in which dtypes, and how many samples of each."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
GRADIENT_DTYPES = (torch.float64, torch.complex64)

# Samples per op and dtype of the default selection, taken at a fixed step over PyTorch's list (of some
# thousands, in a few ops: over the first ones).
SAMPLES = {"values": 12, "gradients": 6, "variants": 2, "errors": 64}
LONGEST = 400


def left_out(entry: Any) -> str:
    """Why an entry is not compared, '' where it is."""
    name = entry.name
    if "sparse" in name:
        return "sparse"
    if "quantize" in name:
        return "quantised"
    if name.startswith("jiterator"):
        return "jiterator"
    if name.startswith(("_refs", "prims")):
        return "prims"
    if isinstance(entry.op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return "internal"  # torch.ops.aten: not a name of the public API
    public = hasattr(torch, name) or hasattr(torch.Tensor, name) or hasattr(torch.Tensor, f"{name}_")
    if hasattr(torch.ops.aten, name) and not public:
        return "internal"  # the same, wrapped for the samples
    last = name.rpartition(".")[2]
    if last.startswith("_") and not last.startswith("__"):
        return "internal"
    return ""


def undefined(entry: Any) -> bool:
    """True where the values are what the memory held."""
    return "empty" in entry.name or entry.name.startswith("resize_")


def full_name(entry: Any) -> str:
    """'norm.nuc': the entry's name with its variant."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def entries() -> list[Any]:
    """The compared entries of op_db."""
    return [entry for entry in op_db if not left_out(entry)]


def dtypes(entry: Any, of: tuple[torch.dtype, ...] = DTYPES) -> list[torch.dtype]:
    """The dtypes that the entry supports on the CPU."""
    supported = entry.supported_dtypes("cpu")
    return [dtype for dtype in of if dtype in supported]


def taken(samples: Any, limit: int | None) -> list[Any]:
    """At most `limit` samples, at a fixed step."""
    if limit is None:
        return list(samples)
    samples = list(itertools.islice(samples, LONGEST))
    if len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]
