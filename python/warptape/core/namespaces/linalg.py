"""Linear algebra: solvers, decompositions, norms and products of matrices, by LAPACK on the host; tensors of
another device are copied there and back."""

from ... import _C
from ..._C import LinAlgError as LinAlgError

globals().update({name: op for name, op in vars(_C._linalg).items() if not name.startswith("_")})
