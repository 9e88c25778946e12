"""Two results: PyTorch's and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import warptape

from .convert import their_dtype, their_tensor

# Of the value, and of the largest value of the tensor.
TOLERANCE = {
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 4e-3),
    torch.float32: (5e-6, 2e-6),
    torch.float64: (1e-9, 1e-9),
    torch.complex64: (5e-6, 2e-6),
    torch.complex128: (1e-9, 1e-9),
}


@dataclass(frozen=True)
class Difference:
    """What of the result differs, and how."""

    aspect: str
    cause: str


@dataclass(frozen=True)
class Strictness:
    """What is compared besides dtypes and shapes."""

    values: bool = True
    strides: bool = False  # of results with memory of their own; views' strides are always compared
    loosen: float = 1.0


def text(value: Any) -> str:
    """A value in a few words: float32[2, 3] for a tensor."""
    if isinstance(value, (torch.Tensor, warptape.Tensor)):
        dtype, shape = str(value.dtype).rpartition(".")[2], ", ".join(map(str, value.shape))
        few = f"={value.item()}" if value.ndim == 0 else ""
        strided = "" if value.numel() == 0 or value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{dtype}[{shape}]{few}{strided}"
    if type(value) in (list, tuple):
        inner = ", ".join(map(text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text(item)}" for key, item in value.items()) + "}"
    line = " ".join(str(value).split())
    return line if len(line) < 120 else line[:117] + "..."


def call_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call."""
    return (
        "(" + ", ".join([*map(text, args), *(f"{key}={text(value)}" for key, value in kwargs.items())]) + ")"
    )


def values_differ(theirs: torch.Tensor, ours: torch.Tensor, loosen: float = 1.0) -> str:
    """Where two tensors of one dtype and shape differ, '' where they do not."""
    theirs, ours = (t.detach().resolve_conj().resolve_neg() for t in (theirs, ours))
    dtype = theirs.dtype
    if dtype not in TOLERANCE:
        unequal = theirs != ours
    else:
        if dtype.is_complex:
            theirs, ours = torch.view_as_real(theirs.contiguous()), torch.view_as_real(ours.contiguous())
        a, b = theirs.double(), ours.double()
        finite = a[a.isfinite()]
        largest = finite.abs().max().item() if finite.numel() else 0.0
        rtol, atol = (loosen * bound for bound in TOLERANCE[dtype])
        unequal = ~torch.isclose(b, a, rtol=rtol, atol=atol * min(max(largest, 1.0), 1e300), equal_nan=True)
    if not unequal.any():
        return ""
    where = tuple(unequal.nonzero()[0].tolist())
    count = f"{int(unequal.sum())} of {unequal.numel()} differ"
    return f"at {list(where)}: ours {ours[where].item()!r}, theirs {theirs[where].item()!r} ({count})"


def storages(value: Any, found: set[int] | None = None) -> set[int]:
    """The storages of the tensors of an argument tree."""
    found = set() if found is None else found
    if isinstance(value, (torch.Tensor, warptape.Tensor)):
        if value.layout in (torch.strided, warptape.strided) and value.numel():
            found.add(value.untyped_storage().data_ptr())
    elif isinstance(value, (list, tuple)):
        for item in value:
            storages(item, found)
    elif isinstance(value, dict):
        storages(list(value.values()), found)
    return found


def effective(strides: Any, shape: Any) -> tuple[int, ...]:
    """Strides of the dims that have more than one element."""
    return tuple(step for step, size in zip(strides, shape) if size > 1)


def differences(
    theirs: Any, ours: Any, their_inputs: set[int], our_inputs: set[int], strict: Strictness, at: str = ""
) -> Iterator[Difference]:
    """All that differs between two results; storages of the inputs tell views."""
    if isinstance(theirs, torch.Tensor):
        yield from _tensors(theirs, ours, their_inputs, our_inputs, strict, at)
    elif isinstance(theirs, (tuple, list)):
        if not isinstance(ours, (tuple, list)) or len(ours) != len(theirs):
            yield Difference("shape", f"{at}ours {text(ours)}, theirs {text(theirs)}")
            return
        for i, (a, b) in enumerate(zip(theirs, ours)):
            yield from differences(a, b, their_inputs, our_inputs, strict, f"{at}[{i}] ")
    elif isinstance(theirs, (bool, int, float, complex)):
        if type(theirs) is not type(ours):
            yield Difference("dtype", f"{at}ours {type(ours).__name__}, theirs {type(theirs).__name__}")
        elif strict.values and (
            bad := values_differ(torch.tensor(theirs), torch.tensor(ours), strict.loosen)
        ):
            yield Difference("value", at + bad)
    elif theirs is not None and str(theirs).split(".")[-1] != str(ours).split(".")[-1]:
        yield Difference("value", f"{at}ours {text(ours)}, theirs {text(theirs)}")
    elif theirs is None and ours is not None:
        yield Difference("value", f"{at}ours {text(ours)}, theirs None")


def _tensors(
    theirs: torch.Tensor, ours: Any, their_inputs: set[int], our_inputs: set[int], strict: Strictness, at: str
) -> Iterator[Difference]:
    if not isinstance(ours, warptape.Tensor):
        yield Difference("value", f"{at}ours {text(ours)}, theirs {text(theirs)}")
        return
    if their_dtype(ours) != theirs.dtype:
        yield Difference("dtype", f"{at}ours {ours.dtype}, theirs {theirs.dtype}")
    if tuple(ours.shape) != tuple(theirs.shape):
        yield Difference("shape", f"{at}ours {tuple(ours.shape)}, theirs {tuple(theirs.shape)}")
        return
    if theirs.layout != torch.strided or theirs.is_meta:
        return
    if strict.values:
        converted = their_tensor(ours)
        bad = values_differ(theirs, converted.to(theirs.dtype), strict.loosen)
        if bad:
            yield Difference("value", at + bad)
    if theirs.numel() == 0:
        return
    view = theirs.untyped_storage().data_ptr() in their_inputs
    if view != (ours.untyped_storage().data_ptr() in our_inputs):
        yield Difference(
            "view",
            f"{at}ours {'new memory' if view else 'a view'}, theirs {'a view' if view else 'new memory'}",
        )
    elif view or strict.strides:
        a, b = effective(theirs.stride(), theirs.shape), effective(ours.stride(), ours.shape)
        if a != b:
            yield Difference("strides", f"{at}ours {tuple(ours.stride())}, theirs {theirs.stride()}")
