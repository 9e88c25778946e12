"""Linear algebra. Solvers and decompositions are LAPACK's, through NumPy, and LU factors NumPy's products, on
the host: tensors of another device are copied there and back."""

from .._missing import lookup as _lookup
from ._lapack import LinAlgError
from .decompositions import *
from .factors import *
from .norms import *
from .products import *
from .solvers import *

__getattr__ = _lookup(__name__)
