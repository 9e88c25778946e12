"""warptape: a deep learning runtime with PyTorch's names.

`import warptape as torch` is meant to work: tensors, autograd, `nn`, `optim`, `utils.data`. Ops are
written in C++ and declared once; this package holds what a user may want to read.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from collections.abc import Callable as _Callable
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

# First, for it is what loads the modules of the package from here on.
from ._missing import install_getattr as _install_getattr
from ._missing import is_warn_always_enabled, set_warn_always
from ._missing import mark_absent as _mark_absent
from ._missing import offer_listed as _offer_listed
from ._missing import unusable as _unusable

try:
    from . import _C
except ImportError as error:
    from .tools.doctor import explain_import_error as _explain

    raise ImportError(_explain(error)) from error
from ._C import _mkldnn
from .version import __version__

_C._set_plugin_folder(_os.path.dirname(__file__))
_C._set_package_folders([folder for folder in _sys.path if isinstance(folder, str)])
_C._set_package_folder(_os.path.dirname(__file__))  # frames of it are not where a user stands
if _os.environ.get("WARPTAPE_LOGS"):
    from .core.logs import from_environment as _from_environment

    _from_environment(_os.environ["WARPTAPE_LOGS"])

from . import amp, autograd, nn  # noqa: E402
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
from .compiler import compile  # noqa: E402
from .core import *  # noqa: E402
from .core import Tensor, _assert, random  # noqa: E402
from .core import offer as _offer  # noqa: E402
from .core.legacy import types as _legacy_types  # noqa: E402
from .nn.parameter import Parameter as _Parameter  # noqa: E402
from .serialization import load, save  # noqa: E402

# What parts ask of those above them; all but the first load on first use.
_offer("root", lambda root=_sys.modules[__name__]: root)
_offer_listed(lambda: __import__("warptape.torch.listed").torch.listed)
_offer("autograd", lambda: autograd)
_offer("Module", lambda: nn.Module)
_offer("Parameter", lambda: _Parameter)
_offer("cpu", lambda: __import__("warptape.torch.names.cpu").torch.names.cpu)
_offer("cuda", lambda: __import__("warptape.cuda").cuda)
_offer("safetensors", lambda: __import__("warptape.utils.safetensors").utils.safetensors)
_offer("sparse", lambda: __import__("warptape.extras.sparse").extras.sparse)
_offer("func", lambda: __import__("warptape.func").func)
_offer("compile", lambda: compile)
_offer("norms", lambda: __import__("warptape.distributed.norms").distributed.norms)
_offer("pictures", lambda: __import__("warptape.tools.graph_drawing").tools.graph_drawing)
_offer("DistributedDataParallel", lambda: nn.parallel.DistributedDataParallel)
_offer("distributed", lambda: __import__("warptape.distributed").distributed)
_offer("ops", lambda: __import__("warptape.library").library.ops)
_offer("subclass_calls", lambda: __import__("warptape.library.subclass_calls").library.subclass_calls)
_offer("formula_flops", lambda: __import__("warptape.utils.flop_counter").utils.flop_counter.formula_flops)
_offer(
    "allow_mutation_on_saved_tensors",
    lambda: __import__("warptape.utils.saved_tensors").utils.saved_tensors.allow_mutation_on_saved_tensors,
)
_offer("summary", lambda: __import__("warptape.utils.model_summary").utils.model_summary.summarize)
_offer("trace_hashes", lambda: __import__("warptape.tools.trace").tools.trace.trace_hashes)
_offer("serve", lambda: __import__("warptape.serve.__main__").serve.__main__.main)
_offer("nested", lambda: __import__("warptape.extras.nested").extras.nested)
_C._register_types(Tensor, _Parameter)
_C._TensorMeta = type(Tensor)  # type: ignore[attr-defined]  # what PyTorch calls its metaclass
if _TYPE_CHECKING:
    from . import backends, cuda, distributed, distributions, optim, utils

globals().update(_legacy_types)
vars()["meshgrid"].__kwdefaults__ = {
    "indexing": None
}  # a library asks by it whether there is such an argument
_tensor_classes = set(_legacy_types.values())
_mark_absent(Tensor, "torch.Tensor")
_C.__path__ = []  # type: ignore[attr-defined]  # torch._C._functorch and others are imported as modules


def _internal(name: str) -> _Callable[[], _Any]:
    return lambda: getattr(__import__("warptape.torch.of_root").torch.of_root, name)


_dispatch_keys = ("DispatchKey", "DispatchKeySet", "_ExcludeDispatchKeyGuard", "_get_accelerator")
_install_getattr(
    "warptape._C",
    **{
        n: lambda n=n: getattr(__import__("warptape.torch.dispatch_keys").torch.dispatch_keys, n)
        for n in _dispatch_keys
    },
    Future=lambda: __import__("warptape.core.futures").core.futures.Future,
    ScriptMethod=lambda: _unusable("torch._C.ScriptMethod", "methods of TorchScript's compiler are not here"),
    _get_privateuse1_backend_name=lambda: lambda: "privateuseone",
    _jit_set_profiling_executor=_internal("_jit_setting"),
    _jit_set_profiling_mode=_internal("_jit_setting"),
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
    "per_channel_affine_float_qparams",
)
_unsupported_dtypes = (
    *("complex32", "chalf", "qint32", "quint4x2", "quint2x4", "float4_e2m1fn_x2"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in "1234567"),
)
_install_getattr(
    __name__,
    **{
        n: lambda n=n: getattr(__import__("warptape.core.unsupported_dtypes").core.unsupported_dtypes, n)
        for n in _unsupported_dtypes
    },
    TensorType=lambda: _unusable("torch.TensorType", "types of TorchScript's compiler are not here"),
    lobpcg=lambda: __import__("warptape.extras.lobpcg").extras.lobpcg.lobpcg,
    ops=lambda: __import__("warptape.library").library.ops,
    Stream=lambda: __import__("warptape.core.streams").core.streams.Stream,
    Event=lambda: __import__("warptape.core.streams").core.streams.Event,
    Future=lambda: __import__("warptape.core.futures").core.futures.Future,
    GradScaler=lambda: amp.GradScaler,
    get_autocast_gpu_dtype=lambda: (
        __import__("warptape.torch.names.amp.older").torch.names.amp.older.get_autocast_gpu_dtype
    ),
    _sample_dirichlet=lambda: (
        __import__(
            "warptape.extras.distributions.standard_gamma"
        ).extras.distributions.standard_gamma.standard_dirichlet
    ),
    ScriptModule=lambda: __import__("warptape.compiler.jit").compiler.jit.ScriptModule,
    PyTorchFileReader=lambda: _unusable("torch.PyTorchFileReader", "torch.load reads whole files"),
    __config__=lambda: __import__("warptape.torch.names.__config__").torch.names.__config__,
    __future__=lambda: __import__("warptape.torch.names.__future__").torch.names.__future__,
    **{n: lambda n=n: getattr(__import__("warptape.extras.sparse").extras.sparse, n) for n in _sparse},
    **{n: lambda n=n: getattr(__import__("warptape.ao.quantization").ao.quantization, n) for n in _codes},
    **{
        n: lambda n=n: getattr(__import__("warptape.torch.conditions").torch.conditions, n)
        for n in _conditions
    },
    **{n: lambda n=n: getattr(__import__("warptape.amp.grad_scaler").amp.grad_scaler, n) for n in _scaling},
    _debug_has_internal_overlap=_internal("_debug_has_internal_overlap"),
    _grouped_mm=_internal("_grouped_mm"),
    spmm=lambda: __import__("warptape.extras.sparse").extras.sparse.mm,
    dsmm=lambda: __import__("warptape.extras.sparse").extras.sparse.mm,
    vmap=lambda: __import__("warptape.func").func.vmap,
    cond=lambda: __import__("warptape.compiler.higher_order_ops").compiler.higher_order_ops.cond,
    while_loop=lambda: __import__("warptape.compiler.higher_order_ops").compiler.higher_order_ops.while_loop,
    **{n: lambda n=n: __import__("warptape.core.storage").core.storage.storage_class(n) for n in _storages},
    _storage_classes=lambda: {
        __import__("warptape.core.storage").core.storage.storage_class(n)
        for n in _storages
        if n != "TypedStorage"
    },
)
