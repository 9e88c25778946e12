"""torch.distributed.algorithms: communication hooks of DistributedDataParallel; and `textbook`."""

from .join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
