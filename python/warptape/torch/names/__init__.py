"""Modules that are there for PyTorch's names alone; their public names leave `torch.names` out."""
