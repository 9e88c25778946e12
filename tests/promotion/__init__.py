"""The table of type promotion, recorded from PyTorch."""
