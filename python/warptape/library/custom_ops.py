"""Ops that programs and extensions make: functions by device, gradient, form without data, and schema."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _C
from .._missing import say_once
from ..amp import autocast, is_autocast_enabled
from ..amp.autocast_mode import _cast
from ..autograd import Function, no_grad
from ..core import offered
from .op_schema import bind, check_results, parse_schema
from .ops import FunctionSchema, OpOverload, OpOverloadPacket

_AUTOGRAD_KEYS = ("Autograd", "AutogradCPU", "AutogradCUDA")
# What PyTorch knows. Functions for devices that are not here are kept and never called.
_DEVICES = (
    "cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla",
    "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone",
)  # fmt: skip
# Set by library.py: takes in what extensions registered meanwhile.
load_registered: list[Callable[[], bool]] = []
current_fake: list[FakeImplCtx] = []
_by_name: dict[str, CustomOpDef] = {}  # the last that was made


class FakeImplCtx:
    """What a function that register_fake was given may ask for by `torch.library.get_ctx()`."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """A size that depends on data. NotImplementedError: the sizes of meta tensors are known."""
        raise NotImplementedError(
            "get_ctx().new_dynamic_size(): sizes of meta tensors are numbers, and none is unknown"
        )

    create_unbacked_symint = new_dynamic_size


def get_ctx() -> FakeImplCtx:
    """The context that a function of `register_fake` may ask while it runs.

    Raises: RuntimeError outside of such a function.
    """
    if not current_fake:
        raise RuntimeError("torch.library.get_ctx() can only be called inside of a function of register_fake")
    return current_fake[-1]


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, _C.TensorBase):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


# ---- in graphs: one op, which calls those of here by name ----


def _encoded(value: Any, written: bool, lists: tuple[list[Any], list[Any]]) -> Any:
    """What JSON has for an argument, whose tensors go into one of the two lists."""
    if isinstance(value, _C.TensorBase):
        lists[written].append(value)
        return {"written" if written else "tensor": len(lists[written]) - 1}
    if isinstance(value, (list, tuple)):
        return [_encoded(v, written, lists) for v in value]
    if isinstance(value, _C.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, _C.device):
        return {"device": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotImplementedError(f"a graph cannot hold an argument of a custom op that is a {type(value)}")


def _decoded(value: Any, tensors: Sequence[Any], written: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_decoded(v, tensors, written) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, what),) = value.items()
    if kind == "dtype":
        return getattr(_C, what)
    if kind == "device":
        return _C.device(what)
    return (written if kind == "written" else tensors)[what]


def _recorded_call(op: CustomOpDef, positional: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Calls an op so that the graph which is recorded calls it, whatever its function does."""
    lists: tuple[list[Any], list[Any]] = [], []
    arguments = op._schema.arguments if op._schema is not None else []
    writes = {i for i, a in enumerate(arguments) if a.is_write}
    named_writes = {a.name for a in arguments if a.is_write}
    args = [_encoded(v, i in writes, lists) for i, v in enumerate(positional)]
    kwargs = {k: _encoded(v, k in named_writes, lists) for k, v in keywords.items()}
    out = _C._private._custom_op(op._qualname, json.dumps([args, kwargs]), *lists)
    if op._returns_list():
        return [*out]
    if op._schema is not None:
        return None if not op._schema.returns else out[0] if len(op._schema.returns) == 1 else tuple(out)
    return out[0] if len(out) == 1 else tuple(out) if out else None


def call_from_graph(name: str, arguments: str, tensors: list[Any], written: list[Any]) -> list[Any]:
    """Runs an op for a graph; the tensors that it returns.

    Raises:
        NotImplementedError: an op that no program has made, or a result that is no tensor.
    """
    op = _by_name.get(name)
    if op is None:
        raise NotImplementedError(f"graph: there is no custom op {name}; import the module that makes it")
    positional, named = json.loads(arguments)
    args = _decoded(positional, tensors, written)
    kwargs = {k: _decoded(v, tensors, written) for k, v in named.items()}
    out = op._recorded(args, kwargs, [*_tensors([*args, *kwargs.values()])])
    results = [] if out is None else [*out] if isinstance(out, (tuple, list)) else [out]
    if not all(isinstance(t, _C.TensorBase) for t in results):
        raise NotImplementedError(f"graph: {name} returned {out!r}; a graph has tensors alone")
    return results


class _Structured(Function):
    """A call with lists of tensors or keywords: `call` says how the flat tensors and values go into it."""

    @staticmethod
    def forward(call: _FlatArguments, *flat: Any) -> Any:
        return call.op._run(*call.unflatten(flat), **call.keywords)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call = ctx._call = inputs[0]
        call.op._set_up(ctx, call.unflatten(inputs[1:]), call.keywords, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx._call.flatten_gradients(ctx._call.op._run_backward(ctx, grads))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: _FlatArguments, *flat: Any) -> Any:
        return call.op._mapped(info, call.unflatten(in_dims[1:]), call.unflatten(flat), call.keywords)


class _FlatArguments:
    """The arguments of one call, flattened: lists of tensors become their items."""

    def __init__(self, op: CustomOpDef, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.op, self.keywords = op, keywords
        self.counts = [len(a) if self.is_list(a) else None for a in args]
        self.flat = [item for a in args for item in (a if self.is_list(a) else [a])]

    @staticmethod
    def is_list(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and any(isinstance(item, _C.TensorBase) for item in value)

    def unflatten(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        items = iter(flat)
        return tuple(next(items) if n is None else [next(items) for _ in range(n)] for n in self.counts)

    def flatten_gradients(self, found: Any) -> list[Any]:
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(self.counts):
            raise RuntimeError(
                f"{self.op}: expected {len(self.counts)} gradients from backward, got {len(found)}"
            )
        flat: list[Any] = []
        for gradient, count in zip(found, self.counts, strict=True):
            if count is None:
                flat.append(gradient)
            else:
                flat += [None] * count if gradient is None else gradient
        return flat


def _stacked(items: list[Any]) -> tuple[Any, int | None]:
    """The results of the elements, and where their dim is."""
    if not isinstance(items[0], _C.TensorBase):
        return items[0], None
    from warptape import core as wt

    return wt.stack(items), 0


class CustomOpDef:
    """An op made by custom_op: call it, or find it as `torch.ops.<namespace>.<name>`."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any] | None,
        device_types: Any = None,
        schema: str | None = None,
        tags: Sequence[Any] = (),
    ) -> None:
        self._qualname, self.__doc__ = name, getattr(fn, "__doc__", None)
        self._schema: FunctionSchema | None = None if schema is None else parse_schema(f"{name}{schema}")
        self.tags = [*tags]
        self._packet: CustomOpPacket | None = None  # it is in
        self._init_fn = fn
        self._composite: Callable[..., Any] | None = None  # made of ops that have gradients
        self._autograd: Callable[..., Any] | None = None  # for the key Autograd: it records itself
        self._kernels: dict[str | None, Callable[..., Any]] = {}
        self._disabled: set[str] = set()
        self._fake: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None
        self._setup: Callable[..., Any] | None = None
        self._autocast: dict[str, Any] = {}  # the dtype by device
        self._subclasses: dict[type, Callable[..., Any]] = {}
        self._vmap: Callable[..., Any] | None = None
        self._autocast_function: dict[str, Callable[..., Any]] = {}  # by device
        self._function: type[Function] = self._make_function()
        if fn is not None:
            self.register_kernel(device_types, fn)
        _by_name[name] = self

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    @property
    def _namespace(self) -> str:
        return self._qualname.partition("::")[0]

    @property
    def _name(self) -> str:
        return self._qualname.partition("::")[2].partition(".")[0]

    @property
    def _opoverload(self) -> OpOverload:
        return getattr(self._packet, self._qualname.partition(".")[2] or "default")

    # ---- running ----

    def _kernel(self, place: str) -> Callable[..., Any]:
        if place == "meta":
            kernel = self._fake or ((lambda *_, **__: None) if self._only_changes() else None)
        else:
            kernel = self._kernels.get(place)
            if kernel is None or place in self._disabled:
                kernel = self._kernels.get(None) or (self._init_fn if place in self._disabled else None)
        if kernel is not None:
            return kernel
        if load_registered and load_registered[0]():  # by an extension that was loaded since
            return self._kernel(place)
        raise NotImplementedError(
            f"{self._qualname}: no function for {place}; give one by "
            f"{'register_fake' if place == 'meta' else f'register_kernel({place!r})'}"
        )

    def _only_changes(self) -> bool:
        """Whether it returns nothing: then it has nothing to do without data."""
        return self._schema is not None and self._schema.is_mutable and not self._schema.returns

    def _run(self, *args: Any, **keywords: Any) -> Any:
        if _C._any_dispatches(args, keywords):
            out = offered("subclass_calls").ask(self._opoverload, args, keywords)
            if out is not NotImplemented:
                return out
        tensors = [*_tensors([*args, *keywords.values()])]
        kernel = self._kernel(tensors[0].device.type if tensors else "cpu")
        if kernel is self._fake:
            current_fake.append(FakeImplCtx())
            try:
                return self._checked(tensors, kernel(*args, **keywords))
            finally:
                current_fake.pop()
        return self._checked(tensors, kernel(*args, **keywords))

    def _checked(self, given: Sequence[Any], out: Any) -> Any:
        if self._schema is None:
            return out
        if self._init_fn is not None:
            self._check_aliases(given, out)
        return check_results(self._schema, out)

    def _check_aliases(self, given: Sequence[Any], out: Any) -> None:
        """RuntimeError where a result has its memory from an argument or from another result."""
        seen = {_C._storage_address(t) for t in given}
        for t in _tensors([out]):
            if (address := _C._storage_address(t)) in seen:
                raise RuntimeError(
                    f"{self._qualname}: The output of this custom operator (1) must not also be an input to "
                    "this custom operator and (2) may not alias any inputs to this custom operator or other "
                    "returns. Return a clone of the offending output tensor(s) (e.g. return x.clone())."
                )
            seen.add(address)

    def _set_up(self, ctx: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        if self._setup is not None:
            self._setup(ctx, inputs, *([keywords] if keywords else []), output)

    def _run_backward(self, ctx: Any, grads: Sequence[Any]) -> Any:
        if self._backward is None:
            raise RuntimeError(
                f"Trying to backward through {self._namespace}.{self._name}.default but no autograd formula "
                "was registered. Please use register_autograd to add one."
            )
        return self._backward(ctx, [*grads]) if self._returns_list() else self._backward(ctx, *grads)

    def _returns_list(self) -> bool:
        returns = self._schema.returns if self._schema else []
        return len(returns) == 1 and returns[0].type == "Tensor[]"

    def _make_function(op) -> type[Function]:
        class CustomOp(Function):
            forward = staticmethod(op._run)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                op._set_up(ctx, inputs, {}, output)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return op._run_backward(ctx, grads)

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return op._mapped(info, in_dims, args, {})

        return CustomOp

    def _mapped(
        self, info: Any, in_dims: Sequence[Any], args: Sequence[Any], keywords: dict[str, Any]
    ) -> Any:
        """The call under vmap: by the rule of register_vmap, or one call for each element of the batch."""
        if next(_tensors([*keywords.values()]), None) is not None:
            raise NotImplementedError(f"{self._qualname}: vmap of an op with keyword-only tensors")
        if self._vmap is not None:
            return self._vmap(info, in_dims, *args, **keywords)
        if info.batch_size == 0:
            raise RuntimeError(
                f"Batching rule not implemented for {self._qualname}. The fallback path does not support "
                "vmap over dims of size 0."
            )
        say_once(
            "There is a performance drop because we have not yet implemented the batching rule for "
            f"{self._qualname}: it is called for each element; give one by register_vmap",
            stacklevel=6,
        )

        def element(dim: Any, value: Any, i: int) -> Any:
            if isinstance(dim, (list, tuple)):
                return [element(d, v, i) for d, v in zip(dim, value, strict=True)]
            return value if dim is None else value.select(dim, i)

        calls = [
            self(*(element(d, x, i) for d, x in zip(in_dims, args, strict=True)), **keywords)
            for i in range(info.batch_size)
        ]
        first = calls[0]
        if isinstance(first, (list, tuple)):
            pairs = [_stacked([c[k] for c in calls]) for k in range(len(first))]
            return tuple(type(first)(x) for x in zip(*pairs, strict=True))
        return _stacked(calls)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        if self._schema is not None:
            return bind(self._schema, args, kwargs)
        if not kwargs:
            return args, {}
        import inspect

        fn = self._composite or next(iter(self._kernels.values()), self._run)
        bound = inspect.signature(fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function of the arguments' device, recorded where one requires a gradient."""
        if _C._has_torch_function_mode():  # told of the op, not of what its function calls
            op = self._packet if getattr(self._packet, "__wrapped__", None) else self._opoverload
            return _C._handle_torch_function(op, (), *args, **kwargs)
        return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        positional, keywords = self._bind(args, kwargs)
        tensors = [*_tensors([*positional, *keywords.values()])]
        for kind, rule in self._subclasses.items():
            if any(isinstance(t, kind) for t in tensors):
                types = tuple({type(t) for t in tensors if isinstance(t, kind)})
                return rule(kind, self._opoverload, types, tuple(positional), keywords)
        place = tensors[0].device.type if tensors else "cpu"
        if place in self._autocast_function and is_autocast_enabled(place):
            return self._autocast_function[place](*positional, **keywords)
        if place in self._autocast and is_autocast_enabled(place):
            dtype = self._autocast[place]
            positional, keywords = _cast([*positional], place, dtype), _cast(keywords, place, dtype)
            with autocast(place, enabled=False):
                return self._recorded(positional, keywords, tensors)
        return self._recorded(positional, keywords, tensors)

    def _recorded(self, positional: Sequence[Any], keywords: dict[str, Any], given: Sequence[Any]) -> Any:
        if self._composite is not None and not self._has_kernel(given):
            out = self._composite(*positional, **keywords)
            return out if self._schema is None else check_results(self._schema, out)
        if _C._tracer() is not None:
            return _recorded_call(self, positional, keywords)
        wants = _C.is_grad_enabled() and any(t.requires_grad for t in given)
        if self._autograd is not None and (wants or not self._kernels):
            return self._autograd(*positional, **keywords)
        if self._schema is not None and self._schema.is_mutable:
            with no_grad():
                out = self._run(*positional, **keywords)
            self._note_changes(positional, keywords)
            return out
        if keywords or any(map(_FlatArguments.is_list, positional)):
            call = _FlatArguments(self, positional, keywords)
            out = _Structured.apply(call, *call.flat)
        else:
            out = self._function.apply(*positional)
        return [*out] if self._returns_list() else out

    def _has_kernel(self, given: Sequence[Any]) -> bool:
        """Whether there is a function for the arguments' device besides one that is made of ops."""
        place = given[0].device.type if given else "cpu"
        return None in self._kernels or place in self._kernels or (place == "meta" and self._fake is not None)

    def _note_changes(self, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
        assert self._schema is not None
        values = [*positional, *keywords.values()]
        for argument, value in zip(self._schema.arguments, values, strict=True):
            if argument.is_write:
                for t in _tensors([value]):
                    _C._increment_version(t)

    # ---- registering ----

    def _register(self, fn: Callable[..., Any], key: str) -> None:
        """Takes `fn` for a dispatch key."""
        device = key.lower().replace("privateuse1", "privateuseone")
        if device == "meta":
            self.register_fake(fn)
        elif key == "CompositeImplicitAutograd":
            self._composite = fn
        elif key == "CompositeExplicitAutograd":
            self.register_kernel(None, fn)
        elif key in _AUTOGRAD_KEYS:
            self._autograd = fn
        elif key.startswith("Autocast"):
            self._autocast_function[key.removeprefix("Autocast").lower()] = fn
        elif device in _DEVICES:
            self.register_kernel(device, fn)
        elif not key.startswith("Autograd"):
            raise NotImplementedError(f"torch.library.impl: {self} takes no function for {key!r}")

    def register_kernel(self, device_types: str | Sequence[str] | None, fn: Any = None, /) -> Any:
        """The function for tensors of some devices (None or "default": of all); a decorator without `fn`.

        Raises:
            RuntimeError: no device.
        """
        if fn is None:
            return lambda later: self.register_kernel(device_types, later)
        kinds = [device_types] if device_types is None or isinstance(device_types, str) else device_types
        for kind in kinds:
            if kind not in (None, "default", *_DEVICES):
                raise RuntimeError(
                    f"Expected one of {', '.join(_DEVICES)} device type at start of device string: {kind}"
                )
            if kind == "meta":
                self.register_fake(fn)
            else:
                self._kernels[None if kind == "default" else kind] = fn
        return fn

    def register_fake(self, fn: Any, /) -> Any:
        """Registers the function for tensors on the meta device, which tells shapes and dtypes.

        Args:
            fn: takes the op's arguments, returns tensors on meta; it must not read values.

        Returns:
            fn, so that it serves as a decorator.

        >>> @torch.library.custom_op("docs::twice", mutates_args=())
        ... def twice(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
        >>> @twice.register_fake
        ... def _(x):
        ...     return torch.empty_like(x)
        >>> twice(torch.ones(3, device="meta")).shape
        torch.Size([3])
        """
        self._fake = fn
        return fn

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """backward(ctx, *grads) returns a gradient per argument; setup_context(ctx, inputs, output) saves.

        With arguments by keyword only it is setup_context(ctx, inputs, keyword_only_inputs, output), and
        these have no gradient. A list of tensors has a list of gradients.

        Raises:
            RuntimeError: the op changes an argument, or returns what has no gradient alone.
        """
        if self._schema is not None and self._schema.is_mutable:
            raise RuntimeError(
                f"Cannot register autograd formula for non-functional operator {self} with "
                f"schema {self._schema}. Please create a functional operator and register an autograd "
                "formula for that."
            )
        self._backward, self._setup = backward, setup_context

    def register_vmap(self, func: Any = None, /) -> Any:
        """Registers what vmap calls instead of the op; a decorator without `func`.

        Args:
            func: func(info, in_dims, *args) -> (outputs, their dims). `info.batch_size` is the size of the
                mapped dim, `in_dims` has that dim of each argument, None where one is not mapped.
        """
        if func is None:
            return self.register_vmap
        self._vmap = func
        return func

    def register_autocast(self, device_type: str, cast_inputs: Any) -> None:
        """While autocast is on for the device, floating-point arguments are cast to the dtype `cast_inputs`.

        Raises:
            ValueError: no device that has autocast, or no dtype.
        """
        if device_type not in ("cpu", "cuda"):
            raise ValueError(f"Unknown device type: {device_type}")
        if not isinstance(cast_inputs, _C.dtype):
            raise ValueError(f"register_autocast: expected a dtype, got {cast_inputs!r}")
        self._autocast[device_type] = cast_inputs

    def register_torch_dispatch(self, torch_dispatch_class: Any, fn: Any = None, /) -> Any:
        """fn(cls, func, types, args, kwargs) where an argument is of a subclass of Tensor.

        A decorator without `fn`.

        Raises:
            TypeError: a class that is no subclass of Tensor: modes that see every op are not supported.
        """
        if fn is None:
            return lambda later: self.register_torch_dispatch(torch_dispatch_class, later)
        if not (isinstance(torch_dispatch_class, type) and issubclass(torch_dispatch_class, _C.TensorBase)):
            raise TypeError(
                f"register_torch_dispatch: expected a subclass of Tensor, got {torch_dispatch_class!r}"
            )
        self._subclasses[torch_dispatch_class] = fn
        return fn

    @contextlib.contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """For the scope, whether the device's own function runs; else that which the op was made with."""
        before = device_type in self._disabled
        (self._disabled.discard if enabled else self._disabled.add)(device_type)
        try:
            yield
        finally:
            (self._disabled.add if before else self._disabled.discard)(device_type)


class CustomOpPacket(OpOverloadPacket):
    """The ops under one name, which differ in the overload's name; a call takes the first that it fits."""

    def __init__(self, qualname: str) -> None:
        super().__init__(qualname, self._choose, ())
        self._by_overload: dict[str, Any] = {}  # of CustomOpDef

    def add(self, op: CustomOpDef) -> None:
        """Adds an op, or puts it in the place of one with its name."""
        overload = op._qualname.partition(".")[2] or "default"
        self.__dict__.pop(overload, None)
        self._by_overload[overload] = op
        op._packet = self
        self._overloads = tuple(self._by_overload)
        first = next(iter(self._by_overload.values()))
        self._function, self.__doc__ = (first if len(self._by_overload) == 1 else self._choose), first.__doc__
        # What a mode that is told of the op calls to be told of the ops inside; of one of several, nothing.
        self.__wrapped__ = first._call if len(self._by_overload) == 1 else None

    def _choose(self, *args: Any, **kwargs: Any) -> Any:
        errors = []
        for op in self._by_overload.values():
            try:
                op._bind(args, kwargs)
            except (RuntimeError, TypeError) as error:
                errors.append(str(error))
                continue
            return op(*args, **kwargs)
        raise RuntimeError(
            f"{self._qualified_op_name}: no overload takes these arguments: {'; '.join(errors)}"
        )
