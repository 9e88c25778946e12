"""Functions of the top level that are not ops: tensor(), set_default_dtype(), legacy constructors."""

from __future__ import annotations

import copyreg
from typing import Any

from .. import _C
from .interchange import from_cuda_array, from_dlpack, frombuffer, has_cuda_array
from .registry import offered
from .tensor_class import Tensor, rebuild_tensor, warn_of_copy  # noqa: F401, older pickles find one here

__all__ = [
    "are_deterministic_algorithms_enabled",
    "as_tensor",
    "asarray",
    "finfo",
    "from_dlpack",
    "from_file",
    "frombuffer",
    "get_default_device",
    "get_default_dtype",
    "get_deterministic_debug_mode",
    "get_device_module",
    "get_float32_matmul_precision",
    "iinfo",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_storage",
    "is_tensor",
    "set_default_device",
    "set_default_dtype",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_printoptions",
    "tensor",
    "use_deterministic_algorithms",
]
_PLAIN = frozenset((bool, complex, float, int, list, tuple))  # data that is no storage


def tensor(
    data: Any,
    *,
    dtype: _C.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor with a copy of data: nested sequences of numbers, an ndarray, a tensor, or an object with
    `__cuda_array_interface__`.

    Raises:
        ValueError: nested sequences of unequal lengths.
        TypeError: something that is no number.

    >>> torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    tensor([[1., 2.],
            [3., 4.]])
    >>> torch.tensor([1, 2], dtype=torch.float64)
    tensor([1., 2.], dtype=torch.float64)
    """
    if _C._has_torch_function_mode():
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad, "pin_memory": pin_memory}
        return _C._handle_torch_function(tensor, (data,), data, **options)
    if has_cuda_array(data):
        data = from_cuda_array(data)
    if isinstance(data, Tensor):
        warn_of_copy("torch.tensor")
    elif data.__class__ not in _PLAIN and is_storage(data):
        data = offered("storage").bytes_as(data, dtype)
    result = _C._tensor(data, dtype, device, requires_grad and not pin_memory, True)
    return result.pin_memory().requires_grad_(requires_grad) if pin_memory else result


def as_tensor(data: Any, dtype: _C.dtype | None = None, device: Any = None) -> Tensor:
    """As tensor(), sharing memory (and history) where dtype and device allow it.

    >>> x = torch.tensor([1, 2])
    >>> torch.as_tensor(x) is x
    True
    """
    if _C._has_torch_function_mode():
        return _C._handle_torch_function(as_tensor, (data,), data, dtype=dtype, device=device)
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    if has_cuda_array(data):
        data = from_cuda_array(data)
    try:
        return _C._tensor(data, dtype, device, False, False)
    except TypeError as error:
        raise type(error)(f"as_tensor: {error}") from None


def asarray(
    obj: Any,
    *,
    dtype: _C.dtype | None = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of obj, sharing memory unless copy is set or a conversion needs one.

    >>> torch.asarray([1, 2])
    tensor([1, 2])
    """
    if has_cuda_array(obj):
        obj = from_cuda_array(obj)
    if _C._has_torch_function_mode():
        options = {"dtype": dtype, "device": device, "copy": copy, "requires_grad": requires_grad}
        return _C._handle_torch_function(asarray, (obj,), obj, **options)
    if is_storage(obj):
        kind = dtype or obj.dtype  # its bytes are read as that, not converted
        obj = _C._on_storage(obj._bytes, kind, (obj.nbytes() // kind.itemsize,), (1,), 0)
    elif type(obj).__name__ == "PyCapsule":
        obj = from_dlpack(obj)
    elif dtype is not None and isinstance(obj, bytes | bytearray | memoryview):
        obj = frombuffer(obj, dtype=dtype)  # as that, not converted
    return _C._tensor(obj, dtype, device, requires_grad, bool(copy))


def from_file(
    filename: str,
    shared: bool | None = None,
    size: int = 0,
    *,
    dtype: _C.dtype | None = None,
    layout: _C.layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A vector of `size` elements on a file's bytes, mapped into memory; with `shared` writes go to the file,
    which is made or lengthened where it must be.

    Raises:
        RuntimeError: the file is shorter, and not `shared`; another device than the CPU, or another layout
            than strided; pin_memory.
    """
    if device is not None and _C.device(device).type != "cpu":
        raise RuntimeError(f"from_file: a file is mapped into memory of the CPU, got device={device}")
    if layout is not None and str(layout) != "torch.strided":
        raise RuntimeError(f"from_file: expected layout torch.strided, got {layout}")
    if pin_memory:
        raise RuntimeError("from_file: tensors constructed from a file cannot be pinned")
    kind = dtype or get_default_dtype()
    storage = offered("storage").storage_class_of(kind).from_file(filename, bool(shared), size)
    return _C._on_storage(storage._bytes, kind, (size,), (1,), 0).requires_grad_(requires_grad)


def is_tensor(obj: object) -> bool:
    """Whether obj is a Tensor.

    >>> torch.is_tensor(torch.tensor(1)), torch.is_tensor(1)
    (True, False)
    """
    return isinstance(obj, Tensor)


def is_storage(obj: object) -> bool:
    """Whether obj is a storage.

    Args:
        obj: of any class.
    """
    return isinstance(obj, offered("storage").UntypedStorage)


def get_default_dtype() -> _C.dtype:
    """The dtype of new floating tensors.

    >>> torch.get_default_dtype()
    torch.float32
    """
    return _C._get_default_dtype()


def set_default_dtype(d: _C.dtype) -> None:
    """Sets the dtype of new floating tensors. TypeError unless it is a floating dtype.

    >>> torch.set_default_dtype(torch.float64)
    >>> torch.ones(1).dtype
    torch.float64
    >>> torch.set_default_dtype(torch.float32)
    """
    _C._set_default_dtype(d)


def get_default_device() -> _C.device:
    """The device of new tensors that name none; `set_default_device` and `with torch.device(..)` change it.

    >>> torch.get_default_device()
    device(type='cpu')
    >>> with torch.device("meta"):
    ...     print(torch.get_default_device())
    meta
    """
    return _C._get_default_device()


def get_device_module(device: Any = None) -> Any:
    """torch.cuda or torch.cpu: the module of a device, of the default one without.

    Raises:
        RuntimeError: a device that has none.
    """
    kind = _C.device(device).type if device is not None else get_default_device().type
    if kind not in ("cpu", "cuda"):
        raise RuntimeError(f"torch.get_device_module: there is no module of the device {kind!r}")
    return offered(kind)


def set_default_device(device: Any) -> None:
    """Sets where tensors are made that name no device; None for the CPU.

    Args:
        device: as "cuda:0".

    >>> torch.set_default_device("cpu")
    >>> torch.get_default_device()
    device(type='cpu')
    """
    _C._set_default_device("cpu" if device is None else device)


def get_float32_matmul_precision() -> str:
    """How exact float32 products on CUDA devices are: "highest", "high" or "medium".

    `set_float32_matmul_precision` says what each stands for.
    """
    from . import switches

    return switches.precision()


def set_float32_matmul_precision(precision: str) -> None:
    """Sets how exact float32 products on CUDA devices are: below "highest" they may run in TF32.

    >>> torch.set_float32_matmul_precision("high")
    >>> torch.get_float32_matmul_precision()
    'high'
    >>> torch.set_float32_matmul_precision("highest")
    """
    from . import switches

    switches.set_precision(precision)


_warn_only = False


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Makes ops without a deterministic form raise, with warn_only too. On the CPU all are deterministic.

    Raises:
        TypeError: something else than a bool.
    """
    global _warn_only
    for name, value in (("'mode' (position 1)", mode), ("'warn_only'", warn_only)):
        if not isinstance(value, bool):
            raise TypeError(
                f"_set_deterministic_algorithms(): argument {name} must be bool, not {type(value).__name__}"
            )
    _C._set_deterministic(mode)
    _warn_only = warn_only


def are_deterministic_algorithms_enabled() -> bool:
    """Whether ops without a deterministic form raise: what `use_deterministic_algorithms` was told last.

    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    return _C._get_deterministic()


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What use_deterministic_algorithms() was given; ops without a deterministic form raise all the same."""
    return _warn_only


_DEBUG_MODES = ("default", "warn", "error")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """use_deterministic_algorithms() by a number or a name: 0 "default", 1 "warn", 2 "error".

    Raises:
        TypeError: something else than a number or a name.
        RuntimeError: another one.
    """
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if debug_mode not in (*_DEBUG_MODES, 0, 1, 2):
        raise RuntimeError(
            "invalid value of debug_mode, expected one of `default`, `warn`, `error` or 0, 1, 2, but got "
            f"{debug_mode}"
        )
    mode = _DEBUG_MODES.index(debug_mode) if isinstance(debug_mode, str) else debug_mode
    use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


def get_deterministic_debug_mode() -> int:
    """What `set_deterministic_debug_mode` was told last, as a number.

    Returns:
        0 for "default", 1 for "warn", 2 for "error".

    >>> torch.get_deterministic_debug_mode()
    0
    """
    if not are_deterministic_algorithms_enabled():
        return 0
    return 1 if _warn_only else 2


def set_printoptions(**options: Any) -> None:
    """Sets precision, threshold, edgeitems, linewidth, sci_mode of printed tensors.

    Args:
        **options: and `profile`, one of "default", "short" and "full".

    >>> torch.set_printoptions(precision=2)
    >>> torch.tensor([1 / 3])
    tensor([0.33])
    >>> torch.set_printoptions(profile="default")
    """
    from . import printing

    printing.set_options(**options)


class _Limits:
    """Limits of a dtype, equal for equal ones."""

    dtype: str
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.dtype == self.dtype


class finfo(_Limits):
    """Limits of a floating dtype: bits, eps, max, min, tiny, smallest_normal, resolution.

    >>> torch.finfo(torch.float32).eps
    1.1920928955078125e-07
    """

    _LIMITS = {
        "float16": (16, 2.0**-10, 65504.0, 2.0**-14, 1e-3),
        "bfloat16": (16, 2.0**-7, (2.0 - 2.0**-7) * 2.0**127, 2.0**-126, 1e-2),
        "float32": (32, 2.0**-23, (2.0 - 2.0**-23) * 2.0**127, 2.0**-126, 1e-6),
        "float8_e4m3fn": (8, 0.125, 448.0, 2.0**-6, 1.0),
        "float8_e4m3fnuz": (8, 0.125, 240.0, 2.0**-7, 1.0),
        "float8_e5m2": (8, 0.25, 57344.0, 2.0**-14, 1.0),
        "float8_e5m2fnuz": (8, 0.125, 57344.0, 2.0**-15, 1.0),
        "float8_e8m0fnu": (8, 1.0, 2.0**127, 2.0**-127, 1.0),
        "float64": (64, 2.0**-52, 1.7976931348623157e308, 2.0**-1022, 1e-15),
    }

    def __init__(self, type: Any = None) -> None:
        name = (type or get_default_dtype()).to_real().__name__
        if name not in self._LIMITS:
            raise TypeError(f"finfo requires a floating point input type; use iinfo for {name}")
        self.dtype = name
        self.bits, self.eps, self.max, self.tiny, self.resolution = self._LIMITS[name]
        self.min, self.smallest_normal = -self.max if type is None or type.is_signed else self.tiny, self.tiny

    def __repr__(self) -> str:
        fields = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{f}={getattr(self, f):g}' for f in fields)}, dtype={self.dtype})"


class iinfo(_Limits):
    """Limits of an integer dtype: bits, max, min.

    >>> torch.iinfo(torch.int8).max
    127
    """

    def __init__(self, type: Any) -> None:
        if type.is_floating_point or type.is_complex or type is _C.bool:
            raise TypeError(f"iinfo requires an integer input type, got {type}")
        self.dtype, self.bits = type.__name__, 8 * type.itemsize
        self.max = 2 ** (self.bits - type.is_signed) - 1
        self.min = -self.max - 1 if type.is_signed else 0

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def _find_op(place: str, name: str) -> Any:
    return getattr(getattr(_C, place), name)


def _reduce_op(op: Any) -> tuple[Any, ...]:
    """How an op is pickled: by where it stands, for several places may have one of its name."""
    places = ("_functions", "_nn", "_linalg", "_private", "TensorBase")
    place = next(p for p in places if getattr(getattr(_C, p), op.__name__, None) is op)
    return _find_op, (place, op.__name__)


copyreg.pickle(type(_C._functions.add), _reduce_op)
