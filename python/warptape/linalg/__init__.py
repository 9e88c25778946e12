"""Linear algebra. Solvers and decompositions are LAPACK's, through NumPy, on the host: tensors of another
device are copied there and back."""

from .._missing import lookup as _lookup
from ._lapack import LinAlgError
from .decompositions import *
from .norms import *
from .products import *
from .solvers import *

__getattr__ = _lookup(__name__)
