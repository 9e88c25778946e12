"""torch.distributed.tensor.experimental._attention, whose names programs import."""

from warptape.parallel.context import context_parallel, context_parallel_unshard, set_rotate_method

__all__ = ["context_parallel", "context_parallel_unshard", "set_rotate_method"]
