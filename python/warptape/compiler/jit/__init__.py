"""torch.jit: functions and modules as graphs of ops, which are saved and run without their Python code.

`trace` records a graph and returns what runs it. What `script` returns runs as it was written; its graph is
recorded where it is asked for, with the arguments of the last call, `if` and `while` by tensors as ops in it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ... import _C
from ...core import Tensor
from ...core.protocols import HasGraph
from ...core.pytree import tree_leaves
from ...nn import Module, Parameter
from ...tools.graph_drawing import GraphText, draw
from ..control_flow import NotSupportedError
from ..control_flow.convert import convert
from ..export.dims import Dim, Sizes
from ..export.exported import generalised, read_graph, write_graph
from ..graphs import GraphFunction, GraphModule, check_constants, record, unchanged

if TYPE_CHECKING:
    from warptape.core.types import FileLike

__all__ = [
    "Final",
    "NotSupportedError",
    "ScriptFunction",
    "ScriptModule",
    "TracerWarning",
    "annotate",
    "export",
    "fork",
    "freeze",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "load",
    "optimize_for_inference",
    "optimized_execution",
    "run_frozen_optimizations",
    "save",
    "script",
    "script_if_tracing",
    "script_method",
    "trace",
    "unused",
    "wait",
]

_isinstance = isinstance


class TracerWarning(Warning):
    """A trace reads a tensor's value: the graph is the one for this value.

    For another value the program might take another way.
    """

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Would silence warnings of the library's own reads.

        It does nothing: the library's own reads are not warned of.
        """


class TracingCheckError(RuntimeError):
    """What was traced depends on the values of its inputs.

    `trace` with `check_trace` raises it.
    """


class ScriptModule(Module):
    """A traced, scripted or loaded module; also the base of modules that are written for TorchScript."""

    def _graph_function(self) -> GraphFunction:
        raise RuntimeError(f"torch.jit.save: {type(self).__name__} has no graph; give it to torch.jit.trace")

    @property
    def graph(self) -> GraphText:
        """The text of the graph; `graph.draw()` is its picture."""
        graph = self._graph_function().graph
        return GraphText(graph.text(), lambda: draw(graph))

    def save(self, f: FileLike, _extra_files: dict[str, Any] | None = None) -> None:
        """Writes the graph with its parameters: see `torch.jit.save`.

        Args:
            f: a path or an open file.
            _extra_files: texts by name.
        """
        save(self, f, _extra_files)


class TracedModule(ScriptModule, GraphModule):
    """A module that runs a recorded graph.

    `torch.jit.trace` returns it.
    """

    def _graph_function(self) -> GraphFunction:
        return self._current()


class _Calls:
    """A function that runs as it was written, and the arguments of its last call."""

    def __init__(self, fn: Callable[..., Any], example: Any) -> None:
        self.fn, self.example = fn, example

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.example = args, kwargs
        return self.fn(*args, **kwargs)

    def recorded(self) -> GraphFunction:
        """The graph for the arguments of the last call."""
        if self.example is None:
            raise RuntimeError(
                "torch.jit.script: the graph is recorded with arguments: call the function once, or give "
                "example_inputs"
            )
        try:
            converted = convert(self.fn)
        except NotSupportedError:  # no source, as of a lambda: then without control flow
            converted = self.fn
        with unchanged(self.fn):
            return _widest(converted, record(converted, *self.example), *self.example)


class ScriptFunction:
    """A function that was traced, scripted or loaded.

    Args:
        call: the graph.
    """

    def __init__(self, call: Any) -> None:  # a GraphFunction or _Calls
        if _isinstance(call, _Calls):
            functools.update_wrapper(self, call.fn)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, or runs its graph.

        Args:
            *args, **kwargs: of the function.
        """
        return self._call(*args, **kwargs)

    def _graph_function(self) -> GraphFunction:
        return self._call.recorded() if _isinstance(self._call, _Calls) else self._call

    graph = ScriptModule.graph
    save = ScriptModule.save


class ScriptedModule(ScriptModule):
    """A module that runs as it was written, with the parameters and attributes of the one that it is of.

    Args:
        module: of which it is.
        example: arguments for the graph, or None.
    """

    def __init__(self, module: Module, example: Any) -> None:
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__["original"], self.__dict__["training"] = module, module.training
        self.__dict__["_call"] = _Calls(module, example)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module.

        Args:
            *args, **kwargs: of the module.
        """
        return self._call(*args, **kwargs)

    def _graph_function(self) -> GraphFunction:
        return self._call.recorded()

    def train(self, mode: bool = True) -> Any:
        """Sets the mode of the module.

        Args:
            mode: False for evaluation.
        """
        self.original.train(mode)
        self.__dict__["training"] = mode
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets the attribute where forward reads it: in the module."""
        if "original" not in self.__dict__:
            super().__setattr__(name, value)
            return
        setattr(self.original, name, value)
        if name in self.__dict__:
            self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        delattr(self.original, name)


class FrozenModule(ScriptModule):
    """A graph without parameters and buffers: they are constants, which share memory with the module's.

    Of a scripted module that was not called yet, the graph is recorded in the first call.

    Attributes:
        pass_counts: by pass, how many calls it changed; empty before there is a graph.
    """

    def __init__(self, source: Any, preserved: dict[str, Any], numerics: bool) -> None:
        super().__init__()
        self.__dict__.update(preserved, training=False, pass_counts={}, _source=source, _function=None)
        self.__dict__.update(_numerics=numerics, _innermost=False)
        if not _isinstance(source, ScriptedModule) or source._call.example is not None:
            self._graph_function()

    def _optimise(self, numerics: bool) -> None:
        self.__dict__["_numerics"] = numerics
        if self._function is None:
            return
        function, counts = self._function.optimised(
            freeze=True,
            gradients=False,
            plan_memory=True,
            fold_frozen_conv_bn=self._numerics,
            channels_last=self._innermost,
            fuse_frozen_conv_add_relu=True,
        )
        self.__dict__["_function"] = function
        self.__dict__["pass_counts"] = {k: n + self.pass_counts.get(k, 0) for k, n in counts.items()}

    def _graph_function(self) -> GraphFunction:
        if self._function is None:
            source = self._source
            function = source if _isinstance(source, GraphFunction) else source._graph_function()
            self.__dict__.update(_function=function, _source=None)
            self._optimise(self._numerics)
        return self._function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph.

        Args:
            *args, **kwargs: of the module.
        """
        if self._function is None:
            self._source._call.example = args, kwargs
        return self._graph_function()(*args, **kwargs)


def script(obj: Any, *args: Any, example_inputs: Any = None, **kwargs: Any) -> Any:
    """A function or module that does what `obj` does and can be saved; a class as it is.

    Args:
        example_inputs: a tuple of arguments (or a list of such, of which the first counts) that the graph is
            recorded with where it is asked for before the first call.

    Asking for the graph raises NotSupportedError, with file and line, for control flow by a tensor that
    cannot be one, and RuntimeError before the first call without `example_inputs`.
    """
    if _isinstance(obj, (type, ScriptModule, ScriptFunction)):
        return obj
    if _isinstance(example_inputs, list) and example_inputs:
        example_inputs = example_inputs[0]
    example: Any = None if example_inputs is None else (tuple(example_inputs), {})
    if _isinstance(obj, Module):
        return ScriptedModule(obj, example)
    if not callable(obj):
        raise TypeError(f"torch.jit.script: expected a function, module or class, got {type(obj).__name__}")
    return ScriptFunction(_Calls(obj, example))


def _as_it_is(fn: Callable[..., Any]) -> Any:
    """`fn` as it is."""
    return fn


export = interface = script_method = script_if_tracing = _script_if_tracing = _as_it_is
_overload = _overload_method = _as_it_is  # the last definition is the one that runs


def ignore(drop: object = False, **kwargs: Any) -> Any:
    """The function as it is; with options, the decorator that returns it.

    Args:
        drop: the function, or an option.
        **kwargs: options, without effect.
    """
    return drop if callable(drop) else _as_it_is


unused = _as_it_is


def _groups(tensors: list[Tensor]) -> Iterator[list[Any]]:
    """Sizes that may vary, as Sizes takes them: dims of the same place and size are one."""
    places = dict.fromkeys((d, t.shape[d]) for t in tensors for d in range(t.dim()) if t.shape[d])
    for number, (place, size) in enumerate(places):
        dim = Dim(f"s{number}", min=1)
        yield [{place: dim} if t.dim() > place and t.shape[place] == size else {} for t in tensors]


def _widest(
    fn: Callable[..., Any], first: GraphFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> GraphFunction:
    """The graph for all sizes where the function only computes with those that it asks for; else for those
    sizes of the inputs that can vary, one by one and together. `first` is the one for the example's."""
    wide = first if not first.sizes_told else None
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError, ValueError, IndexError):
        wide = wide or record(fn, args, kwargs, strict=True, any_sizes=True)
    if wide is not None:
        widened = wide.with_graph(wide.graph.copy())
        widened.graph.forget_sizes(not wide.number_of_dims_told)
        return widened
    tensors = [x for x in tree_leaves((args, kwargs)) if _isinstance(x, Tensor)]

    def attempt(specs: list[Any], thorough: bool = False) -> GraphFunction | None:
        try:
            return generalised(fn, args, kwargs, Sizes(tensors, specs), True, thorough)
        except (NotImplementedError, RuntimeError, ValueError, IndexError, AssertionError):
            return None  # other calls for other sizes, or sizes that the function does not take

    free = [specs for specs in _groups(tensors) if attempt(specs)][:4]
    together = [{k: d for s in specs for k, d in s.items()} for specs in zip(*free, strict=True)]
    return (attempt(together, True) if free else None) or first


def trace(
    func: Any,
    example_inputs: Any = None,
    check_trace: bool = True,
    *,
    example_kwarg_inputs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A module or function that runs the ops which func(*example_inputs) calls.

    The graph is for all sizes of the inputs where the function asks for none of its tensors' sizes. Else the
    function runs several times, and the graph is for those for which it calls the same ops.
    What Python decides by values is decided as in the example, with a warning.

    Args:
        example_inputs: a tuple of arguments, or one tensor.
        check_trace: records again on other values and compares.

    Raises:
        TracingCheckError: a tensor that was made by other means than ops, or a size, depends on values.
        NotImplementedError: a backward pass, or a draw from a generator of the caller's.
    """
    if _isinstance(func, (ScriptModule, ScriptFunction)) and not _isinstance(func, ScriptedModule):
        return func
    if example_inputs is None and example_kwarg_inputs is None:
        raise RuntimeError("trace: example_kwarg_inputs or example_inputs must be given")
    args = (example_inputs,) if _isinstance(example_inputs, (Tensor, dict)) else tuple(example_inputs or ())
    named = example_kwarg_inputs or {}
    with unchanged(func):
        first = record(func, args, named)
        if check_trace:
            try:
                check_constants(func, first, args, named)
            except NotImplementedError as error:
                raise TracingCheckError(f"torch.jit.trace: {error}") from None
        traced = _widest(func, first, args, named)
    if _isinstance(func, Module):
        module = TracedModule(traced, lambda _, t: _isinstance(t, Parameter))
        module.__dict__["training"] = func.training
        return module
    return ScriptFunction(traced)


def save(m: Any, f: FileLike, _extra_files: dict[str, Any] | None = None) -> None:
    """Writes the graph of what was traced or scripted: safetensors with a checksum (docs/guides/export.md).

    Raises:
        RuntimeError: no graph: a plain module, or something scripted that was never called.
        NotImplementedError: `_extra_files`.
    """
    if _extra_files:
        raise NotImplementedError("torch.jit.save: extra files are not written; save them beside the graph")
    if not _isinstance(m, HasGraph):
        raise RuntimeError(f"torch.jit.save: {type(m).__name__} has no graph; give it to torch.jit.trace")
    function = m._graph_function()
    names = [n for n, _ in m.named_parameters()] if _isinstance(m, Module) else []
    frozen = _isinstance(m, FrozenModule)
    write_graph(f, function, parameters=names, module=_isinstance(m, Module), frozen=frozen)


def load(f: FileLike, map_location: Any = None, _extra_files: dict[str, Any] | None = None) -> Any:
    """The module or function that `save` wrote. No code of the file is run.

    Args:
        map_location: the device that the parameters and buffers go to.

    Raises:
        ValueError: what is wrong with the file.
        NotImplementedError: an op that this version does not have, or with other arguments.
    """
    function, more = read_graph(f)
    if not more.get("module", True):
        return ScriptFunction(function)
    if more.get("frozen"):
        if map_location is not None and str(map_location) != "cpu":
            raise NotImplementedError("torch.jit.load: a frozen module stays where it was frozen")
        return FrozenModule(function, {}, False)
    names = frozenset(more.get("parameters", ()))
    module = TracedModule(function, lambda name, _: name in names)
    return module if map_location is None else module.to(map_location)


def freeze(mod: Any, preserved_attrs: list[str] | None = None, optimize_numerics: bool = True) -> Any:
    """A module that runs the graph of `mod` with parameters and buffers as constants: see
    docs/guides/export.md.

    Args:
        preserved_attrs: attributes and methods of `mod` that the module shall have.
        optimize_numerics: folds batch norm into the convolution or linear layer before it, which rounds in
            another way. All else keeps every bit.

    Raises:
        RuntimeError: a module that was neither traced nor scripted, or is in training mode.
        NotImplementedError: a preserved attribute that is a tensor or a module, which could be changed.
    """
    if not _isinstance(mod, ScriptModule):
        raise RuntimeError(
            "Freezing expects a ScriptModule as input. Please use torch.jit.script or torch.jit.trace to "
            "script your 'nn.Module'."
        )
    if getattr(mod, "training", False):
        raise RuntimeError(
            "Freezing is currently only implemented for modules in eval mode. Please call .eval() on your "
            "module before freezing."
        )
    preserved = {name: getattr(mod, name) for name in preserved_attrs or ()}
    for name, value in preserved.items():
        if _isinstance(value, (Tensor, Module)):
            raise NotImplementedError(f"torch.jit.freeze: {name} cannot stay: it is part of the graph")
    return FrozenModule(mod, preserved, optimize_numerics)


def run_frozen_optimizations(
    mod: Any, optimize_numerics: bool = True, preserved_methods: list[str] | None = None
) -> None:
    """Runs the passes of `freeze` again, on the module itself; what is not frozen has nothing for them.

    Args:
        optimize_numerics: see `freeze`.
        preserved_methods: accepted, without effect: no method is taken away.
    """
    if _isinstance(mod, FrozenModule):
        mod._optimise(optimize_numerics)


def optimize_for_inference(mod: Any, other_methods: list[str] | None = None) -> Any:
    """`mod` frozen, with batch norm folded and channels innermost in convolutions: see docs/guides/export.md.

    Both round in another way. Also of a module in training mode.

    Args:
        other_methods: methods of `mod` that the module shall have.

    Raises:
        RuntimeError: a module that was neither traced nor scripted.
    """
    if not _isinstance(mod, ScriptModule):
        raise RuntimeError(
            "optimize_for_inference expects a ScriptModule as input. Please use torch.jit.script or "
            "torch.jit.trace to script your 'nn.Module'."
        )
    frozen = mod if _isinstance(mod, FrozenModule) else freeze(mod.eval(), preserved_attrs=other_methods)
    frozen.__dict__["_innermost"] = True
    run_frozen_optimizations(frozen)
    return frozen


def annotate(the_type: object, the_value: object) -> Any:
    """`the_value`.

    Args:
        the_type: not looked at.
        the_value: returned.
    """
    return the_value


def isinstance(obj: object, target_type: object) -> bool:
    """Whether `obj` is of the type; what a generic type holds is not looked at.

    Args:
        obj: any.
        target_type: a class, or a generic type like list[int].

    >>> torch.jit.isinstance([1], list[int])
    True
    """
    return _isinstance(obj, getattr(target_type, "__origin__", None) or target_type)


def is_scripting() -> bool:
    """Whether code is being compiled from its source.

    Returns:
        False: functions run as they were written.
    """
    return False


def is_tracing() -> bool:
    """Whether a graph is being recorded, as `torch.jit.trace` does.

    >>> torch.jit.is_tracing()
    False
    """
    return _C._tracer() is not None


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `func` here and now; `wait` returns its result.

    Args:
        func: what is run.
        *args, **kwargs: of func.

    >>> torch.jit.wait(torch.jit.fork(torch.add, torch.tensor(1), torch.tensor(2)))
    tensor(3)
    """
    from ...core.futures import Future

    future: Any = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Any) -> Any:
    """The result of what `fork` started.

    Args:
        future: what `fork` returned.
    """
    return future.wait()


@contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Without effect.

    Args:
        should_optimize: not looked at.
    """
    yield
