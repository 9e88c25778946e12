"""torch.testing._internal: helpers of PyTorch's own tests, of which few are here."""

from ..._missing import install_getattr as _install_getattr

_install_getattr(__name__)
