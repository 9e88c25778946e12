"""torch.onnx.export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from .. import _C
from .._graphs import GraphFunction, check_constants, record
from .._tensor import Tensor
from ..export._dims import Dim, Sizes
from ..export._exported import ExportedProgram, generalised, specs_of
from ..nn import Module
from ..serialization._files import replace_file
from ..utils._pytree import tree_leaves
from ._builder import OPSET, Builder, UnsupportedOperatorError, onnx_type, run_mapping, tensors_of

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


def _axes_as_specs(dynamic_axes: Any, names: list[str], tensors: list[Tensor]) -> list[Any]:
    """dynamic_axes, by name a list of dims or {dim: name of the size}, as one {dim: Dim} for each input."""
    if unknown := dynamic_axes.keys() - set(names):
        raise ValueError(f"dynamic_axes: {sorted(unknown)} are no input_names; there are {names}")
    made: dict[str, Dim] = {}
    specs: list[Any] = []
    for name, _ in zip(names, tensors, strict=False):
        axes = dynamic_axes.get(name) or {}
        axes = axes if isinstance(axes, dict) else {d: f"{name}_dim_{d}" for d in axes}
        specs.append({d: made.setdefault(n, Dim(n, min=1)) for d, n in axes.items()})
    return specs + [None] * (len(tensors) - len(specs))


def _recorded(model: Any, args: Any, kwargs: Any, specs: list[Any], tensors: list[Tensor]) -> GraphFunction:
    sizes = Sizes(tensors, specs)
    if sizes.symbols:
        return generalised(model, args, kwargs, sizes, True)
    function = record(model, args, kwargs, strict=True)
    check_constants(model, function, args, kwargs)
    return function


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
    if stale.intersection(graph.outputs):
        source = next(source for _, _, made, source in graph.calls if stale.intersection(made))
        raise UnsupportedOperatorError(
            f"torch.onnx.export: a result has a view that was changed in place; it was made at {source}"
        )


def _info(helper: Any, b: Builder, name: str, value: int) -> Any:
    _, dtype, sizes, *_ = b.values[value]
    shape = [s if isinstance(s, int) else _size_name(s) for s in sizes]
    return helper.make_tensor_value_info(name, onnx_type(dtype), shape)


def _size_name(e: Any) -> str | None:
    if e is None or e.divisor != 1 or len(e.terms) != 1 or e.terms[0][0] != 1 or len(e.terms[0][1]) != 1:
        return None
    return e.terms[0][1][0]


def _model_of(graph: Any, input_names: list[str], output_names: list[str]) -> Any:
    from onnx import checker, helper, shape_inference

    for what, names, found in (("input", input_names, graph.inputs), ("output", output_names, graph.outputs)):
        if len(names) > len(found):
            raise ValueError(f"{what}_names has {len(names)} names for {len(found)} tensors")
    b = Builder(graph)
    for k, i in enumerate(graph.inputs):
        b.names[i] = input_names[k] if k < len(input_names) else f"input_{k}"
    read = {x.id for _, args, *_ in graph.calls for x in tensors_of(args)} | {*graph.outputs}
    for i, tensor in graph.constants.items():
        if i not in read:  # state that the module has and does not use
            continue
        b.names[i] = b.initializer(graph.values[i][3], tensor)
    known: set[str] = set()
    for i in graph.inputs:
        for dim, size in enumerate(graph.values[i][2]):
            name = None if isinstance(size, int) else _size_name(size)
            if name is not None and name not in known:
                known.add(name)
                b.read_symbol(name, b.names[i], dim)
    _add_calls(b, graph)
    outputs = []
    for k, i in enumerate(graph.outputs):
        name = output_names[k] if k < len(output_names) else f"output_{k}"
        b.nodes.append(helper.make_node("Identity", [b.names[i]], [name]))
        outputs.append(_info(helper, b, name, i))
    inputs = [_info(helper, b, b.names[i], i) for i in graph.inputs]
    made = helper.make_graph(b.nodes, "graph", inputs, outputs, b.initializers)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="warptape", ir_version=9)
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
        given = [x.detach().numpy() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        names = [i.name for i in session.get_inputs()]
        if len(given) != len(names):
            raise TypeError(f"ONNXProgram: expected {len(names)} tensors, got {len(given)}")
        results = session.run(None, dict(zip(names, given, strict=True)))
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

    The model runs in evaluation mode, as `torch.export.export` records it; its modes are restored.

    Args:
        model: a module, a function, or an ExportedProgram.
        args, kwargs: example arguments; what is no tensor among them is part of the file.
        f: a path, which has the whole file or what it had before, a binary file, or None.
        input_names, output_names: in order of the tensors.
        opset_version: 18, or lower numbers, which are written as 18.
        dynamic_axes: by name of an input, the dims that vary: a list, or {dim: name of the size}.
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
        graph = model._function.graph
    else:
        tensors = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        if dynamic_axes is not None:
            specs = _axes_as_specs(dynamic_axes, input_names or [], tensors)
        else:
            specs = specs_of(model, args, kwargs or {}, dynamic_shapes)
        with _evaluation(model, training is True):
            graph = _recorded(model, args, kwargs or {}, specs, tensors).graph
    program = ONNXProgram(_model_of(graph, input_names or [], output_names or []))
    if f is not None:
        program.save(f)
    return program
