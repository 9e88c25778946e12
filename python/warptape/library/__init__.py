"""torch.library: functions of programs and extensions as ops with a name, a gradient, a form without data."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from .. import _C
from .._missing import listed_value
from .aten import overloads_of
from .builtin_ops import BuiltinOp, builtin_op, is_builtin_library
from .custom_ops import CustomOpDef, CustomOpPacket, get_ctx, load_registered
from .op_schema import infer_schema, parse_schema
from .ops import OpOverload, OpOverloadPacket

__all__ = [
    "CustomOpDef",
    "Library",
    "custom_op",
    "define",
    "fallthrough_kernel",
    "get_ctx",
    "get_kernel",
    "impl",
    "impl_abstract",
    "infer_schema",
    "opcheck",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_torch_dispatch",
    "register_vmap",
    "triton_op",
    "wrap_triton",
]

_found: dict[str, CustomOpDef] = {}
# What waits for ops that are still to be defined, by name.
_waiting: dict[str, list[Callable[[CustomOpDef], Any]]] = {}
# The Library that defined an op, while it is alive; ops of none are defined for good.
_owners: dict[str, weakref.ref[Library]] = {}


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

    Args:
        name: namespace and name; the op is `torch.ops.<namespace>.<name>` then.
        fn: with annotations, of which `infer_schema` makes the schema.
        mutates_args: the names of the tensors that it changes, or "unknown". Their versions grow.
        device_types: the devices of the tensors that `fn` takes; by default all.
        schema: the schema, "(Tensor x) -> Tensor", where `fn` has no annotations.
        tags: kept as `tags` of the op.

    Raises:
        ValueError: a name without a namespace, a function whose schema cannot be inferred, a wrong schema.
    """
    if fn is None:
        return lambda later: custom_op(
            name, later, mutates_args=mutates_args, device_types=device_types, schema=schema, tags=tags
        )
    namespace, separator, last = name.partition("::")
    if not (namespace and separator and last.isidentifier()):
        raise ValueError(f"custom_op: expected a name such as 'mylib::op', got {name!r}")
    if schema is None:
        schema = infer_schema(fn, mutates_args=mutates_args)
    return _publish(CustomOpDef(name, fn, device_types, schema, tags or ()))


def _publish(op: CustomOpDef) -> CustomOpDef:
    _found[op._qualname] = op
    space, last = getattr(ops, op._namespace), op._name
    packet = vars(space).get(last)
    if not isinstance(packet, CustomOpPacket):
        packet = CustomOpPacket(f"{op._namespace}::{last}")
        setattr(space, last, packet)
    packet.add(op)
    for register in _waiting.pop(op._qualname, ()):
        register(op)
    return op


def _op(op: str | OpOverload | OpOverloadPacket | CustomOpDef) -> CustomOpDef | BuiltinOp:
    if isinstance(op, OpOverload):
        op = op.overloadpacket if isinstance(op.overloadpacket, BuiltinOp) else op.name()
    if isinstance(op, OpOverloadPacket) and not isinstance(op, BuiltinOp):
        op = op._qualified_op_name
    if not isinstance(op, str):
        return op
    op = op.removesuffix(".default")
    if op not in _found:
        _load_registered()
    if op in _found:
        return _found[op]
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(ops, namespace), name.partition(".")[0], None)
    if not isinstance(packet, BuiltinOp):
        raise RuntimeError(f"torch.library: there is no op {op!r} made by custom_op")
    return packet


def _impl(op: CustomOpDef | BuiltinOp, fn: Callable[..., Any], key: str) -> None:
    if isinstance(op, BuiltinOp):
        op.register(fn, key)
    else:
        op._register(fn, key)


def _impl_by_name(op: Any, fn: Callable[..., Any], key: str) -> None:
    """The same for an op or a name, which may be that of an op that is still to be defined."""
    try:
        packet = _op(op)
    except RuntimeError:
        _waiting.setdefault(op.removesuffix(".default"), []).append(lambda later: _impl(later, fn, key))
    else:
        _impl(packet, fn, key)


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
        qualname = f"{self.ns}::{name}"
        if (owner := _owners.get(qualname)) is not None and owner() is None:
            _found.pop(qualname, None)  # as in PyTorch, where a library takes its ops with it
        define(qualname, schema[len(name) :].lstrip())
        _owners[qualname] = weakref.ref(self)
        return name

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """`fn` as the op's function for a key.

        Keys: CPU, CUDA, Meta, CompositeExplicitAutograd (for all devices), CompositeImplicitAutograd (the
        default: made of ops that have gradients), Autograd (where an argument requires a gradient: one that
        records itself); for ops of warptape, which have all others, autocast's. `fallthrough_kernel` changes
        nothing.
        """
        if fn is fallthrough_kernel:
            return
        name = f"{self.ns}::{op_name}" if isinstance(op_name, str) and "::" not in op_name else op_name
        _impl_by_name(name, fn, dispatch_key or self.dispatch_key or "CompositeImplicitAutograd")


def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Makes the op "namespace::name" or, for an overload, "namespace::name.overload", without a function yet.

    Raises:
        ValueError: a name without a namespace, or a schema that is not "(arguments) -> results".
        RuntimeError: the op is defined already.
    """
    namespace, separator, last = qualname.partition("::")
    if not (namespace and separator and last.partition(".")[0].isidentifier()):
        raise ValueError(f"torch.library.define: expected a name such as 'mylib::op', got {qualname!r}")
    try:
        if not schema.startswith("("):
            raise ValueError("it begins with no argument")
        parse_schema(schema)
    except ValueError as error:
        raise ValueError(
            f"torch.library.define: expected a schema '(..) -> ..', got {schema!r}: {error}"
        ) from None
    if isinstance(getattr(getattr(ops, namespace), last.partition(".")[0], None), BuiltinOp):
        return
    qualname = qualname.removesuffix(".default")
    if qualname in _found:
        raise RuntimeError(
            f"Tried to register an operator ({qualname}{schema}) with the same name and overload name "
            "multiple times. Each overload's schema should only be registered with a single call to def()."
        )
    _publish(CustomOpDef(qualname, None, None, schema, tags if isinstance(tags, Sequence) else [tags]))


def impl(qualname: Any, types: str | Sequence[str] = "", func: Any = None, *, lib: Any = None) -> Any:
    """`func` as an op's function for kinds of devices, or "default" for all; a decorator without `func`.

    The op may be defined later. As in PyTorch, impl(library, name, dispatch_key="") registers as
    `Library.impl` does.
    """
    if isinstance(qualname, Library):
        name, key = types, func or ""

        def register(fn: Any) -> Any:
            qualname.impl(name, fn, key)
            return fn

        return register
    if func is None:
        return lambda later: impl(qualname, types, later)
    for kind in [types] if isinstance(types, str) else types:
        _impl_by_name(qualname, func, "CompositeExplicitAutograd" if kind == "default" else kind)
    return func


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """CustomOpDef.register_fake of an op or the name of one; a decorator without `func`.

    Ops of warptape have such a form themselves: for them, and for those that a library would have made by
    an extension module, nothing changes.
    """
    packet = _op(op)
    if isinstance(packet, BuiltinOp):
        return func if func is not None else lambda fn: fn
    return packet.register_fake(func) if func is not None else packet.register_fake


def register_vmap(op: Any, func: Any = None, /, **options: Any) -> Any:
    """`CustomOpDef.register_vmap` of an op or its name.

    Args:
        op: of custom_op, or its name.
        func: the rule.
        **options: without effect.

    Raises: RuntimeError for an op of warptape.
    """
    packet = _op(op)
    if not isinstance(packet, CustomOpDef):
        raise RuntimeError(f"register_vmap: {op!r} has a rule already")
    return packet.register_vmap(func)


def register_kernel(op: Any, device_types: Any, func: Any = None, /, **options: Any) -> Any:
    """CustomOpDef.register_kernel of an op or the name of one; a decorator without `func`.

    Args:
        op: of custom_op, or its name.
        device_types: "cpu", "cuda" or several.
        func: what runs there.
        **options: without effect.
    """
    if func is None:
        return lambda later: register_kernel(op, device_types, later)
    try:
        packet = _op(op)
    except RuntimeError:
        waits = _waiting.setdefault(op.removesuffix(".default"), [])
        waits.append(lambda later: later.register_kernel(device_types, func))
        return func
    if isinstance(packet, BuiltinOp):
        raise NotImplementedError(f"torch.library.register_kernel: {packet} has kernels, and takes no others")
    return packet.register_kernel(device_types, func)


def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None, **options: Any) -> None:
    """CustomOpDef.register_autograd of an op or the name of one. Ops of warptape keep their own gradient.

    Args:
        op: of custom_op, or its name.
        backward: of a context and gradients.
        setup_context: of a context, inputs and output.
        **options: without effect.
    """
    packet = _op(op)
    if not isinstance(packet, BuiltinOp):
        packet.register_autograd(backward, setup_context=setup_context)


def _custom(op: Any, what: str) -> CustomOpDef:
    packet = _op(op)
    if isinstance(packet, BuiltinOp):
        raise NotImplementedError(f"torch.library.{what}: {packet} is an op of warptape, and stays as it is")
    return packet


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, **options: Any) -> None:
    """`CustomOpDef.register_autocast` of an op or its name.

    Args:
        op: of custom_op, or its name.
        device_type: "cpu" or "cuda".
        cast_inputs: a dtype.
        **options: without effect.
    """
    _custom(op, "register_autocast").register_autocast(device_type, cast_inputs)


def register_torch_dispatch(op: Any, torch_dispatch_class: Any, func: Any = None, /, **options: Any) -> Any:
    """`CustomOpDef.register_torch_dispatch` of an op or its name; a decorator without `func`.

    Args:
        op: of custom_op, or its name.
        torch_dispatch_class: a class of tensors or modes.
        func: what runs for it.
        **options: without effect.
    """
    return _custom(op, "register_torch_dispatch").register_torch_dispatch(torch_dispatch_class, func)


def impl_abstract(qualname: Any, func: Any = None, **options: Any) -> Any:
    """The older name of `register_fake`.

    Args:
        qualname: of the op.
        func: its shapes and dtypes.
        **options: without effect.
    """
    return register_fake(qualname, func) if func is not None else register_fake(qualname)


def get_kernel(op: Any, dispatch_key: str) -> Callable[..., Any]:
    """The function that an op has for CPU, CUDA or Meta tensors. NotImplementedError where there is none.

    Args:
        op: of custom_op, or its name.
        dispatch_key: "CPU", "CUDA" or "Meta".
    """
    return _custom(op, "get_kernel")._kernel(str(dispatch_key).rpartition(".")[2].lower())


def fallthrough_kernel(*args: Any, **kwargs: Any) -> Any:
    """What `Library.impl` takes for a key that is to change nothing; it is never called.

    Args:
        *args, **kwargs: none.

    Raises: NotImplementedError always.
    """
    raise NotImplementedError("fallthrough_kernel() should never be called.")


def opcheck(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Tests that an op is registered as it should be, on the given arguments.

    Args:
        op: made by custom_op, or of torch.ops.
        args, kwargs: of one call.
        test_utils: which of the tests run, by default all: "test_schema" (the op changes what its schema
            says, and returns no argument), "test_autograd_registration" (results have gradients where they
            should), "test_faketensor" (the function of register_fake gives shapes, strides and dtypes of the
            results), "test_aot_dispatch_dynamic" (compiled, results and gradients are the same).
        raise_exception: whether the first failure is raised.
        atol, rtol: of the last of these; both or none.

    Returns:
        "SUCCESS" or the exception, by test.

    Raises:
        OpCheckError: a test failed; it names the test.
    """
    from .opcheck import opcheck as check

    return check(op, args, kwargs, **options)


def triton_op(
    name: str, fn: Any = None, /, *, mutates_args: str | Iterable[str], schema: str | None = None
) -> Any:
    """As `custom_op`, of a function that launches Triton's kernels by `wrap_triton`.

    Args:
        name: as "mine::add".
        fn: the function; a decorator without it.
        mutates_args: names of arguments that change.
        schema: the signature; the function's if None.
    """
    return custom_op(name, fn, mutates_args=mutates_args, schema=schema)


def wrap_triton(triton_kernel: Any, /) -> Any:
    """The kernel, launched as `wrap_triton(kernel)[grid](..)`. ImportError where Triton is not installed.

    Args:
        triton_kernel: of triton.jit.
    """
    try:
        from triton.runtime import Autotuner, JITFunction
    except ImportError:
        raise ImportError("wrap_triton: Triton is not installed: pip install triton") from None
    if not isinstance(triton_kernel, (JITFunction, Autotuner)):
        raise RuntimeError("wrap_triton only works on functions annotated with triton.jit or triton.autotune")
    return triton_kernel


# ---- ops of extension modules ----


def _load_registered() -> bool:
    """Takes in the ops that loaded extensions registered; whether there were any."""
    definitions, implementations = _C._extension_take()
    for space, text in definitions:
        name, bracket, rest = text.partition("(")
        name = f"{space}::{name.strip().rpartition('::')[2]}"
        if rest.startswith("..."):  # of a function, which tells its arguments itself
            _publish(CustomOpDef(name, None))
        else:
            define(name, bracket + rest)
    for name, key, kernel in implementations:
        _impl_by_name(name, _kernel_function(kernel), key)
    return bool(definitions or implementations)


load_registered.append(_load_registered)


def _kernel_function(kernel: Any) -> Callable[..., Any]:
    def run(*args: Any, **keywords: Any) -> Any:
        return _C._extension_call(kernel, (*args, *keywords.values()))

    return run


def load_extension_library(path: str) -> None:
    """Loads a shared library, with the ops that it registers.

    Raises:
        OSError: a file that is no library, or one that needs what is not there.
        ImportError: it was built for another version of warptape.
    """
    import ctypes

    before = len(_C._extension_refused())
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise OSError(f"Could not load this library: {error}") from error
    if refused := _C._extension_refused()[before:]:
        raise ImportError(refused[0])
    _load_registered()


class _Ops(ModuleType):
    """`torch.ops`: namespaces that appear when they are named, as the ops of a program do."""

    loaded_libraries: set[str] = set()

    def load_library(self, path: Any) -> None:
        """Loads a shared library with the ops that it registers. Where its ops are declared here, as
        torchvision's, the file is left alone.

        Raises:
            OSError: a file that is no library, or one that needs what is not there.
            ImportError: it was built for another version of warptape.
        """
        path = os.path.realpath(path)
        if not is_builtin_library(path):
            load_extension_library(path)
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
        if not name.startswith("__") and _load_registered() and name in vars(space):
            return vars(space)[name]
        if not name.startswith("__") and (function := listed_value(f"{space.__name__}.{name}")):
            kinds = overloads_of(name) if path == "ops.aten" else ("default",)
            op = OpOverloadPacket(f"{path.removeprefix('ops.')}::{name}", function, kinds)
            setattr(space, name, op)
            return op
        text = f"warptape has no torch.{path}.{name} yet"
        if refused := _C._extension_refused():
            text += f"; {refused[-1]}"
        raise AttributeError(text)

    return __getattr__


ops = _Ops("warptape.ops")
