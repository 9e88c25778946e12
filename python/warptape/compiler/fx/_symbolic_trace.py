"""Tracer: runs a program on proxies and keeps what it did as a graph."""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from warptape import nn
from warptape.core import Tensor

from ..._missing import unusable
from ...core import pytree
from ...core.python_objects import _assert
from ._codegen import PyTreeInfo
from .graph import Graph
from .graph_module import GraphModule
from .node import Argument, base_types, map_aggregate
from .proxy import ParameterProxy, Proxy, TracerBase

if sys.version_info >= (3, 14):
    import annotationlib

__all__ = ["PH", "Tracer", "is_fx_tracing", "symbolic_trace", "wrap"]

F = TypeVar("F", bound="Callable[..., Any] | str")
_tracing = 0
# Functions that are leaves: the globals that have them, by the globals' id and the name.
_wrapped: dict[tuple[int, str], dict[str, Any]] = {}


class PHBase:
    """Marks, within `concrete_args`, a leaf that stays an argument."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()


def is_fx_tracing() -> bool:
    """Whether a program is being traced."""
    return _tracing > 0


def wrap(fn_or_name: F) -> F:
    """Makes a function of the calling module, or a builtin by its name, a leaf: its calls are recorded.

    Raises:
        NotImplementedError: called within a function.
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    _wrapped[id(frame.f_globals), name] = frame.f_globals
    return fn_or_name


def _assert_is_none(value: object, msg: str) -> None:
    if value is not None:
        raise AssertionError(msg)


def _find_proxy(*values: Any) -> Proxy | None:
    proxies: list[Proxy] = []
    map_aggregate(values, lambda x: proxies.append(x) if isinstance(x, Proxy) else None)
    return proxies[0] if proxies else None


def _leaf(orig: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is recorded where a proxy is among its arguments."""

    @functools.wraps(orig)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        proxy = _find_proxy(args, kwargs)
        if proxy is None:
            return orig(*args, **kwargs)
        result = proxy.tracer.create_proxy("call_function", orig, args, kwargs)
        result.node.meta["is_wrapped"] = True
        return result

    return wrapped


def _signature(fn: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations are evaluated now, not when the function was defined
        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def _annotation(fn: FunctionType, name: str) -> Any:
    """The type of an argument, also where annotations are texts."""
    if sys.version_info >= (3, 14):
        kind = annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF).get(name)
        if isinstance(kind, annotationlib.ForwardRef):
            return kind.__forward_arg__
    else:
        kind = fn.__annotations__.get(name)
    if isinstance(kind, str):
        try:
            return eval(kind, fn.__globals__)
        except Exception:
            return kind  # it names what is imported for type checkers alone
    return kind


# The names from here on to Tracer are PyTorch's: libraries with tracers of their own use them.
ScriptObject = unusable("torch.ScriptObject", "objects of TorchScript are not here")
_orig_module_call, _orig_module_getattr = nn.Module.__call__, nn.Module.__getattr__


def compatibility(is_backward_compatible: bool) -> Callable[[F], F]:
    """Decorator: how long PyTorch promises a function to stay. Changes nothing."""
    return lambda function: function


class _Patcher(contextlib.ExitStack):
    """Puts functions in the place of others until the block ends."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def patch(self, space: dict[str, Any], name: str, new: Any) -> None:
        if name in space:
            self.callback(space.__setitem__, name, space[name])
        else:
            self.callback(space.pop, name, None)
        space[name] = new

    def patch_method(self, cls: type, name: str, new_fn: Any, deduplicate: bool = True) -> None:
        if name in vars(cls):
            self.callback(setattr, cls, name, vars(cls)[name])
        else:
            self.callback(delattr, cls, name)
        setattr(cls, name, new_fn)


def _autowrap_check(patcher: _Patcher, frame_dict: dict[str, Any], function_ids: set[int]) -> None:
    """Makes functions leaves in the globals that have them."""
    if id(frame_dict) not in patcher.seen:
        patcher.seen.add(id(frame_dict))
        for name, value in [*frame_dict.items()]:
            if name[0] != "_" and callable(value) and id(value) in function_ids:
                patcher.patch(frame_dict, name, _leaf(value))


def _patch_wrapped_functions(patcher: _Patcher) -> None:
    """Makes those that `wrap` named leaves."""
    for (_, name), space in _wrapped.items():
        orig = space.get(name, getattr(builtins, name, None))
        if orig is not None:
            patcher.patch(space, name, _leaf(orig))


def _without_stars(fn: FunctionType, count: int) -> FunctionType:
    """`fn` with its keyword-only and starred arguments as positional ones."""
    flags = fn.__code__.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    code = fn.__code__.replace(co_flags=flags, co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0)
    return FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


class Tracer(TracerBase):
    """Traces modules and functions. Subclasses say what is a leaf and how calls are recorded.

    Args:
        autowrap_modules: whose functions are leaves.
        autowrap_functions: functions that are leaves wherever they are called from.
        param_shapes_constant: whether shapes of parameters are read while tracing, not by the graph.
    """

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        self._autowrap_search = list(autowrap_modules)
        ids = self._autowrap_function_ids = {id(f) for f in autowrap_functions}
        for module in autowrap_modules:
            ids.update(id(f) for n, f in vars(module).items() if n[0] != "_" and callable(f))
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[nn.Module, str] = {}
        self.tensor_attrs: dict[int, tuple[Tensor, str]] = {}
        self.module_stack = collections.OrderedDict()
        self.root: Any = nn.Module()

    # --- what subclasses may change ---

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether calls of a module are recorded as such: of layers yes, of Sequential and others no."""
        return type(m).__module__.startswith(("warptape.nn.", "torch.nn.")) and not isinstance(
            m, nn.Sequential
        )

    def path_of_module(self, mod: nn.Module) -> str:
        """The dotted name of a module. NameError where the root has none."""
        if mod not in self.submodule_paths:
            raise NameError("module is not installed as a submodule")
        return self.submodule_paths[mod]

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a call of a module gives: a proxy for a leaf's, else what its forward does with proxies."""
        path = self.path_of_module(m)
        before = self.module_stack.copy()
        self.module_stack[path] = (path, type(m))
        try:
            if self.is_leaf_module(m, path):
                return self.create_proxy("call_module", path, args, kwargs)
            return forward(*args, **kwargs)
        finally:
            self.module_stack = before

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Proxy]) -> Any:
        """What a module's attribute gives: a proxy for a parameter of the root."""
        if isinstance(attr_val, nn.Parameter):
            names = self.root.named_parameters()
        elif self.proxy_buffer_attributes and isinstance(attr_val, Tensor):
            names = self.root.named_buffers()
        else:
            return attr_val
        for name, value in names:
            if value is attr_val:
                if name not in parameter_proxy_cache:
                    parameter_proxy_cache[name] = self._attribute_proxy(name, value)
                return parameter_proxy_cache[name]
        return attr_val

    def _attribute_proxy(self, name: str, value: Tensor) -> Proxy:
        factory = None
        if self.param_shapes_constant:
            factory = lambda node: ParameterProxy(self, node, name, value)
        return self.create_proxy("get_attr", name, (), {}, proxy_factory_fn=factory)

    def get_fresh_qualname(self, prefix: str) -> str:
        """A name with this beginning that the root does not have."""
        return next(name for i in range(sys.maxsize) if not hasattr(self.root, name := f"{prefix}{i}"))

    def create_arg(self, a: object) -> Argument:
        """A value as an argument of a node: tensors and modules are read from the root."""
        if isinstance(a, nn.Parameter):
            for name, value in self.root.named_parameters():
                if value is a:
                    return self.create_node("get_attr", name, (), {})
            raise NameError("parameter is not a member of this module")
        if isinstance(a, Tensor):
            return self.create_node("get_attr", self._tensor_name(a), (), {})
        if isinstance(a, nn.Module):
            return self.create_node("get_attr", self.path_of_module(a), (), {})
        return super().create_arg(a)

    def _tensor_name(self, a: Tensor) -> str:
        for name, buffer in self.root.named_buffers():
            if buffer is a:
                return name
        if id(a) not in self.tensor_attrs:
            name = self.get_fresh_qualname("_tensor_constant")
            self.tensor_attrs[id(a)] = a, name
            setattr(self.root, name, a)
        return self.tensor_attrs[id(a)][1]

    # --- tracing ---

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
    ) -> Graph:
        """The graph of a module's forward, or of a function.

        Args:
            concrete_args: values of arguments; the graph checks that it is given the same.

        Raises:
            TraceError: it branches on, or iterates over, a value that is not known.
        """
        global _tracing
        self.root = root if isinstance(root, nn.Module) else nn.Module()
        fn = getattr(type(root), self.traced_func_name, None) if isinstance(root, nn.Module) else root
        if fn is None:
            name = type(root).__name__
            raise AssertionError(f"traced_func_name={self.traced_func_name} doesn't exist in {name}")
        if not isinstance(fn, FunctionType):
            raise AssertionError(f"Expected FunctionType, got {type(fn)}")
        self.submodule_paths = {module: name for name, module in self.root.named_modules()}
        self.graph = Graph(tracer_cls=type(self))
        self.tensor_attrs = {id(t): (t, name) for t, name in self._plain_tensors(self.root, "")}
        self.module_stack = collections.OrderedDict()
        run, args = self.create_args_for_root(fn, isinstance(root, nn.Module), concrete_args)
        _tracing += 1
        try:
            with self._patched(fn):
                result = run(*args)
            self.create_node(
                "output", "output", (self.create_arg(result),), {}, type_expr=_annotation(fn, "return")
            )
        finally:
            _tracing -= 1
        return self.graph

    def _plain_tensors(self, module: nn.Module, prefix: str) -> Iterator[tuple[Tensor, str]]:
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield value, prefix + name
        for name, child in module.named_children():
            yield from self._plain_tensors(child, f"{prefix}{name}.")

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: dict[str, Any] | None = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """The function to run and its arguments: the root, placeholders and concrete values."""
        fn: Any = inspect.unwrap(root_fn)
        code = fn.__code__
        names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        first: list[Any] = []
        if is_module:
            if not names:
                raise RuntimeError("``self`` argument cannot be part of *args expansion!")
            first = [self.root]
            del names[0]
        signature = _signature(fn).parameters
        concrete = concrete_args or {}
        args = [self._argument(signature[name], fn, concrete) for name in names]
        stars = [p for p in signature.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        for star in stars:
            mark = "*" if star.kind is star.VAR_POSITIONAL else "**"
            args.append(self.create_proxy("placeholder", mark + star.name, (), {}, f"_{star.name}"))
        run: Any = root_fn
        if stars or code.co_kwonlyargcount:
            run = _without_stars(fn, len(first) + len(args))
        flat, spec = pytree.tree_flatten(tuple(args))
        if all(child.is_leaf() for child in spec.children_specs):
            return run, first + args
        return self._flattened(run, first, names, spec), flat

    def _flattened(
        self, run: Callable[..., Any], first: list[Any], names: list[str], spec: pytree.TreeSpec
    ) -> Callable[..., Any]:
        """`run` on the leaves of its arguments; the graph then takes and gives trees."""
        self.graph._pytree_info = PyTreeInfo(names, spec, None)

        def flattened(*leaves: Any) -> list[Any]:
            out, out_spec = pytree.tree_flatten(run(*first, *pytree.tree_unflatten(leaves, spec)))
            self.graph._pytree_info = PyTreeInfo(names, spec, out_spec)
            return out

        return flattened

    def _argument(self, parameter: inspect.Parameter, fn: FunctionType, concrete_args: dict[str, Any]) -> Any:
        default = () if parameter.default is parameter.empty else (parameter.default,)
        name = parameter.name
        if name not in concrete_args:
            return self.create_proxy("placeholder", name, default, {}, type_expr=_annotation(fn, name))
        count = 0

        def guarded(x: object) -> Any:
            nonlocal count
            count += 1
            result = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            text = f"{name} has been specialized to have value {x} but got another value"
            if isinstance(x, PHBase):
                return result
            if x is None:
                self.create_proxy("call_function", _assert_is_none, (result, text), {})
            elif isinstance(x, base_types) and not isinstance(x, Tensor):
                self.create_proxy("call_function", _assert, (result == x, text), {})
            else:
                warnings.warn(
                    f"Was not able to add assertion to guarantee correct input {name} to specialized "
                    "function. It is up to the user to make sure that your inputs match the inputs you "
                    "specialized the function with.",
                    stacklevel=2,
                )
            return x

        return pytree.tree_map(guarded, concrete_args[name])

    @contextlib.contextmanager
    def _patched(self, fn: FunctionType) -> Iterator[None]:
        """Within it, calls of modules and wrapped functions and reads of parameters are recorded."""
        orig_call, orig_getattr = nn.Module.__call__, nn.Module.__getattr__
        cache: dict[str, Proxy] = {}

        def call(mod: nn.Module, *args: Any, **kwargs: Any) -> Any:
            _autowrap_check(patcher, getattr(mod.forward, "__globals__", {}), self._autowrap_function_ids)
            forward = functools.partial(orig_call, mod)
            return self.call_module(mod, forward, args, kwargs)

        def get(mod: nn.Module, attr: str) -> Any:
            return self.getattr(attr, orig_getattr(mod, attr), cache)

        with _Patcher() as patcher:
            patcher.patch_method(nn.Module, "__getattr__", get)
            patcher.patch_method(nn.Module, "__call__", call)
            _patch_wrapped_functions(patcher)
            for space in (fn.__globals__, *map(vars, self._autowrap_search)):
                _autowrap_check(patcher, space, self._autowrap_function_ids)
            yield


def symbolic_trace(
    root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
) -> GraphModule:
    """A module that does what `root`, a module or function, does: recorded by running it once on proxies.

    Args:
        concrete_args: values for arguments, by name, that the recorded program depends on.

    Raises:
        TraceError: it branches on, or iterates over, a value that is known only when it runs.
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, nn.Module) else root.__name__
    return GraphModule(tracer.root, graph, name)
