"""How a job can fail to meet: the errors of `distributed.run.run`, by PyTorch's names."""

from ...._missing import install_getattr as _install_getattr
from ...launcher.rendezvous import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError

__all__ = ["RendezvousConnectionError", "RendezvousError", "RendezvousTimeoutError"]

_install_getattr(__name__)
