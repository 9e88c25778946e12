"""Static quantisation of nets of convolutions and linear layers, as torch.ao.quantization.quantize_fx.

`prepare_fx` traces a copy of the model, folds batch norms and puts observers behind what will be bytes; after
the model has seen calibration data, `convert_fx` puts integer layers in place of floating ones. A layer, the
addition of a residual and the ReLU behind it become one step, and bytes go from step to step; max pooling,
flattening and ReLU work on bytes, whatever else on floats, with conversions where they meet.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from warptape import core as wt
from warptape import nn
from warptape.compiler.fx import Graph, GraphModule, Node, Tracer
from warptape.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from . import _int8
from ._report import QuantizationReport
from .fake_quantize import FakeQuantize
from .observer import ObserverBase
from .qconfig import QConfig, QConfigMapping
from .stubs import DeQuantStub, QuantStub

_META = "warptape_quantization"
_F = nn.functional
_RELUS: tuple[Any, ...] = (_F.relu, wt.relu, "relu", "relu_")
_ADDS: tuple[Any, ...] = (operator.add, operator.iadd, wt.add, "add", "add_")
_FLATTENS: tuple[Any, ...] = (wt.flatten, "flatten", "reshape", "view")
_SAME_BYTES = (nn.MaxPool2d, nn.Flatten, nn.ReLU, nn.Identity, nn.Dropout, nn.Dropout2d)
_GONE = (nn.Identity, nn.Dropout, nn.Dropout2d, QuantStub, DeQuantStub)


class Unit(NamedTuple):
    """Nodes that become one step: the layer, an addition with what is added, a ReLU; absent ones are None.

    Args:
        main, add, residual, relu: nodes.
    """

    main: Any
    add: Any = None
    residual: Any = None
    relu: Any = None

    @property
    def last(self) -> Any:
        """The one whose value is the step's."""
        return self.relu or self.add or self.main


class _Tracer(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = (ObserverBase, FakeQuantize, QuantStub, DeQuantStub, QATConv2d, QATLinear)
        return isinstance(m, own) or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module) -> GraphModule:
    graph = _Tracer().trace(model)
    return GraphModule(model, graph, type(model).__name__)


def _module(gm: GraphModule, node: Any) -> Any:
    is_call = isinstance(node, Node) and node.op == "call_module"
    return gm.get_submodule(str(node.target)) if is_call else None


def _put(gm: nn.Module, target: str, module: nn.Module) -> None:
    parent, _, name = target.rpartition(".")
    setattr(gm.get_submodule(parent), name, module)


def _is_relu(gm: GraphModule, node: Node) -> bool:
    return isinstance(_module(gm, node), nn.ReLU) or (node.op != "call_module" and node.target in _RELUS)


def _is_add(node: Node) -> bool:
    two = len(node.args) == 2 and all(isinstance(a, Node) for a in node.args) and not node.kwargs
    return node.op in ("call_function", "call_method") and node.target in _ADDS and two


def _keeps_bytes(gm: GraphModule, node: Node) -> bool:
    """Whether a node's value has the coding of its input."""
    module = _module(gm, node)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices and not module.ceil_mode
    if isinstance(module, _SAME_BYTES):
        return True
    one = len(node.args) > 0 and isinstance(node.args[0], Node)
    return node.op in ("call_function", "call_method") and node.target in (*_RELUS, *_FLATTENS) and one


def _base(gm: GraphModule, node: Node, finals: Any) -> Node:
    """The node whose bytes a node's are; those of a step are its own."""
    while node not in finals and _keeps_bytes(gm, node):
        before = node.args[0]
        assert isinstance(before, Node)
        node = before
    return node


def _reason_against(module: nn.Module) -> str | None:
    """Why a layer is not quantised."""
    if isinstance(module, nn.Linear):
        return None
    if not isinstance(module, nn.Conv2d):
        return f"{type(module).__name__} has no quantised implementation"
    if module.groups != 1:
        return "convolutions by groups have no kernel on bytes"
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return f"padding={module.padding!r}, padding_mode={module.padding_mode!r} is not supported"
    return None


# ---- before calibration ----


def _simplify(gm: GraphModule, train: bool = False) -> None:
    """Folds batch norms into the layer before them and drops what does nothing."""
    uses: dict[str, int] = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            uses[str(node.target)] = uses.get(str(node.target), 0) + 1
    for node in list(gm.graph.nodes):
        module = _module(gm, node)
        before: Any = node.args[0] if node.args else None
        if isinstance(module, _GONE) and not (train and isinstance(module, nn.Dropout | nn.Dropout2d)):
            node.replace_all_uses_with(before)
            gm.graph.erase_node(node)
        elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) and module.track_running_stats:
            layer = _module(gm, before)
            folds: dict[Any, Any] = {nn.Conv2d: fuse_conv_bn_eval, nn.Linear: fuse_linear_bn_eval}
            fold = folds.get(type(layer))
            if fold is None or len(before.users) != 1 or uses[str(before.target)] != 1:
                continue
            was = layer.training
            _put(gm, str(before.target), fold(layer.eval(), module.eval()).train(was))
            node.replace_all_uses_with(before)
            gm.graph.erase_node(node)


def _units(gm: GraphModule, mapping: QConfigMapping, report: QuantizationReport) -> list[Unit]:
    """The steps, the last one first: the later of two layers takes the addition of both."""
    units: list[Unit] = []
    taken: set[Node] = set()
    for node in reversed(list(gm.graph.nodes)):
        module = _module(gm, node)
        if module is None or not any(True for _ in module.parameters(recurse=False)):
            continue
        name, kind = str(node.target), type(module)
        reason = _reason_against(module)
        if reason is None and mapping.of(name, kind) is None:
            reason = "it has no qconfig"
        if reason is not None:
            report.skipped[name] = reason
            continue
        unit, users = Unit(node), list(node.users)
        if len(users) == 1 and _is_add(users[0]) and users[0] not in taken:
            other = users[0].args[1] if users[0].args[0] is node else users[0].args[0]
            if other is not node:
                unit = unit._replace(add=users[0], residual=other)
                users = list(users[0].users)
        if len(users) == 1 and _is_relu(gm, users[0]) and users[0] not in taken:
            unit = unit._replace(relu=users[0])
        taken.update(n for n in (unit.main, unit.add, unit.relu) if n is not None)
        units.append(unit)
        report.quantized[name] = "int8"
    return units


def _prepare(model: nn.Module, mapping: QConfigMapping, train: bool) -> GraphModule:
    if not isinstance(mapping, QConfigMapping):
        raise TypeError(f"prepare_fx: expected a QConfigMapping, got {type(mapping).__name__}")
    prepared = copy.deepcopy(model)
    gm = _traced(prepared.train(model.training if train else False))
    report = QuantizationReport()
    _simplify(gm, train)
    units = _units(gm, mapping, report)
    finals = {unit.last: unit for unit in units}
    wanted: dict[Node, QConfig] = {}  # value -> qconfig of its observer
    for unit in units:
        qconfig = _qconfig_of(gm, mapping, unit)
        for value in (unit.main.args[0], unit.residual):
            if value is not None:
                base = _base(gm, value, finals)
                own = _qconfig_of(gm, mapping, finals[base]) if base in finals else qconfig
                wanted.setdefault(base, own)
    if train:
        for unit in units:
            _put(
                gm, str(unit.main.target), _qat_layer(_module(gm, unit.main), _qconfig_of(gm, mapping, unit))
            )
    observed = {}
    for number, (value, qconfig) in enumerate(wanted.items()):
        name = f"activation_post_process_{number}"
        setattr(gm, name, qconfig.activation())
        with gm.graph.inserting_after(value):
            node = gm.graph.call_module(name, (value,))
        value.replace_all_uses_with(node, lambda user, node=node: user is not node)  # type: ignore[misc]
        observed[name] = value.name
    gm.meta[_META] = {
        "units": [tuple(n and n.name for n in unit) for unit in units],
        "weights": {u.main.name: _qconfig_of(gm, mapping, u).weight for u in units},
        "report": report,
    }
    gm.recompile()
    return gm


def _qconfig_of(gm: GraphModule, mapping: QConfigMapping, unit: Unit) -> QConfig:
    kind = type(_module(gm, unit.main))
    qconfig = mapping.of(str(unit.main.target), _FLOATING.get(kind, kind))
    assert qconfig is not None
    return qconfig


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: QConfigMapping | dict[str, Any],
    example_inputs: Any = None,
    **unused: Any,
) -> GraphModule:
    """A copy of the model with observers, to be run on calibration data.

    Args:
        qconfig_mapping: a QConfigMapping, or a dict of its global, {"": qconfig}.
        example_inputs: not needed.

    Layers without a form on bytes, and those whose qconfig is None, stay as they are;
    `quantization_report(prepared)` names them. Raises: what warptape.fx raises for models that it cannot
    trace.
    """
    return _prepare(model, _mapping(qconfig_mapping), train=False)


def prepare_qat_fx(
    model: nn.Module,
    qconfig_mapping: QConfigMapping | dict[str, Any],
    example_inputs: Any = None,
    **unused: Any,
) -> GraphModule:
    """A copy of the model in which weights and activations are rounded as they will be, to be trained on.

    Batch norms are folded with the averages that they have.
    """
    return _prepare(model, _mapping(qconfig_mapping), train=True)


def fuse_fx(model: nn.Module, **unused: Any) -> GraphModule:
    """A copy of the model in evaluation mode with batch norms folded.

    Args:
        model: that can be traced.
        **unused: without effect.
    """
    gm = _traced(copy.deepcopy(model).eval())
    _simplify(gm)
    gm.recompile()
    return gm


def _mapping(given: Any) -> QConfigMapping:
    return QConfigMapping().set_global(given.get("")) if isinstance(given, dict) else given


def quantization_report(model: nn.Module) -> QuantizationReport:
    """What prepare_fx, and then convert_fx, did with each layer. ValueError for other models.

    Args:
        model: what one of them returned.
    """
    meta = getattr(model, "meta", {}).get(_META)
    if meta is None:
        raise ValueError("quantization_report: expected what prepare_fx or convert_fx returned")
    report: QuantizationReport = meta["report"]
    return report


# ---- training ----


class QATConv2d(nn.Conv2d):
    """A convolution whose weight is rounded as it will be.

    `prepare_qat_fx` makes it of an nn.Conv2d.
    """

    weight_fake_quant: FakeQuantize

    def forward(self, input: wt.Tensor) -> wt.Tensor:
        weight = self.weight_fake_quant(self.weight)
        return _F.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class QATLinear(nn.Linear):
    """A linear layer whose weight is rounded as it will be.

    `prepare_qat_fx` makes it of an nn.Linear.
    """

    weight_fake_quant: FakeQuantize

    def forward(self, input: wt.Tensor) -> wt.Tensor:
        return _F.linear(input, self.weight_fake_quant(self.weight), self.bias)


_FLOATING: dict[type, type] = {QATConv2d: nn.Conv2d, QATLinear: nn.Linear}


def _qat_layer(layer: nn.Module, qconfig: QConfig) -> nn.Module:
    kind = QATLinear if isinstance(layer, nn.Linear) else QATConv2d
    copy_of_layer = kind.__new__(kind)
    copy_of_layer.__dict__.update(layer.__dict__)
    copy_of_layer.weight_fake_quant = qconfig.weight()
    if not isinstance(copy_of_layer.weight_fake_quant, FakeQuantize):
        raise TypeError(
            "prepare_qat_fx: expected a QConfig of FakeQuantize, as get_default_qat_qconfig() gives, got "
            f"{type(copy_of_layer.weight_fake_quant).__name__}"
        )
    return copy_of_layer


# ---- after calibration ----


def _weight_codes(layer: nn.Module, factory: Callable[..., Any]) -> tuple[wt.Tensor, wt.Tensor]:
    """int8 codes [O, C, KH, KW] of the layer's weight, and scales [O]."""
    weight = layer.weight.detach().float()
    observer = factory()
    observer = observer.activation_post_process if isinstance(observer, FakeQuantize) else observer
    observer(weight)
    scale, zero = observer.calculate_qparams()
    if bool((zero != 0).any()) or observer.quant_min < -128 or observer.quant_max > 127:
        raise ValueError("convert_fx: weights need a symmetric observer of qint8")
    scale = scale.reshape(-1).expand(weight.shape[0])
    spread = scale.reshape(-1, *[1] * (weight.ndim - 1))
    codes = wt.round(weight / spread).clamp(observer.quant_min, observer.quant_max).to(wt.int8)
    return (codes.reshape(*codes.shape, 1, 1) if codes.ndim == 2 else codes), scale


class _Value:
    """A value in the new graph: as floats, as bytes, or both."""

    def __init__(self, floats: Any = None, bytes_: Any = None, coding: Any = None) -> None:
        self.floats, self.bytes, self.coding = floats, bytes_, coding


class _Converter:
    """Builds the graph on bytes, node by node."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm, self.graph = gm, Graph()
        self.modules: dict[str, nn.Module] = {}
        self.values: dict[Node, _Value] = {}
        by_name = {node.name: node for node in gm.graph.nodes}
        held = gm.meta[_META]
        self.weights = held["weights"]
        self.units = [Unit(*(name and by_name[name] for name in names)) for names in held["units"]]
        self.finals = {unit.last: unit for unit in self.units}
        self.inside = {n for u in self.units for n in (u.main, u.add, u.relu) if n and n is not u.last}
        self.codings: dict[Node, _int8.Coding] = {}
        for node in gm.graph.nodes:
            module = _module(gm, node)
            if isinstance(module, ObserverBase | FakeQuantize):
                scale, zero = module.calculate_qparams()
                self.codings[node.args[0]] = _int8.Coding(float(scale), int(zero))

    def call(self, stem: str, module: nn.Module, args: tuple[Any, ...]) -> Node:
        name = stem.replace(".", "_")
        while name in self.modules:
            name += "_"
        self.modules[name] = module
        return self.graph.call_module(name, args)

    def floats(self, node: Node) -> Node:
        value = self.values[node]
        if value.floats is None:
            value.floats = self.call("dequantize_0", _int8.DeQuantize(value.coding), (value.bytes,))
        floats_node: Node = value.floats
        return floats_node

    def bytes(self, node: Node) -> tuple[Node, _int8.Coding]:
        value = self.values[node]
        if value.bytes is None:
            value.bytes = self.call("quantize_0", _int8.Quantize(value.coding), (value.floats,))
        return value.bytes, value.coding

    def unit(self, unit: Unit, node: Node) -> None:
        layer = _module(self.gm, unit.main)
        codes, scale = _weight_codes(layer, self.weights[unit.main.name])
        x, coding = self.bytes(unit.main.args[0])
        added, residual = self.bytes(unit.residual) if unit.residual is not None else (None, None)
        output = self.codings.get(node)
        int8_layer = _int8.Int8Conv2d(layer, codes, scale, coding, output, residual, unit.relu is not None)
        called = self.call(str(unit.main.target), int8_layer, (x,) if added is None else (x, added))
        self.values[node] = _Value(None, called, output) if output else _Value(called)

    def other(self, node: Node) -> None:
        before = node.args[0] if node.args else None
        module = _module(self.gm, node)
        if isinstance(module, (ObserverBase, FakeQuantize, *_GONE)):
            assert isinstance(before, Node)
            self.values[node] = self.values[before]
        elif (
            isinstance(before, Node) and _keeps_bytes(self.gm, node) and self.values[before].bytes is not None
        ):
            x, coding = self.bytes(before)
            if _is_relu(self.gm, node):
                clamped = self.graph.call_function(wt.clamp, (x,), {"min": coding.zero_point})
            elif isinstance(module, nn.MaxPool2d):
                clamped = self.call(str(node.target), _int8.Int8MaxPool2d(module), (x,))
            else:
                clamped = self.copied(node, {before: x})
            self.values[node] = _Value(None, clamped, coding)
        else:
            own = self.codings.get(node)
            if own is None and isinstance(before, Node) and _keeps_bytes(self.gm, node):
                own = self.values[before].coding
            self.values[node] = _Value(self.copied(node, {}), None, own)

    def copied(self, node: Node, given: dict[Node, Node]) -> Node:
        if node.op == "call_module":
            self.modules.setdefault(str(node.target), _module(self.gm, node))
        return self.graph.node_copy(node, lambda n: given[n] if n in given else self.floats(n))

    def run(self) -> GraphModule:
        root: dict[str, Any] = {}
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                owner: Any = self.gm
                for part in str(node.target).split("."):
                    owner = getattr(owner, part)
                root[str(node.target)] = owner
            if node in self.inside:
                continue
            if node in self.finals:
                self.unit(self.finals[node], node)
            else:
                self.other(node)
        converted = GraphModule({**root, **self.modules}, self.graph, type(self.gm).__name__)
        converted.meta[_META] = {"report": self.gm.meta[_META]["report"]}
        return converted.eval()


def convert_fx(graph_module: GraphModule, **unused: Any) -> GraphModule:
    """A model of integer layers made of what prepare_fx or prepare_qat_fx returned, which stays as it is.

    Raises: ValueError for other modules and where an observer has seen no data.
    """
    if _META not in getattr(graph_module, "meta", {}) or "units" not in graph_module.meta[_META]:
        raise ValueError("convert_fx: expected what prepare_fx or prepare_qat_fx returned")
    with wt.no_grad():
        return _Converter(graph_module).run()
