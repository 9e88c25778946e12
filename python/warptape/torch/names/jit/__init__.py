"""What torch.jit has for the names alone."""
