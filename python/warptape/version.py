"""The version of the package: the only place that states it. The rest are torch.version's names."""

__version__ = "0.1.0"
cuda = hip = xpu = None  # what PyTorch was built with
git_version, debug = "", False
