"""torch.cuda.amp.common."""

from warptape.cuda.devices import is_available

__all__ = ["amp_definitely_not_available"]


def amp_definitely_not_available() -> bool:
    """Whether there is no CUDA device, for which autocast and GradScaler would do something."""
    return not is_available()
