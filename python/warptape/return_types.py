"""The named tuples that ops return: `torch.return_types.max` has `values` and `indices`."""

from . import _C
from ._missing import install_getattr as _install_getattr

globals().update({name: kind for name, kind in vars(_C._return_types).items() if not name.startswith("_")})

_install_getattr(__name__)
