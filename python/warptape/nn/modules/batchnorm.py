"""Batch and instance normalisation, with running statistics. Legend: N batch, C channels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor, offered

from .. import functional as F
from .module import Module
from .normalization import AffineNorm

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "SyncBatchNorm",
]


class _NormBase(AffineNorm):
    """What both share: weight, bias, buffers running_mean, running_var and num_batches_tracked."""

    _version = 2  # 2: num_batches_tracked is part of the state
    _dims: tuple[int, ...]  # that an input may have

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Weights of 1, biases of 0.

        Args:
            num_features: channels, C.
            eps: added to the variance before its root.
            momentum: the share of a batch's statistics in the new running ones; None: their mean so far.
            affine: whether a trained weight and bias follow.
            track_running_stats: whether running statistics are kept, for eval mode.
            bias: whether the bias is there, if `affine`.

        Args:
            device, dtype: of parameters and statistics.
        """
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._own(num_features, affine, bias, device, dtype)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        for name, start in (
            ("running_mean", lambda: wt.zeros(num_features, **factory)),
            ("running_var", lambda: wt.ones(num_features, **factory)),
            ("num_batches_tracked", lambda: wt.tensor(0, dtype=wt.long, device=device)),
        ):
            self.register_buffer(name, start() if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forgets what was tracked: mean 0, variance 1, no batches.

        Without tracked statistics nothing happens.
        """
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Sets weight to ones, bias to zeros, and forgets the running statistics.

        Without `affine` only the statistics change.
        """
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._dims:
            expected = " or ".join(f"{d}D" for d in self._dims)
            raise ValueError(f"expected {expected} input (got {input.dim()}D input)")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        key = prefix + "num_batches_tracked"
        version = local_metadata.get("version")
        if (version is None or version < 2) and self.track_running_stats and key not in state_dict:
            tracked = self.num_batches_tracked
            known = tracked is not None and not tracked.is_meta
            state_dict[key] = tracked if known else wt.tensor(0, dtype=wt.long)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    """[N, C, *] -> the same: each channel to mean 0 and variance 1 over the batch, times weight plus bias.

    While training the batch's own statistics are used and the running ones move towards them by `momentum`
    (None: the mean of all batches so far); in eval mode the running ones are used, where they are tracked.
    ValueError for an eps that is negative or, where the batch's own statistics are used, zero.
    """

    def _check_eps(self) -> None:
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        if from_batch and self.eps <= 0:  # a channel of equal values has no variance to divide by
            raise ValueError(f"batch_norm eps must be positive during training, but got {self.eps}")
        if self.eps < 0:
            raise ValueError(f"batch_norm eps must be non-negative, but got {self.eps}")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        self._check_eps()
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        update = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if update else None,
            self.running_var if update else None,
            self.weight,
            self.bias,
            from_batch,
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """[N, C] or [N, C, L]: batch normalisation of each channel.

    From Ioffe and Szegedy, "Batch Normalization" (2015), algorithm 1.

    >>> nn.BatchNorm1d(3)(torch.ones(4, 3)).shape
    torch.Size([4, 3])
    """

    _dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """[N, C, H, W]: batch normalisation of each channel.

    From Ioffe and Szegedy, "Batch Normalization" (2015), section 3.2: statistics are over N, H and W.

    >>> nn.BatchNorm2d(3).eval()(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """

    _dims = (4,)


class BatchNorm3d(_BatchNorm):
    """[N, C, D, H, W]: batch normalisation of each channel.

    Statistics are over N, D, H and W.

    >>> nn.BatchNorm3d(3)(torch.ones(1, 3, 4, 4, 4)).shape
    torch.Size([1, 3, 4, 4, 4])
    """

    _dims = (5,)


class _InstanceNorm(_NormBase):
    """[N, C, *] or [C, *] -> the same: each channel of each sample to mean 0 and variance 1."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """By default it has neither parameters nor running statistics.

        Args:
            num_features: channels, C.
            eps: added to the variance before its root.
            momentum: the share of a batch's statistics in the new running ones.
            affine: whether a trained weight and bias follow.
            track_running_stats: whether running statistics are kept and used in eval mode.
            device, dtype: of parameters and statistics.
            bias: whether the bias is there, if `affine`.

        Raises: ValueError in forward for an input of other dimensions, or of other channels where `affine`.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        batched = input.dim() == max(self._dims)
        dim = 1 if batched else 0
        channels = input.shape[dim]
        if channels != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={dim} to match num_features ({self.num_features}), but "
                    f"got: {channels}."
                )
            warnings.warn(
                f"input's size at dim={dim} does not match num_features. You can silence this warning by not "
                "passing in num_features, which is not used because affine=False",
                stacklevel=2,
            )
        out = F.instance_norm(
            input if batched else input.unsqueeze(0),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return out if batched else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """[N, C, L] or [C, L]: instance normalisation of each channel.

    From Ulyanov et al., "Instance Normalization" (2016).

    >>> nn.InstanceNorm1d(1)(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """

    _dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """[N, C, H, W] or [C, H, W]: instance normalisation of each channel.

    From Ulyanov et al., "Instance Normalization" (2016): the contrast of each image goes away.

    >>> nn.InstanceNorm2d(3)(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """

    _dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """[N, C, D, H, W] or [C, D, H, W]: instance normalisation of each channel.

    From Ulyanov et al., "Instance Normalization" (2016).

    >>> nn.InstanceNorm3d(3)(torch.ones(1, 3, 2, 2, 2)).shape
    torch.Size([1, 3, 2, 2, 2])
    """

    _dims = (4, 5)


class SyncBatchNorm(_BatchNorm):
    """[N, C, *] -> the same: batch normalisation over the batches of all ranks of a group, on any device.

    Statistics are summed over the ranks in float32 or wider; gradients flow through them to every rank's
    input. Where there is no process group, or one rank in it, it is an ordinary batch norm.

    Args:
        num_features: channels, C.
        eps: added to the variance before its root.
        momentum: the share of a batch's statistics in the new running ones; None: their mean so far.
        affine: whether a trained weight and bias follow.
        track_running_stats: whether running statistics are kept, for eval mode.
        process_group: the ranks whose batches count together; None for all.
        device, dtype: of parameters and statistics.
        bias: whether the bias is there, if `affine`.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    >>> nn.SyncBatchNorm.convert_sync_batchnorm(model)[1]
    SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Device = None,
        dtype: wt.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        dist = offered("distributed")
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not (from_batch and dist.is_initialized() and dist.get_world_size(self.process_group) > 1):
            return super().forward(input)
        self._check_input_dim(input)
        self._check_eps()
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input if input.dtype in (wt.float32, wt.float64) else input.float()
        ones = x.new_full((1,), float(x.numel() // x.shape[1]))
        sums = dist.functional.all_reduce_all_reduce(wt.cat([x.sum(dims), ones]), self.process_group)
        count = sums[-1].detach()
        mean = sums[:-1] / count  # [C]
        x = x - mean.view(shape)
        # From the deviations, not the squares: two small calls, and no digits lost where the mean is large.
        squares = dist.functional.all_reduce_all_reduce((x * x).sum(dims), self.process_group)
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
        """The module with every BatchNorm in it replaced by one of this class that has its tensors.

        The parameters and statistics are the same tensors as before, so that an optimizer made earlier still
        fits.

        Args:
            module: a batch norm, or a module with some inside, which is changed.
            process_group: the ranks whose batches count together; None for all.
        """
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
