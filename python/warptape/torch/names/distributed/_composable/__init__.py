"""torch.distributed._composable: parallelism by functions that change a module in place."""

from warptape.parallel.shard import fully_shard, replicate

__all__ = ["fully_shard", "replicate"]
