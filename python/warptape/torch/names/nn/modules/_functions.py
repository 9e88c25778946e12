"""torch.nn.modules._functions: what tensors pass where a module's backward hooks look at gradients."""

from __future__ import annotations

from typing import Any

from warptape.autograd import Function
from warptape.core import Tensor

__all__ = ["BackwardHookFunction"]


class BackwardHookFunction(Function):
    """Tensors as they are, through one node of the tape; those that require no gradient stay so."""

    @staticmethod
    def forward(ctx: Any, *args: Tensor) -> tuple[Tensor, ...]:
        """The tensors, as views."""
        out = tuple(t.view_as(t) for t in args)
        ctx.mark_non_differentiable(*(o for o, t in zip(out, args, strict=True) if not t.requires_grad))
        return out

    @staticmethod
    def backward(ctx: Any, *args: Tensor) -> tuple[Tensor, ...]:
        """The gradients as they are."""
        return args
