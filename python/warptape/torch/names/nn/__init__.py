"""What torch.nn has for the names alone."""
