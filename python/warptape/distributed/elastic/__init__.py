"""Names as in torch.distributed.elastic."""

from ..._missing import install_getattr as _install_getattr

_install_getattr(__name__)
