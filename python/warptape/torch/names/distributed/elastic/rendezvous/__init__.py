"""How a job can fail to meet: the errors of `distributed.run.run`, by PyTorch's names."""

from warptape.distributed.launcher.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

__all__ = ["RendezvousConnectionError", "RendezvousError", "RendezvousTimeoutError"]
