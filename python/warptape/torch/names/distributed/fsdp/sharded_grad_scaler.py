"""torch.distributed.fsdp.sharded_grad_scaler: GradScaler, which asks all ranks that have parts."""

from warptape.amp import GradScaler as ShardedGradScaler

__all__ = ["ShardedGradScaler"]
