"""torch.cuda.amp.grad_scaler."""

from warptape.amp.grad_scaler import OptState

from . import GradScaler

__all__ = ["GradScaler", "OptState"]
