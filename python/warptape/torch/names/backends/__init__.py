"""What torch.backends has for the names alone."""
