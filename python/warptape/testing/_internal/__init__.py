"""torch.testing._internal: helpers of PyTorch's own tests, of which few are here."""
