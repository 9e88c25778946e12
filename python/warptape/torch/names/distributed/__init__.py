"""What torch.distributed has for the names alone."""
