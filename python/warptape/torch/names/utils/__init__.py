"""What torch.utils has for the names alone."""
