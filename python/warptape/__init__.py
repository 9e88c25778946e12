"""warptape: a deep learning runtime with PyTorch's names.

`import warptape as torch` is meant to work: tensors, autograd, `nn`, `optim`, `utils.data`. Ops are
written in C++ and declared once; this package holds what a user may want to read.
"""

from __future__ import annotations

import math as _math
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    from . import _C
except ImportError as error:
    from .doctor import explain_import_error as _explain

    raise ImportError(_explain(error)) from error
from ._C import (
    ArgumentError,
    DeviceError,
    DtypeError,
    Generator,
    OutOfMemoryError,
    ShapeError,
    Size,
    _mkldnn,
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
from .version import __version__

_C._set_plugin_folder(_os.path.dirname(__file__))
_C._set_package_folders([folder for folder in _sys.path if isinstance(folder, str)])
_C._set_package_folder(_os.path.dirname(__file__))  # frames of it are not where a user stands
if _os.environ.get("WARPTAPE_LOGS"):
    from ._logging import from_environment as _from_environment

    _from_environment(_os.environ["WARPTAPE_LOGS"])

float = float32
double = float64
half = float16
cfloat = complex64
cdouble = complex128
short = int16
int = int32
long = int64
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e

from ._tensor import Tensor  # noqa: E402
from .core import offer as _offer  # noqa: E402

_offer("sparse", lambda: __import__("warptape.extras.sparse").extras.sparse)
_offer("nested", lambda: __import__("warptape.extras.nested").extras.nested)

globals().update({name: op for name, op in vars(_C._functions).items() if not name.startswith("__")})

from . import _dispatch, amp, autograd, linalg, nn, random  # noqa: E402
from ._functions import *  # noqa: E402
from ._legacy import set_default_tensor_type  # noqa: E402
from ._legacy import types as _legacy_types  # noqa: E402
from ._missing import install_getattr as _install_getattr  # noqa: E402
from ._missing import is_warn_always_enabled, set_warn_always  # noqa: E402
from ._missing import mark_absent as _mark_absent  # noqa: E402
from ._missing import unusable as _unusable  # noqa: E402
from .amp import (  # noqa: E402
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
    set_autocast_cache_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from .autograd.grad_mode import (  # noqa: E402
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
)
from .compiler import compile  # noqa: E402
from .core.python_objects import *  # noqa: E402
from .core.python_objects import _assert  # noqa: E402
from .nn.parameter import Parameter as _Parameter  # noqa: E402
from .random import (  # noqa: E402
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from .serialization import load, save  # noqa: E402

_C._register_types(Tensor, _Parameter)
_C._TensorMeta = type(Tensor)  # type: ignore[attr-defined]  # what PyTorch calls its metaclass
for _name in ("DispatchKey", "DispatchKeySet", "_ExcludeDispatchKeyGuard", "_get_accelerator"):
    setattr(_C, _name, getattr(_dispatch, _name))
if _TYPE_CHECKING:
    from . import backends, cuda, distributed, distributions, optim, utils

globals().update(_legacy_types)
_tensor_classes = set(_legacy_types.values())
_mark_absent(Tensor, "torch.Tensor")
_C.__path__ = []  # type: ignore[attr-defined]  # torch._C._functorch and others are imported as modules
_install_getattr(
    "warptape._C",
    Future=lambda: __import__("warptape.futures").futures.Future,
    ScriptMethod=lambda: _unusable("torch._C.ScriptMethod", "methods of TorchScript's compiler are not here"),
    _get_privateuse1_backend_name=lambda: lambda: "privateuseone",
    _jit_set_profiling_executor=lambda: __import__("warptape._utils")._utils._jit_setting,
    _jit_set_profiling_mode=lambda: __import__("warptape._utils")._utils._jit_setting,
)
# cuda, backends, distributed, optim, utils on first use: not every program needs them.
_storages = (
    "UntypedStorage",
    "TypedStorage",
    "ComplexFloatStorage",
    "ComplexDoubleStorage",
    *(n.replace("Tensor", "Storage") for n in _legacy_types),
)
_conditions = (
    *(f"sym_{n}" for n in ("float", "int", "ite", "max", "min", "not", "sum")),
    *(f"_check{n}" for n in ("", "_index", "_value", "_type", "_not_implemented", "_is_size", "_tensor_all")),
    *("_check_tensor_all_with", "_assert_async", "_shape_as_tensor", "SymInt", "SymFloat", "SymBool", "Tag"),
)
_sparse = ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_compressed_tensor")
_scaling = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_")
_codes = (
    "quint8",
    "qint8",
    "qscheme",
    *(f"per_{x}_{y}" for x in ("tensor", "channel") for y in ("affine", "symmetric")),
)
_unsupported_dtypes = ("complex32", "chalf", "qint32", "quint4x2", "quint2x4")
_install_getattr(
    __name__,
    **{
        n: lambda n=n: getattr(__import__("warptape.core.unsupported_dtypes").core.unsupported_dtypes, n)
        for n in _unsupported_dtypes
    },
    TensorType=lambda: _unusable("torch.TensorType", "types of TorchScript's compiler are not here"),
    lobpcg=lambda: __import__("warptape._lobpcg")._lobpcg.lobpcg,
    ops=lambda: __import__("warptape.library").library.ops,
    Stream=lambda: __import__("warptape._streams")._streams.Stream,
    Event=lambda: __import__("warptape._streams")._streams.Event,
    Future=lambda: __import__("warptape.futures").futures.Future,
    GradScaler=lambda: amp.GradScaler,
    get_autocast_gpu_dtype=lambda: amp._older.get_autocast_gpu_dtype,
    _sample_dirichlet=lambda: (
        __import__("warptape.extras.distributions._gamma").extras.distributions._gamma.standard_dirichlet
    ),
    ScriptModule=lambda: __import__("warptape.jit").jit.ScriptModule,
    PyTorchFileReader=lambda: _unusable("torch.PyTorchFileReader", "torch.load reads whole files"),
    __config__=lambda: __import__("warptape.__config__").__config__,
    __future__=lambda: __import__("warptape.__future__").__future__,
    **{n: lambda n=n: getattr(__import__("warptape.extras.sparse").extras.sparse, n) for n in _sparse},
    **{n: lambda n=n: getattr(__import__("warptape.ao.quantization").ao.quantization, n) for n in _codes},
    **{n: lambda n=n: getattr(__import__("warptape._conditions")._conditions, n) for n in _conditions},
    **{n: lambda n=n: getattr(__import__("warptape.amp.grad_scaler").amp.grad_scaler, n) for n in _scaling},
    _debug_has_internal_overlap=lambda: __import__("warptape._utils")._utils._debug_has_internal_overlap,
    _grouped_mm=lambda: __import__("warptape._utils")._utils._grouped_mm,
    spmm=lambda: __import__("warptape.extras.sparse").extras.sparse.mm,
    dsmm=lambda: __import__("warptape.extras.sparse").extras.sparse.mm,
    vmap=lambda: __import__("warptape.func").func.vmap,
    cond=lambda: __import__("warptape._higher_order_ops")._higher_order_ops.cond,
    while_loop=lambda: __import__("warptape._higher_order_ops")._higher_order_ops.while_loop,
    **{n: lambda n=n: __import__("warptape.storage").storage.storage_class(n) for n in _storages},
    _storage_classes=lambda: {
        __import__("warptape.storage").storage.storage_class(n) for n in _storages if n != "TypedStorage"
    },
)
