"""torch.distributed.algorithms: communication hooks of DistributedDataParallel; and `textbook`."""
