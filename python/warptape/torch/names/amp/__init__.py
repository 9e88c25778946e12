"""What torch.amp has for the names alone."""
