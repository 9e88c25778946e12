"""What torch.cuda has for the names alone."""
