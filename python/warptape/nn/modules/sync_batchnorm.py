"""Batch normalisation over the batches of several ranks. Legend: N batch, C channels."""

from __future__ import annotations

from typing import Any

import warptape
from warptape import Tensor

from .batchnorm import _BatchNorm
from .module import Module

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """[N, C, *] -> the same: batch normalisation over the batches of all ranks of a group, on any device.

    Statistics are summed over the ranks in float32 or wider; gradients flow through them to every rank's
    input. Where there is no process group, or one rank in it, it is an ordinary batch norm.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        from ... import distributed as dist
        from ...distributed import functional

        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not (from_batch and dist.is_initialized() and dist.get_world_size(self.process_group) > 1):
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input if input.dtype in (warptape.float32, warptape.float64) else input.float()
        ones = x.new_full((1,), float(x.numel() // x.shape[1]))
        sums = functional.all_reduce_all_reduce(warptape.cat([x.sum(dims), ones]), self.process_group)
        count = sums[-1].detach()
        mean = sums[:-1] / count  # [C]
        x = x - mean.view(shape)
        # From the deviations, not the squares: two small calls, and no digits lost where the mean is large.
        squares = functional.all_reduce_all_reduce((x * x).sum(dims), self.process_group)
        variance = squares / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = x * scale.view(shape)
        return (out if self.bias is None else out + self.bias.view(shape)).to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if int(count) < 2:
            raise ValueError("Expected more than 1 value per channel when training, over all ranks")
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, now in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
            running.add_((now - running).to(running.dtype), alpha=momentum)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with every BatchNorm in it replaced by one of this class that has its tensors."""
        out = module
        if isinstance(module, _BatchNorm):
            out = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            for name in ("weight", "bias"):
                out.register_parameter(name, getattr(module, name))
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                out.register_buffer(name, getattr(module, name))
            out.training = module.training
        for name, child in module.named_children():
            out.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return out
