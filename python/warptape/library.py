"""torch.library.custom_op: functions of a program as ops with a name, a gradient and a form without data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from . import _C
from ._builtin_ops import BuiltinOp, builtin_op, is_builtin_library
from ._missing import install_getattr as _install_getattr
from ._ops import OpOverload, OpOverloadPacket
from .autograd import Function

__all__ = [
    "CustomOpDef",
    "Library",
    "custom_op",
    "define",
    "impl",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_vmap",
]

_found: dict[str, CustomOpDef] = {}


class CustomOpDef:
    """An op made by custom_op: call it, or find it as `torch.ops.<namespace>.<name>`."""

    def __init__(self, name: str, fn: Callable[..., Any] | None, device_types: Any = None) -> None:
        self._qualname, self.__doc__ = name, getattr(fn, "__doc__", None)
        self._composite: Callable[..., Any] | None = None  # made of ops that have gradients
        self._kernels: dict[str | None, Callable[..., Any]] = {}
        self._fake: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None
        self._setup: Callable[..., Any] | None = None
        self._function: type[Function] = self._make_function()
        if fn is not None:
            self.register_kernel(device_types, fn)

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    @property
    def _opoverload(self) -> OpOverload:
        namespace, _, name = self._qualname.partition("::")
        return getattr(getattr(ops, namespace), name).default

    def _run(self, *args: Any) -> Any:
        place = next((a.device.type for a in args if isinstance(a, _C.TensorBase)), "cpu")
        kernel = self._fake if place == "meta" else self._kernels.get(place) or self._kernels.get(None)
        if kernel is None:
            raise NotImplementedError(
                f"{self._qualname}: no function for {place}; give one by "
                f"{'register_fake' if place == 'meta' else f'register_kernel({place!r})'}"
            )
        return kernel(*args)

    def _make_function(op) -> type[Function]:
        class CustomOp(Function):
            forward = staticmethod(op._run)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                if op._setup is not None:
                    op._setup(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                if op._backward is None:
                    raise RuntimeError(f"{op._qualname} has no backward; give one by register_autograd")
                return op._backward(ctx, *grads)

        return CustomOp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function of the arguments' device, recorded where one requires a gradient."""
        if _C._has_torch_function_mode():  # told of the op, not of what its function calls
            return _C._handle_torch_function(self._opoverload.overloadpacket, (), *args, **kwargs)
        return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._composite is not None and not self._kernels:
            return self._composite(*args, **kwargs)
        if kwargs:
            import inspect

            fn = next(iter(self._kernels.values()), self._run)
            bound = inspect.signature(fn).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        return self._function.apply(*args)

    def register_kernel(self, device_types: str | Sequence[str] | None, fn: Any = None, /) -> Any:
        """The function for tensors of some devices (None: of all); a decorator without `fn`."""
        if fn is None:
            return lambda later: self.register_kernel(device_types, later)
        kinds = [device_types] if device_types is None or isinstance(device_types, str) else device_types
        self._kernels.update(dict.fromkeys(kinds, fn))
        return fn

    def register_fake(self, fn: Any, /) -> Any:
        """The function for tensors on the meta device: shapes and dtypes only."""
        self._fake = fn
        return fn

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """backward(ctx, *grads) returns a gradient per argument; setup_context(ctx, inputs, output) saves."""
        self._backward, self._setup = backward, setup_context

    def register_vmap(self, func: Any = None, /) -> Any:
        """func(info, in_dims, *args) -> (outputs, their dims), for vmap; a decorator without `func`."""
        if func is None:
            return self.register_vmap
        self._function.vmap = staticmethod(func)  # type: ignore[method-assign]
        return func


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """Makes `fn` the op `name` ("namespace::name"); a decorator without `fn`.

    `mutates_args` and `schema` are accepted and not checked: nothing is compiled that would rely on them.

    Raises:
        ValueError: a name without a namespace.
    """
    if fn is None:
        return lambda later: custom_op(name, later, mutates_args=mutates_args, device_types=device_types)
    namespace, found, last = name.partition("::")
    if not (namespace and found and last.isidentifier()):
        raise ValueError(f"custom_op: expected a name such as 'mylib::op', got {name!r}")
    return _publish(CustomOpDef(name, fn, device_types))


def _publish(op: CustomOpDef) -> CustomOpDef:
    _found[op._qualname] = op
    namespace, _, last = op._qualname.partition("::")
    packet = OpOverloadPacket(op._qualname, op)
    packet.__wrapped__ = op._call  # type: ignore[attr-defined]
    setattr(getattr(ops, namespace), last, packet)
    return op


def _op(op: str | OpOverload | OpOverloadPacket | CustomOpDef) -> CustomOpDef | BuiltinOp:
    if isinstance(op, OpOverload):
        op = op.overloadpacket
    if isinstance(op, OpOverloadPacket) and not isinstance(op, BuiltinOp):
        op = op._qualified_op_name
    if not isinstance(op, str):
        return op
    if op in _found:
        return _found[op]
    namespace, _, name = op.partition("::")
    found = getattr(getattr(ops, namespace), name, None)
    if not isinstance(found, BuiltinOp):
        raise RuntimeError(f"torch.library: there is no op {op!r} made by custom_op")
    return found


def _impl(op: CustomOpDef | BuiltinOp, fn: Callable[..., Any], key: str) -> None:
    if isinstance(op, BuiltinOp):
        op.register(fn, key)
    elif key == "Meta":
        op.register_fake(fn)
    elif key == "CompositeImplicitAutograd":
        op._composite = fn
    elif key == "CompositeExplicitAutograd":
        op.register_kernel(None, fn)
    elif key.upper() in ("CPU", "CUDA"):
        op.register_kernel(key.lower(), fn)
    else:
        raise NotImplementedError(f"torch.library.impl: {op} takes no function for {key!r}")


class Library:
    """Library(ns, kind, dispatch_key=""): ops of a namespace, and functions for them.

    `kind` is "DEF", "FRAGMENT" or "IMPL"; with "IMPL" the ops are there already.

    Raises:
        ValueError: another kind.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise ValueError(f"Unsupported library kind: {kind}")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Makes the op "name(arguments) -> results", without a function yet; returns its name.

        Raises:
            ValueError: kind "IMPL", or a schema without a name.
        """
        if self.kind == "IMPL":
            raise ValueError("torch.library.Library.define: a library of kind IMPL defines no ops")
        name = schema.partition("(")[0].strip()
        define(f"{self.ns}::{name}", schema[len(name) :])
        return name

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """`fn` as the op's function for a key.

        Keys: CPU, CUDA, Meta, CompositeExplicitAutograd (for all devices), CompositeImplicitAutograd (the
        default: made of ops that have gradients); for ops of warptape, which have all others, autocast's.
        """
        name = f"{self.ns}::{op_name}" if isinstance(op_name, str) and "::" not in op_name else op_name
        _impl(_op(name), fn, dispatch_key or self.dispatch_key or "CompositeImplicitAutograd")


def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Makes the op "namespace::name", without a function yet; overloads of a name are one op.

    Raises:
        ValueError: a name without a namespace, or a schema that is not "(arguments) -> results".
    """
    namespace, found, last = qualname.partition("::")
    last = last.partition(".")[0]
    if not (namespace and found and last.isidentifier()):
        raise ValueError(f"torch.library.define: expected a name such as 'mylib::op', got {qualname!r}")
    if not re.match(r"\s*\(.*\)\s*->", schema, re.DOTALL):
        raise ValueError(f"torch.library.define: expected a schema '(..) -> ..', got {schema!r}")
    own = isinstance(getattr(getattr(ops, namespace), last, None), BuiltinOp)
    if not own and f"{namespace}::{last}" not in _found:
        _publish(CustomOpDef(f"{namespace}::{last}", None))


def impl(qualname: str, types: str | Sequence[str], func: Any = None, *, lib: Any = None) -> Any:
    """`func` as an op's function for kinds of devices, or "default" for all; a decorator without `func`."""
    if func is None:
        return lambda later: impl(qualname, types, later)
    for kind in [types] if isinstance(types, str) else types:
        _impl(_op(qualname), func, "CompositeExplicitAutograd" if kind == "default" else kind)
    return func


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """CustomOpDef.register_fake of an op or the name of one; a decorator without `func`.

    Ops of warptape have such a form themselves: for them, and for those that a library would have made by
    an extension module, nothing changes.
    """
    found = _op(op)
    if isinstance(found, BuiltinOp):
        return func if func is not None else lambda fn: fn
    return found.register_fake(func) if func is not None else found.register_fake


def register_vmap(op: Any, func: Any = None, /, **options: Any) -> Any:
    """`CustomOpDef.register_vmap` of an op or its name."""
    found = _op(op)
    if not isinstance(found, CustomOpDef):
        raise RuntimeError(f"register_vmap: {op!r} has a rule already")
    return found.register_vmap(func)


def register_kernel(op: Any, device_types: Any, func: Any = None, /, **options: Any) -> Any:
    """CustomOpDef.register_kernel of an op or the name of one; a decorator without `func`."""
    found = _op(op)
    if isinstance(found, BuiltinOp):
        raise NotImplementedError(f"torch.library.register_kernel: {found} has kernels, and takes no others")
    return found.register_kernel(device_types, func)


def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None, **options: Any) -> None:
    """CustomOpDef.register_autograd of an op or the name of one. Ops of warptape keep their own gradient."""
    found = _op(op)
    if not isinstance(found, BuiltinOp):
        found.register_autograd(backward, setup_context=setup_context)


class _Ops(ModuleType):
    """`torch.ops`: namespaces that appear when they are named, as the ops of a program do."""

    loaded_libraries: set[str] = set()

    def load_library(self, path: Any) -> None:
        """Loads a shared library. Ops that it registers with PyTorch are not seen here; where its ops are
        declared here, as torchvision's, the file is left alone.

        Raises:
            OSError: a file that is no library, or one that needs what is not there.
        """
        import ctypes

        path = os.path.realpath(path)
        try:
            if not is_builtin_library(path):
                ctypes.CDLL(path)
        except OSError as error:
            raise OSError(f"Could not load this library: {error}") from error
        self.loaded_libraries.add(path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        space = ModuleType(f"warptape.ops.{name}")
        space.__dict__["__getattr__"] = _find_op(space)
        setattr(self, name, space)
        return space


def _find_op(space: ModuleType) -> Callable[[str], Any]:
    path = space.__name__.removeprefix("warptape.")

    def __getattr__(name: str) -> Any:
        if op := builtin_op(f"{path.removeprefix('ops.')}::{name}"):
            setattr(space, name, op)
            return op
        raise AttributeError(f"warptape has no torch.{path}.{name} yet")

    return __getattr__


ops = _Ops("warptape.ops")

_install_getattr(__name__)
