"""What torch.distributed.algorithms has for the names alone."""
