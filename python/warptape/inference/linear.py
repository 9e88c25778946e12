"""Linear layers for inference, whose weights are packed once in the order in which the kernels read them.

A row of the output depends on its own row of the input alone: it is the same to the bit for every number of
rows in a call, every split of rows into calls and every number of threads. Layers have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import warptape
from warptape import _C, Tensor, nn

_ops: Any = _C._private


class PackedLinear(nn.Module):
    """[*, in_features] -> [*, out_features], as the nn.Linear it is made from, with the weight packed.

    packed is [ceil(out / 16), in, 16] in float32 and [ceil(out / 16), ceil(in / 2), 16, 2] in bfloat16; bias
    is [out_features] or None. With `dtype` the weight is converted first; an input of another dtype is
    converted to the weight's and the result back. An argument that requires a gradient is a
    NotImplementedError, unless no gradient is recorded.
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with warptape.no_grad():
            weight = linear.weight.detach().to(dtype or linear.weight.dtype)
            self.register_buffer("packed", _ops._pack_linear_weight(weight))
            self.register_buffer("bias", _bias_of(linear, weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype."""
        x = input if input.dtype == self.packed.dtype else input.to(self.packed.dtype)
        out: Tensor = _ops._packed_linear(x, self.packed, self.out_features, self.bias)
        return out if x is input else out.to(input.dtype)

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dtype={self.packed.dtype}"
        )


def pack_(model: nn.Module, dtype: Any = None, skip: Iterable[str] = ()) -> nn.Module:
    """Replaces the nn.Linear modules in `model` by PackedLinear, one after the other, and returns the model.

    `skip` names modules that stay with all they hold, by their path ("layers.0.mlp") or its last part
    ("lm_head"). Each original is dropped before the next is packed, so that no two copies of the model are in
    memory. A head that shares its weight with the embedding gets packed rows of its own: the embedding keeps
    the rows that it looks up. Modules of classes derived from nn.Linear stay, for their owner may read the
    weight itself.
    """
    return _replace_linears(model, lambda linear: PackedLinear(linear, dtype), skip)


def _bias_of(linear: nn.Linear, dtype: Any) -> Tensor | None:
    """The bias in `dtype`, in memory of its own."""
    return None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)


def _skipped(path: str, skip: frozenset[str]) -> bool:
    parts = path.split(".")
    return not skip.isdisjoint(parts) or any(".".join(parts[:n]) in skip for n in range(1, len(parts) + 1))


def _replace_linears(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], skip: Iterable[str]
) -> nn.Module:
    if type(model) is nn.Linear:
        raise ValueError(
            "the model is itself an nn.Linear, which has no parent to be replaced in; convert it alone"
        )
    stay = frozenset(skip)
    places: dict[int, list[tuple[nn.Module, str]]] = {}  # a layer that is used in two places stays one
    for path, parent in model.named_modules():
        for name, child in parent._modules.items():
            full = f"{path}.{name}" if path else name
            if type(child) is nn.Linear and not _skipped(full, stay):
                places.setdefault(id(child), []).append((parent, name))
    for same in places.values():
        made = make(getattr(*same[0]))  # nothing else may hold the original: it is dropped here
        for parent, name in same:
            setattr(parent, name, made)
    return model
