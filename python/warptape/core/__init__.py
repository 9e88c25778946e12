"""What every other part builds on, and which knows none of them: Tensor, ops, dtypes, modes, random numbers.

Inside the package `from warptape import core as wt` gives the names that `import warptape` gives a program:
`wt.zeros`, `wt.float32`, `wt.no_grad`. What a part above offers to those below it registers with `offer`.
"""

import math as _math

from .. import _C
from .._C import (
    ArgumentError,
    DeviceError,
    DtypeError,
    Generator,
    OutOfMemoryError,
    ShapeError,
    Size,
    bfloat16,
    bool,
    channels_last,
    channels_last_3d,
    complex64,
    complex128,
    contiguous_format,
    default_generator,
    device,
    dtype,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    from_numpy,
    get_num_threads,
    int8,
    int16,
    int32,
    int64,
    is_grad_enabled,
    is_inference_mode_enabled,
    jagged,
    layout,
    memory_format,
    preserve_format,
    set_num_threads,
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .registry import offer, offered

float = float32
double = float64
half = float16
cfloat = complex64
cdouble = complex128
short = int16
int = int32
long = int64
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e

from .tensor_class import Tensor  # noqa: E402

globals().update({name: op for name, op in vars(_C._functions).items() if not name.startswith("__")})

from .functions import *  # noqa: E402
from .grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled  # noqa: E402
from .legacy import set_default_tensor_type  # noqa: E402
from .python_objects import *  # noqa: E402
from .python_objects import _assert  # noqa: E402
from .random import get_rng_state, initial_seed, manual_seed, seed, set_rng_state  # noqa: E402

offer("interchange", lambda: __import__("warptape.core.interchange").core.interchange)
offer("legacy", lambda: __import__("warptape.core.legacy").core.legacy)
offer("printing", lambda: __import__("warptape.core.printing").core.printing)
offer("storage", lambda: __import__("warptape.core.storage").core.storage)
offer("tree files", lambda: __import__("warptape.core.pytree_files").core.pytree_files)

# What the root has of it: all but the registry and the modules.
__all__ = [
    name
    for name, value in [*globals().items()]
    if (name[0] != "_" or name in vars(_C._functions) or name == "_assert")
    and not name.startswith("__")
    and not (type(value) is type(_math) or name in ("offer", "offered"))
]
