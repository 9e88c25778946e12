"""What DistributedDataParallel's rarer options do: low precision, gradients that come late, early steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ... import _C
from ...core.pytree import tree_map_only
from ...distributed import ReduceOp, all_reduce
from ..modules.module import Module


@dataclass
class _MixedPrecision:
    """dtypes of a wrapped module; None leaves what is there.

    Args:
        param_dtype: in which forward and backward use parameters and inputs.
        reduce_dtype: to which gradients are rounded on their way, a 16-bit one; by default `param_dtype`.
        buffer_dtype: of buffers.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    buffer_dtype: Any = None

    @property
    def on_the_way(self) -> Any:
        """The 16-bit dtype of gradients that travel, or None."""
        dtype = self.reduce_dtype or self.param_dtype
        return dtype if dtype in (wt.bfloat16, wt.float16) else None


def cast_floating(value: Any, dtype: wt.dtype | None) -> Any:
    """Casts the floating tensors in nested arguments.

    Args:
        value: tensors, and lists, tuples and dicts of them.
        dtype: None leaves all as they are.
    """
    if dtype is None:
        return value
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)


def cast_buffers(buffers: Iterable[Tensor], dtype: wt.dtype | None) -> None:
    """Casts floating buffers in place.

    Args:
        buffers: of a module.
        dtype: None leaves all as they are.
    """
    for b in buffers if dtype is not None else ():
        if b.is_floating_point():
            b.data = b.data.to(dtype)


@contextmanager
def parameters_cast(module: Module, parameters: Iterable[Tensor], dtype: wt.dtype | None) -> Iterator[None]:
    """A context in which a module computes with casts of parameters.

    Gradients flow through the casts back to the parameters.

    Args:
        module: whose parameters they are.
        parameters: floating ones are cast.
        dtype: None leaves all as they are.
    """
    casts: dict[int, Any] = {
        id(p): p.to(dtype) for p in (parameters if dtype is not None else ()) if p.is_floating_point()
    }
    before: list[tuple[Module, str, Any]] = []
    try:
        for m in module.modules() if casts else ():
            for name, p in m._parameters.items():
                if id(p) in casts:
                    before.append((m, name, p))
                    m._parameters[name] = casts[id(p)]
        yield
    finally:
        for m, name, p in before:
            m._parameters[name] = p


class DelayedReducer:
    """Averages the gradients of some parameters in one call for each dtype, at the end of the backward pass
    in which the gradient of another one came."""

    def __init__(self, group: Any, parameters: Sequence[Tensor], trigger: Tensor) -> None:
        self.group, self.parameters = group, list(parameters)
        self.reduces = False  # whether the pass to come does
        self._queued = False
        trigger.register_post_accumulate_grad_hook(self._queue)

    def _queue(self, parameter: Tensor) -> None:
        if self.reduces and not self._queued:
            self._queued = True
            _C._queue_callback(self.average)

    def average(self) -> None:
        """Averages what the parameters have; collective."""
        self._queued = False
        kinds: dict[Any, list[Tensor]] = {}
        for p in self.parameters:
            kinds.setdefault(p.dtype, []).append(p)
        with wt.no_grad():
            for same in kinds.values():
                grads = [p.grad if p.grad is not None else wt.zeros_like(p) for p in same]
                joined = wt.cat([g.flatten() for g in grads])
                all_reduce(joined, ReduceOp.AVG, self.group)
                for p, g in zip(same, joined.split([p.numel() for p in same]), strict=True):
                    p.grad = g.view(p.shape)
