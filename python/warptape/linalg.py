"""Linear algebra: solvers, decompositions, norms and products of matrices, by LAPACK on the host; tensors of
another device are copied there and back."""

from . import _C
from ._C import LinAlgError as LinAlgError
from ._missing import install_getattr as _install_getattr

globals().update({name: op for name, op in vars(_C._linalg).items() if not name.startswith("_")})

_install_getattr(__name__)
