"""What torch.nn.modules has for the names alone."""
