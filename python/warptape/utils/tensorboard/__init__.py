"""torch.utils.tensorboard, over the tensorboard package (pip install tensorboard)."""

try:
    import tensorboard as _tensorboard
except ImportError as _error:
    raise ImportError(
        "warptape.utils.tensorboard writes by TensorBoard's own package: pip install tensorboard"
    ) from _error

from .writer import SummaryWriter

__all__ = ["SummaryWriter"]
