"""Small helpers of torch.utils, torch.fx, torch._prims_common and others that libraries import."""

from __future__ import annotations

import ast
import functools
import inspect
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSet, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from warptape import core as wt
from warptape import nn

from .. import _C
from ..core import Tensor
from ..fx import GraphModule

T = TypeVar("T")


class OrderedSet(MutableSet[T], Generic[T]):
    """A set that keeps the order in which its elements came."""

    def __init__(self, iterable: Iterable[T] | None = None) -> None:
        self._dict = dict.fromkeys(iterable or ())

    def __contains__(self, elem: object) -> bool:
        return elem in self._dict

    def __iter__(self) -> Iterator[T]:
        return iter(self._dict)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __repr__(self) -> str:
        return f"OrderedSet({[*self._dict]})"

    def add(self, elem: T) -> None:
        """Adds an element; one that is there stays where it is."""
        self._dict[elem] = None

    def discard(self, elem: T) -> None:
        """Removes an element, if it is there."""
        self._dict.pop(elem, None)

    def pop(self) -> T:
        """Removes and returns the newest element. KeyError where there is none."""
        if not self._dict:
            raise KeyError("pop from an empty set")
        return self._dict.popitem()[0]

    def copy(self) -> OrderedSet[T]:
        """Another set with the same elements."""
        return OrderedSet(self)

    def update(self, *others: Iterable[T]) -> None:
        """Adds the elements of others."""
        for other in others:
            self._dict.update(dict.fromkeys(other))

    def union(self, *others: Iterable[T]) -> OrderedSet[T]:
        """The elements of this set and of others."""
        out = self.copy()
        out.update(*others)
        return out

    def intersection(self, *others: Iterable[T]) -> OrderedSet[T]:
        """The elements that all have."""
        there = [set(other) for other in others]
        return OrderedSet(e for e in self if all(e in other for other in there))

    def difference(self, *others: Iterable[T]) -> OrderedSet[T]:
        """The elements that none of the others has."""
        there = set().union(*others)
        return OrderedSet(e for e in self if e not in there)

    def issubset(self, other: Iterable[Any]) -> bool:
        """Whether all elements are in the other."""
        return set(self._dict) <= set(other)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Whether all elements of the other are here."""
        return all(e in self._dict for e in other)


class WeakIdKeyDictionary(MutableMapping[Any, Any]):
    """A dict by the identity of its keys, from which a key goes as soon as nothing else holds it."""

    def __init__(self, dict: Any = None) -> None:
        self._items: dict[int, tuple[Any, Any]] = {}
        self.update(dict or {})

    def _forget(self, key: int) -> Callable[[Any], None]:
        items = weakref.ref(self)

        def forget(_: object) -> None:
            here = items()
            if here is not None:
                here._items.pop(key, None)

        return forget

    def __setitem__(self, key: object, value: object) -> None:
        self._items[id(key)] = (weakref.ref(key, self._forget(id(key))), value)

    def __getitem__(self, key: object) -> Any:
        return self._items[id(key)][1]

    def __delitem__(self, key: object) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Any]:
        for ref, _ in [*self._items.values()]:
            key = ref()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return len(self._items)


class DecoratorContextManager:
    """A context manager whose objects decorate functions, generators and methods of classes, too.

    `__enter__` and `__exit__` are the subclass's; `clone` makes the one for each call.
    """

    def __call__(self, orig_func: Callable[..., Any]) -> Any:
        if inspect.isclass(orig_func):
            raise TypeError("a class cannot be decorated with a context manager; decorate its methods")
        if inspect.isgeneratorfunction(orig_func):

            @functools.wraps(orig_func)
            def generate(*args: Any, **kwargs: Any) -> Any:
                generator = orig_func(*args, **kwargs)
                sent = None
                while True:
                    with self.clone():  # type: ignore[attr-defined]
                        try:
                            item = generator.send(sent)
                        except StopIteration as end:
                            return end.value
                    sent = yield item

            return generate

        @functools.wraps(orig_func)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.clone():  # type: ignore[attr-defined]
                return orig_func(*args, **kwargs)

        return call

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        raise NotImplementedError

    def clone(self) -> Any:
        """A context like this one, for a call."""
        return self.__class__()


class NoParamDecoratorContextManager(DecoratorContextManager):
    """The same, by which `@name` decorates without brackets."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        instance = super().__new__(cls)
        return instance if orig_func is None else instance(orig_func)


def dtype_abbreviations() -> dict[Any, str]:
    """Short names of dtypes: "f32" of float32."""
    names = [
        "uint8",
        "u8",
        "int8",
        "i8",
        "int16",
        "i16",
        "int32",
        "i32",
        "int64",
        "i64",
        "float16",
        "f16",
        "float32",
        "f32",
        "float64",
        "f64",
        "complex64",
        "c64",
        "complex128",
        "c128",
        "bool",
        "b8",
        "bfloat16",
        "bf16",
        "float8_e5m2",
        "f8e5m2",
        "float8_e4m3fn",
        "f8e4m3fn",
        "uint16",
        "u16",
        "uint32",
        "u32",
        "uint64",
        "u64",
    ]
    return {getattr(wt, n): short for n, short in zip(names[::2], names[1::2]) if hasattr(wt, n)}


# ---- torch._prims_common ---------------------------------------------------------------------------------

DeviceLikeType = typing.Union[str, _C.device, int]  # noqa: UP007  (PyTorch's annotations are unions)


def canonicalize_dims(rank: int, indices: Any, wrap_scalar: bool = True) -> Any:
    """Dims counted from the front. IndexError for one that is not there."""
    if not isinstance(indices, int):
        return tuple(canonicalize_dims(rank, i, wrap_scalar) for i in indices)
    rank = 1 if rank == 0 and wrap_scalar else rank
    if not -rank <= indices < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {indices})"
        )
    return indices % rank


def get_computation_dtype(dtype: wt.dtype) -> Any:
    """float32 for the half dtypes, else the dtype itself."""
    return wt.float32 if dtype in (wt.bfloat16, wt.float16) else dtype


def is_contiguous_or_false(a: Tensor) -> bool:
    """Whether the elements lie in order."""
    return a.is_contiguous()


def make_contiguous_strides_for(shape: Iterable[int], row_major: bool = True) -> tuple[int, ...]:
    """The strides of elements that lie in order; of matrices by columns with row_major=False."""
    sizes, step, strides = list(shape), 1, list[int]()
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= max(size, 1)
    if row_major or len(sizes) < 2:
        return tuple(strides)
    return (*strides[:-2], 1, max(sizes[-2], 1))


def suggest_memory_format(x: Tensor) -> Any:
    """channels_last or channels_last_3d for a tensor that has its channels last, else contiguous_format."""
    for ndim, memory_format in ((4, wt.channels_last), (5, wt.channels_last_3d)):
        if x.ndim == ndim and not x.is_contiguous() and x.is_contiguous(memory_format=memory_format):
            return memory_format
    return wt.contiguous_format


def maybe_convert_to_dtype(a: Any, dtype: wt.dtype) -> Any:
    """A tensor, or the tensors of a list, in a dtype; None stays None."""
    if isinstance(a, Tensor):
        return a if a.dtype == dtype else a.to(dtype)
    if isinstance(a, (list, tuple)):
        return type(a)(maybe_convert_to_dtype(x, dtype) for x in a)
    return a


# ---- torch.fx --------------------------------------------------------------------------------------------


class PassResult(NamedTuple):
    """What a pass returns: the module, and whether it changed."""

    graph_module: GraphModule
    modified: bool


class PassBase:
    """A pass over a module of a graph: `call` is the subclass's, `requires` and `ensures` may be."""

    def __call__(self, graph_module: GraphModule) -> PassResult | None:
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    def call(self, graph_module: GraphModule) -> PassResult | None:
        """Changes the module."""
        raise NotImplementedError

    def requires(self, graph_module: GraphModule) -> None:
        """What must hold before; nothing."""

    def ensures(self, graph_module: GraphModule) -> None:
        """What must hold after; nothing."""


class PassManager:
    """Runs passes in order, up to `steps` times while they change the module."""

    def __init__(
        self, passes: Sequence[Callable[..., Any]] | None = None, steps: int | None = None, **options: Any
    ) -> None:
        self.passes, self.steps = [*(passes or [])], steps or 1

    def add_pass(self, _pass: Callable[..., Any]) -> None:
        """Adds a pass at the end."""
        self.passes.append(_pass)

    def __call__(self, module: Any) -> PassResult:
        overall = False
        for _ in range(self.steps):
            changed = False
            for run in self.passes:
                result = run(module)
                if isinstance(result, PassResult):
                    module, changed = result.graph_module, changed or result.modified
                elif result is not None:
                    module = result
            overall = overall or changed
            if not changed:
                break
        return PassResult(module, overall)


def make_graph_module(*args: Any, graph_module_cls: type | None = None, **kwargs: Any) -> Any:
    """GraphModule(..): none is made later than it is asked for."""
    return (graph_module_cls or GraphModule)(*args, **kwargs)


def get_attr(model: nn.Module, attr_name: str) -> Any:
    """What a dotted name of a module stands for."""
    return functools.reduce(getattr, attr_name.split("."), model)


def assign_attr(from_obj: object, to_module: nn.Module, target: str) -> None:
    """Gives a module an attribute by its dotted name; modules on the way are made, a tensor is a buffer."""
    *path, field = target.split(".")
    for item in path:
        if getattr(to_module, item, None) is None:
            setattr(to_module, item, nn.Module())
        to_module = getattr(to_module, item)
    if isinstance(from_obj, Tensor) and not isinstance(from_obj, nn.Parameter):
        to_module.register_buffer(field, from_obj)
    else:
        setattr(to_module, field, from_obj)


# ---- enumerations of PyTorch's extension -----------------------------------------------------------------


def _enumeration(name: str, members: str, start: int = 0) -> Any:
    return Enum(name, [(m, i) for i, m in enumerate(members.split(), start)], module="torch")


TrainingMode = _enumeration("TrainingMode", "EVAL PRESERVE TRAINING")
OperatorExportTypes = _enumeration(
    "OperatorExportTypes", "ONNX ONNX_ATEN ONNX_ATEN_FALLBACK ONNX_FALLTHROUGH"
)
TensorProtoDataType = _enumeration(
    "TensorProtoDataType",
    """UNDEFINED FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64 COMPLEX64
    COMPLEX128 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ""",
)
ScalingType = _enumeration(
    "ScalingType", "TensorWise RowWise BlockWise1x16 BlockWise1x32 BlockWise1x128 BlockWise128x128"
)
SwizzleType = _enumeration("SwizzleType", "NO_SWIZZLE SWIZZLE_32_4_4")
BackendType = _enumeration("BackendType", "UNDEFINED GLOO NCCL UCC MPI XCCL CUSTOM")
RpcBackendType = _enumeration("BackendType", "TENSORPIPE")
# Actions of PyTorch's pipelines beside those of parallel.pipeline.
Computation = _enumeration("Computation", "OVERLAP_F_B REDUCE_GRAD RESHARD UNSHARD")
AffinityMode = _enumeration("AffinityMode", "NODE SOCKET EXCLUSIVE CORE_COMPLEX")
ErrorType = _enumeration("ErrorType", "SUCCESS TIMEOUT COMM_ERROR REMOTE_ERROR")
onnx_types = {
    scalar: getattr(TensorProtoDataType, code)
    for scalar, code in ast.literal_eval(
        """{"Byte": "UINT8", "Char": "INT8", "Double": "DOUBLE", "Float": "FLOAT", "Half": "FLOAT16",
        "Int": "INT32", "Long": "INT64", "Short": "INT16", "Bool": "BOOL", "ComplexFloat": "COMPLEX64",
        "ComplexDouble": "COMPLEX128", "BFloat16": "BFLOAT16", "Undefined": "UNDEFINED"}"""
    ).items()
}


# ---- functions that PyTorch has removed ------------------------------------------------------------------


def _removed(name: str, instead: str) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        """RuntimeError: PyTorch has removed it."""
        raise RuntimeError(
            f"This function was deprecated since version 1.9 and is now removed: torch.{name}. Use "
            f"torch.{instead} instead."
        )

    return fail


lstsq = _removed("lstsq", "linalg.lstsq")
symeig = _removed("symeig", "linalg.eigh or torch.linalg.eigvalsh")
matrix_rank = _removed("matrix_rank", "linalg.matrix_rank")


def check_with(error_type: type[Exception], cond: bool, message: Callable[[], str]) -> None:
    """error_type with message() unless `cond`."""
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if not cond:
        raise error_type(str(message()))


def factory_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """The device, dtype and memory_format among arguments, those in `factory_kwargs` among them.

    Raises:
        TypeError: another argument.
    """
    if kwargs is None:
        return {}
    simple = {"device", "dtype", "memory_format"}
    if unknown := kwargs.keys() - {*simple, "factory_kwargs"}:
        raise TypeError(f"unexpected kwargs {unknown}")
    out = dict(kwargs.get("factory_kwargs", {}))
    for key in simple & kwargs.keys():
        if key in out:
            raise TypeError(f"{key} specified twice, in **kwargs and in factory_kwargs")
        out[key] = kwargs[key]
    return out
