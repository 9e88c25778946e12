"""Linear algebra. Solvers and decompositions are LAPACK's, through NumPy, and LU factors NumPy's products, on
the host: tensors of another device are copied there and back."""

from types import FunctionType as _FunctionType

from .._arguments import checked as _checked
from .._missing import lookup as _lookup
from ._lapack import LinAlgError
from .decompositions import *
from .factors import *
from .norms import *
from .products import *
from .solvers import *

for _name, _function in list(globals().items()):
    if isinstance(_function, _FunctionType) and not _name.startswith("_"):
        globals()[_name] = _checked(_function)
__getattr__ = _lookup(__name__)
