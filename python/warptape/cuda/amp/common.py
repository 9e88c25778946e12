"""torch.cuda.amp.common."""

from ..._missing import install_getattr as _install_getattr
from .._device import is_available

__all__ = ["amp_definitely_not_available"]


def amp_definitely_not_available() -> bool:
    """Whether there is no CUDA device, for which autocast and GradScaler would do something."""
    return not is_available()


_install_getattr(__name__)
