"""What torch.distributed.checkpoint has for the names alone."""
