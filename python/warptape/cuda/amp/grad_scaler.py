"""torch.cuda.amp.grad_scaler."""

from ..._missing import install_getattr as _install_getattr
from ...amp.grad_scaler import OptState
from . import GradScaler

__all__ = ["GradScaler", "OptState"]

_install_getattr(__name__)
