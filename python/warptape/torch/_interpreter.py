"""Names of torch._C, torch.jit, torch.nn and others that stand for a few lines of Python here."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import typing
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from warptape import core as wt
from warptape import nn

from .. import _C, backends, cuda, library
from ..core import Tensor, printing
from ..library import op_schema as _op_schema
from ..library.custom_ops import CustomOpPacket
from ..nn.utils import stateless
from ..profiler import ProfilerAction
from . import _tools

# ---- torch._C --------------------------------------------------------------------------------------------


def transforms_are_active() -> bool:
    """Whether vmap, jvp or grad of torch.func run on this thread."""
    return _C._transform_depth() > 0


def has_kernel(name: str, key: object) -> bool:
    """Whether an op of torch.ops, "ns::op" or "ns::op.overload", runs for a dispatch key."""
    space, _, rest = name.partition("::")
    op = getattr(getattr(library.ops, space), rest.partition(".")[0], None)
    place = str(key).rpartition(".")[2].lower()
    if op is None:
        return False
    if not isinstance(op, CustomOpPacket):  # of the house: it runs on the CPU and on the meta device
        return place in ("cpu", "meta") or (place == "cuda" and cuda.is_available())
    try:
        library.get_kernel(op, place)
    except NotImplementedError:
        return False
    return True


def cudnn_is_enabled() -> bool:
    """torch.backends.cudnn.enabled."""
    return backends.cudnn.enabled  # type: ignore[attr-defined]


def set_math_reduction(enabled: bool, /) -> None:
    """Nothing: attention by plain ops sums as matrix products do."""


def set_thread_name(name: str) -> None:
    """Names the calling thread for the system's tools; 15 bytes are kept."""
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)


def is_alias_of(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return _C._storage_address(a) == _C._storage_address(b)


def has_function_mode() -> bool:
    """Whether a TorchFunctionMode is on."""
    return _C._has_torch_function_mode()


def parse_schema(schema: str, allow_typevars: bool = True) -> Any:
    """An op's schema from "ns::name.overload(Tensor x) -> Tensor"."""
    return _op_schema.parse_schema(schema)


# ---- torch.jit, torch.classes ----------------------------------------------------------------------------


class JitError(Exception):
    """torch.jit.Error, which TorchScript raises and nothing here does."""


class JitAttribute(NamedTuple):
    """torch.jit.Attribute: a value and the type that TorchScript should take it for."""

    value: Any
    type: Any


class _Classes(ModuleType):
    """torch.classes: namespaces of classes that C++ extensions of PyTorch register."""

    loaded_libraries: set[str] = set()
    __path__: list[str] = []

    def load_library(self, path: str) -> None:
        """torch.ops.load_library."""
        library.ops.load_library(path)
        self.loaded_libraries.add(path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Namespace(f"torch.classes.{name}")


class _Namespace(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        space = self.__name__.rpartition(".")[2]
        raise RuntimeError(
            f"Tried to instantiate class '{space}.{name}', but it does not exist! Ensure that it is "
            "registered via torch::class_"
        )


classes = _Classes("torch.classes")


def set_num_interop_threads(n: int, /) -> None:
    """Nothing: one thread runs the program, and the pool works within ops. RuntimeError for n < 1."""
    if n < 1:
        raise RuntimeError("set_num_interop_threads expects a positive integer")


# ---- tensors and how they print --------------------------------------------------------------------------


@contextlib.contextmanager
def printoptions(**kwargs: Any) -> Iterator[None]:
    """Within it tensors print by other options of set_printoptions."""
    before = dict(printing._options)
    printing.set_options(**kwargs)
    try:
        yield
    finally:
        printing._options.update(before)


def set_state(obj: object, state: object) -> Any:
    """Gives an object the attributes of a pickled state: a dict, or a pair with those of slots."""
    if isinstance(state, tuple) and len(state) != 2:
        raise RuntimeError(f"Invalid serialized state: {state}")
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            setattr(obj, name, value)
    return obj


def rebuild_from_type(func: Callable[..., Any], new_type: type, args: Any, state: object) -> Any:
    """A pickled tensor of a subclass: func(*args) as `new_type`, with its state."""
    value = func(*args)
    if type(value) is not new_type:
        value = value.as_subclass(new_type)
    own = getattr(type(value), "__setstate__", None)
    if own is not None and own is not getattr(Tensor, "__setstate__", None):
        own(value, state)
        return value
    return set_state(value, state)


def converted(ret: object, cls: type) -> Any:
    """The tensors of a result as a subclass."""
    if cls is Tensor:
        return ret
    if isinstance(ret, Tensor) and not isinstance(ret, cls):
        return ret.as_subclass(cls)
    if isinstance(ret, (tuple, list)):
        parts = [converted(r, cls) for r in ret]
        return type(ret)(*parts) if hasattr(ret, "_fields") else type(ret)(parts)
    return ret


class multithreading(_tools.DecoratorContextManager):
    """set_multithreading_enabled(mode): nothing, for one thread runs a backward pass."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        return

    def __exit__(self, *args: Any) -> None:
        return

    def clone(self) -> multithreading:
        """The same."""
        return type(self)(self.mode)


def no_wrap_functions() -> set[Any]:
    """What Tensor.__torch_function__ does not wrap into a subclass: attributes that have no class of it."""
    names = ("_base", "grad", "_grad")
    functions = [getattr(Tensor, name, None) for name in names]
    return {attribute.__get__ for attribute in functions if attribute is not None}


def default_schedule(_: int) -> ProfilerAction:
    """A profiler's schedule that records always."""
    return ProfilerAction.RECORD


class ExperimentalConfig:
    """torch.profiler._ExperimentalConfig: its options are kept and have no effect."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


# ---- torch.nn, torch.utils -------------------------------------------------------------------------------


def fill_uniform(tensor: Tensor, a: float, b: float, generator: Any = None) -> Tensor:
    """uniform_ without recording."""
    with wt.no_grad():
        return tensor.uniform_(a, b, generator=generator)


def none_or_dtype(input: Any) -> Any:
    """A tensor's dtype, None for None."""
    if input is None or isinstance(input, Tensor):
        return input if input is None else input.dtype
    raise RuntimeError("input to _none_or_dtype() must be None or torch.Tensor")


def canonical_mask(
    mask: Tensor | None,
    mask_name: str,
    other_type: Any,
    other_name: str,
    target_type: Any,
    check_other: bool = True,
) -> Tensor | None:
    """A mask of truth values as one of numbers to add, -inf where it is true; others stay."""
    if mask is None:
        return None
    if mask.dtype != wt.bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {mask_name} are supported")
    if check_other and other_type not in (None, mask.dtype):
        warnings.warn(
            f"Support for mismatched {mask_name} and {other_name} is deprecated. Use same type for both "
            "instead.",
            stacklevel=2,
        )
    if mask.is_floating_point():
        return mask
    return wt.zeros_like(mask, dtype=target_type).masked_fill_(mask, float("-inf"))


ParameterMeta = type(nn.Parameter)


def round_up_to_multiple(x: int, multiple: int) -> int:
    """The least multiple that is not below x."""
    return -(-x // multiple) * multiple


TensorOrTensors = typing.Union[Tensor, typing.Iterable[Tensor]]  # noqa: UP007  (as PyTorch's)


def without_grad(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function whose ops are not recorded."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with wt.no_grad():
            return func(*args, **kwargs)

    return call


def swap_tensor(module: nn.Module, name: str, tensor: Any, allow_missing: bool = False) -> Any:
    """Puts a tensor in the place of a module's parameter, buffer or attribute; returns what was there.

    None takes it away where it was not before.

    Raises:
        TypeError: what is no module, or no tensor.
        KeyError: a dotted name, or an empty one.
        AttributeError: there is no such attribute, and `allow_missing` is not set.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{module} is not an instance of torch.nn.Module")
    if tensor is not None and not isinstance(tensor, Tensor):
        raise TypeError(f"{tensor} is not an instance of torch.Tensor")
    if "." in name or name == "":
        raise KeyError('tensor name can\'t contain "."' if name else 'tensor name can\'t be empty string ""')
    for home in (module._parameters, module._buffers, module.__dict__):
        if name in home:
            _C._module_changed()
            before = home[name]
            if tensor is None:
                del home[name]
            else:
                home[name] = tensor
            return before
    if not allow_missing:
        raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
    if tensor is not None:
        setattr(module, name, tensor)
    return None


@contextlib.contextmanager
def reparametrized(
    module: nn.Module,
    parameters_and_buffers: dict[str, Tensor],
    tie_weights: bool = False,
    strict: bool = False,
    stack_weights: bool = False,
) -> Iterator[None]:
    """Within it a module has other tensors in place of its own, by their dotted names."""
    with stateless._replaced(module, parameters_and_buffers, tie_weights, strict):
        yield


_REDUCTIONS = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """The number that the dispatcher has for a reduction of losses. ValueError for another word."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return _REDUCTIONS[reduction]


def get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """The reduction that two older arguments of losses stand for."""
    if reduce is False:
        text = "none"
    else:
        text = "sum" if size_average is False else "mean"
    if emit_warning:
        warnings.warn(
            f"size_average and reduce args will be deprecated, please use reduction='{text}' instead.",
            stacklevel=3,
        )
    return text


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors of a tuple without their history, each wanting a gradient if it did; others as they are.

    Raises:
        RuntimeError: another container than a tuple.
    """
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs)}")
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs)


def has_triton_package() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """Whether Triton is installed, and there is a GPU for it."""
    return has_triton_package() and cuda.is_available()


dtype_abbrs = _tools.dtype_abbreviations()


# ---- torch.backends --------------------------------------------------------------------------------------


def available_false() -> bool:
    """False: this library is not used."""
    return False


def nnpack_flags(_enabled: bool) -> tuple[bool]:
    """Nothing; what it was: off."""
    return (False,)


@contextlib.contextmanager
def allow_mutation() -> Iterator[None]:
    """Nothing: switches can be set at any time."""
    yield


class SDPAParams(NamedTuple):
    """What a choice of attention's kernel is made from."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool = False
