"""torch.onnx.export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from ... import _C
from ...core import Tensor, int64, tensor
from ...core.pytree import tree_leaves
from ...nn import Module
from ...serialization.files import replace_file
from ..export.dims import Dim, Sizes
from ..export.exported import ExportedProgram, specs_of
from ..graphs import GraphFunction, check_constants, record
from ._builder import OPSET, Builder, onnx_type, run_mapping, tensors_of
from ._errors import UnsupportedOperatorError
from ._sizes import Runs, Varying, describe

_exporting = False


def is_in_onnx_export() -> bool:
    """Whether a model runs so that it is exported."""
    return _exporting


@contextlib.contextmanager
def _evaluation(model: Any, training: bool) -> Iterator[None]:
    """The model in evaluation mode, and after it in the modes that it had."""
    global _exporting
    modules = list(model.modules()) if isinstance(model, Module) else []
    modes = [m.training for m in modules]
    _exporting = True
    try:
        if not training:
            for m in modules:
                m.training = False
        yield
    finally:
        _exporting = False
        for m, mode in zip(modules, modes, strict=True):
            m.training = mode


def _axes_as_specs(
    dynamic_axes: Any, names: list[str], output_names: list[str], tensors: list[Tensor]
) -> list[Any]:
    """dynamic_axes, by name a list of dims or {dim: name of the size}, as one {dim: Dim} for each input.

    Entries of outputs change nothing: their sizes follow.
    """
    if unknown := dynamic_axes.keys() - {*names, *output_names}:
        raise ValueError(
            f"dynamic_axes: {sorted(unknown)} are no input_names or output_names; there are "
            f"{[*names, *output_names]}"
        )
    dims: dict[str, Dim] = {}
    specs: list[Any] = []
    for name, _ in zip(names, tensors, strict=False):
        axes = dynamic_axes.get(name) or {}
        axes = axes if isinstance(axes, dict) else {d: f"{name}_dim_{d}" for d in axes}
        specs.append({d: dims.setdefault(n, Dim(n, min=1)) for d, n in axes.items()})
    return specs + [None] * (len(tensors) - len(specs))


class _Recorded:
    """What is written: a graph, with its results and where each size that varies is read from."""

    def __init__(self, function: GraphFunction, runs: Runs | None = None, sizes: Sizes | None = None) -> None:
        graph = function.graph
        self.inputs, self.constants = graph.inputs, graph.constants
        if runs is None:
            described = describe(function)
            self.values, self.calls = described["values"], described["calls"]
            self.results = described["results"]
        else:
            self.values, self.calls, self.results = runs.values, runs.calls, runs.results
        # (input's place, dim, factor, offset) by symbol
        self.read: dict[str, tuple[int, int, int, int]] = {}
        if sizes is not None:
            for (i, dim), d in sorted(sizes.places.items(), key=lambda item: abs(item[1].factor)):
                self.read.setdefault(d.root.__name__, (i, dim, d.factor, d.offset))
        else:
            for k, i in enumerate(self.inputs):
                for dim, size in enumerate(self.values[i][2]):
                    name = None if isinstance(size, int) else _size_name(size)
                    if name is not None:
                        self.read.setdefault(name, (k, dim, 1, 0))
        self.size_names = {} if runs is None else {runs.size_of(s): n for s, n in enumerate(runs.names)}


def _recorded(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: list[Any], tensors: list[Tensor]
) -> _Recorded:
    sizes = Sizes(tensors, specs)
    if sizes.symbols:
        runs = Runs(model, args, kwargs, sizes)
        return _Recorded(runs.function, runs, sizes)
    function = record(model, args, kwargs, strict=True)
    check_constants(model, function, args, kwargs)
    return _Recorded(function)


def _of_program(program: ExportedProgram) -> _Recorded:
    recorded = _Recorded(program._function)
    if program.range_constraints and any(kind == "number" and x is not None for kind, x in recorded.results):
        raise UnsupportedOperatorError(
            "torch.onnx.export: an ExportedProgram with sizes that vary and a result that is a number; give "
            "the module itself"
        )
    return recorded


def _refuse_stale(name: str, args: dict[str, Any], stale: set[int]) -> None:
    if any(x.id in stale for x in tensors_of(args)):
        raise UnsupportedOperatorError(f"{name} reads a tensor that another view of it changed in place")


def _changed(graph: Any, args: dict[str, Any], result: int) -> set[int]:
    """The values so far that a call in place leaves with old contents."""
    target = tensors_of(args)[0]
    kind, memory = graph.values[target.id][0], graph.values[target.id][4]
    if kind != "result":
        raise UnsupportedOperatorError("a parameter, buffer or input that is changed in place")
    return {i for i, v in enumerate(graph.values[:result]) if v[4] == memory}


def _add_calls(b: Builder, graph: Any) -> None:
    stale: set[int] = set()
    for name, args, outputs, source in graph.calls:
        try:
            _refuse_stale(name, args, stale)
            run_mapping(b, name, args, outputs)
            if name.endswith("_") or args.get("inplace"):
                stale |= _changed(graph, args, outputs[0])
        except UnsupportedOperatorError as error:
            raise UnsupportedOperatorError(f"torch.onnx.export: {name} at {source}: {error}") from None
    if stale.intersection(i for kind, i in graph.results if kind == "tensor"):
        source = next(source for _, _, results, source in graph.calls if stale.intersection(results))
        raise UnsupportedOperatorError(
            f"torch.onnx.export: a result has a view that was changed in place; it was made at {source}"
        )


def _info(helper: Any, graph: _Recorded, name: str, value: int) -> Any:
    _, dtype, sizes, *_ = graph.values[value]
    shape = [
        s
        if isinstance(s, int)
        else graph.size_names.get(tuple(s.values))
        if isinstance(s, Varying)
        else _size_name(s)
        for s in sizes
    ]
    return helper.make_tensor_value_info(name, onnx_type(dtype), shape)


def _size_name(e: Any) -> str | None:
    if e is None or e.divisor != 1 or len(e.terms) != 1 or e.terms[0][0] != 1 or len(e.terms[0][1]) != 1:
        return None
    return e.terms[0][1][0]


def _check_names(what: str, given: list[str], count: int) -> None:
    if len(given) > count:
        raise ValueError(f"{what}_names has {len(given)} names for {count} tensors")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what}_names: expected names that are not empty, got {name!r}")


def _output(helper: Any, b: Builder, graph: _Recorded, kind: str, value: Any, name: str) -> Any:
    """Adds the node that gives a result its name; what the file says of it."""
    if kind == "tensor":
        name_of_value, info = b.names[value], _info(helper, graph, name, value)
    else:
        if not isinstance(value, (int, float, Varying)):
            raise UnsupportedOperatorError(
                f"torch.onnx.export: a result of type {type(value).__name__}; return tensors and numbers"
            )
        is_int = isinstance(value, (int, Varying)) and not isinstance(value, bool)
        dtype = int64 if is_int else tensor(value).dtype
        name_of_value = b.scalar(value) if is_int else b.constant(value, dtype)
        info = helper.make_tensor_value_info(name, onnx_type(dtype), [])
    b.nodes.append(helper.make_node("Identity", [name_of_value], [name]))
    return info


def _model_of(graph: _Recorded, input_names: list[str], output_names: list[str]) -> Any:
    from onnx import checker, helper, shape_inference

    results = [(kind, x) for kind, x in graph.results if x is not None]
    _check_names("input", input_names, len(graph.inputs))
    _check_names("output", output_names, len(results))
    names = [*input_names, *output_names]
    if doubled := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"input_names and output_names: {doubled} are there more than once")
    b = Builder(graph, names)
    for k, i in enumerate(graph.inputs):
        b.names[i] = input_names[k] if k < len(input_names) else b.fresh(f"input_{k}")
    output_names = output_names + [b.fresh(f"output_{k}") for k in range(len(output_names), len(results))]
    read = {x.id for _, args, *_ in graph.calls for x in tensors_of(args)}
    read |= {x for kind, x in results if kind == "tensor"}
    for i, constant in graph.constants.items():
        if i not in read:  # state that the module has and does not use
            continue
        b.names[i] = b.initializer(graph.values[i][3], constant)
    for name, (k, dim, factor, offset) in graph.read.items():
        b.read_symbol(name, b.names[graph.inputs[k]], dim, factor, offset)
    _add_calls(b, graph)
    outputs = [_output(helper, b, graph, *r, name) for r, name in zip(results, output_names, strict=True)]
    inputs = [_info(helper, graph, b.names[i], i) for i in graph.inputs]
    graph_proto = helper.make_graph(b.nodes, "graph", inputs, outputs, b.initializers)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph_proto, opset_imports=[opset], producer_name="warptape", ir_version=9)
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise UnsupportedOperatorError(f"torch.onnx.export: {error}") from None
    return model


class ONNXProgram:
    """An exported model.

    Attributes:
        model_proto: the `onnx.ModelProto`.
    """

    def __init__(self, model_proto: Any) -> None:
        self.model_proto = model_proto

    def save(self, destination: str | os.PathLike[str] | Any, **options: Any) -> None:
        """Writes the file: to a path, which has the whole of it or what it had before, or a binary file."""
        data = self.model_proto.SerializeToString()
        if isinstance(destination, (str, os.PathLike)):
            replace_file(os.fspath(destination), [data])
        else:
            destination.write(data)

    def optimize(self) -> None:
        """Nothing: what reads the file optimises it."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The results for tensors nested as the example's were, computed by the package onnxruntime."""
        import onnxruntime

        session = onnxruntime.InferenceSession(self.model_proto.SerializeToString())
        arrays = [x.detach().numpy() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        names = [i.name for i in session.get_inputs()]
        if len(arrays) != len(names):
            raise TypeError(f"ONNXProgram: expected {len(names)} tensors, got {len(arrays)}")
        results = session.run(None, dict(zip(names, arrays, strict=True)))
        return tuple(_C.from_numpy(x) for x in results)

    def __repr__(self) -> str:
        from onnx import printer

        return printer.to_text(self.model_proto)


def export(
    model: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...] | Tensor = (),
    f: Any = None,
    *,
    kwargs: dict[str, Any] | None = None,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    opset_version: int | None = None,
    dynamic_axes: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    training: Any = None,
    verbose: Any = None,
    **options: Any,
) -> ONNXProgram:
    """Writes the model's forward pass as an ONNX file, for inference.

    The model runs in evaluation mode, as `torch.export.export` records it; its modes are restored. Where
    sizes vary it runs at several of them, 1 among them if it is in the range, and must make the same calls.
    Results that are numbers become tensors without dims; a result that is None is left out.

    Args:
        model: a module, a function, or an ExportedProgram.
        args, kwargs: example arguments; what is no tensor among them is part of the file.
        f: a path, which has the whole file or what it had before, a binary file, or None.
        input_names, output_names: in order of the tensors.
        opset_version: 18, or lower numbers, which are written as 18.
        dynamic_axes: by name of an input, the dims that vary: a list, or {dim: name of the size}. Entries of
            outputs change nothing: their sizes follow.
        dynamic_shapes: the same as `torch.export.export` takes it.
        training: True keeps modules in the modes that they are in.
        options: accepted, without effect.

    Raises:
        UnsupportedOperatorError: an op, or a use of one, that is not exported to ONNX: it says where.
        ModuleNotFoundError: the package `onnx` is not installed.
        ValueError: an opset that is higher; more names than tensors; dynamic_axes of other names.
        Whatever `torch.export.export` raises.
    """
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("torch.onnx.export needs the package onnx: pip install onnx") from error
    if opset_version is not None and opset_version > OPSET:
        raise ValueError(
            f"torch.onnx.export: opset_version {opset_version} is above {OPSET}, which is written"
        )
    args = (args,) if isinstance(args, Tensor) else tuple(args)
    if isinstance(model, ExportedProgram):
        model_proto = _model_of(_of_program(model), list(input_names or []), list(output_names or []))
    else:
        tensors = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        if dynamic_axes is not None:
            specs = _axes_as_specs(dynamic_axes, input_names or [], output_names or [], tensors)
        else:
            specs = specs_of(model, args, kwargs or {}, dynamic_shapes)
        with _evaluation(model, training is True):
            graph = _recorded(model, args, kwargs or {}, specs, tensors)
            model_proto = _model_of(graph, list(input_names or []), list(output_names or []))
    program = ONNXProgram(model_proto)
    if f is not None:
        program.save(f)
    return program
