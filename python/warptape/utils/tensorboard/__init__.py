"""torch.utils.tensorboard, over the tensorboard package (pip install tensorboard)."""

try:
    import tensorboard as _tensorboard
except ImportError as _error:
    raise ImportError(
        "warptape.utils.tensorboard writes by TensorBoard's own package: pip install tensorboard"
    ) from _error

from ..._missing import lookup as _lookup
from .writer import SummaryWriter

__all__ = ["SummaryWriter"]

__getattr__ = _lookup(__name__)
