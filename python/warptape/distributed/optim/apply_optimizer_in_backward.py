"""torch.distributed.optim.apply_optimizer_in_backward: what lies beside DistributedDataParallel."""

from ...nn.parallel.backward_optimizers import _apply_optimizer_in_backward, _get_in_backward_optimizers

__all__ = ["_apply_optimizer_in_backward", "_get_in_backward_optimizers"]
