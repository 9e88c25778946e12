"""torch.distributed.nn: collectives that are recorded."""

from . import functional

__all__ = ["functional"]
