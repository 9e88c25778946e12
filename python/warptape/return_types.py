"""The named tuples that ops return: `torch.return_types.max` has `values` and `indices`."""

from . import _C
from ._missing import lookup as _lookup

globals().update({name: kind for name, kind in vars(_C._return_types).items() if not name.startswith("_")})

__getattr__ = _lookup(__name__)
