"""Numbers recorded from PyTorch, and what draws them."""
