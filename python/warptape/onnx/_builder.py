"""The ONNX graph in the making, and the table of what each op becomes in it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import warptape

from .. import _C
from ..utils._pytree import tree_leaves

OPSET = 18
Names = str | list[str | None]
_TYPES = {
    warptape.float32: "FLOAT",
    warptape.float64: "DOUBLE",
    warptape.float16: "FLOAT16",
    warptape.bfloat16: "BFLOAT16",
    warptape.int8: "INT8",
    warptape.int16: "INT16",
    warptape.int32: "INT32",
    warptape.int64: "INT64",
    warptape.uint8: "UINT8",
    warptape.bool: "BOOL",
    warptape.complex64: "COMPLEX64",
    warptape.complex128: "COMPLEX128",
}
MAPPINGS: dict[str, Callable[..., Names]] = {}


class UnsupportedOperatorError(RuntimeError):
    """An op, or a use of one, that is not exported to ONNX; the text has file and line."""


def maps(*names: str) -> Callable[[Callable[..., Names]], Callable[..., Names]]:
    """Registers what an op becomes: f(builder, arguments, its first result) -> names of its results."""

    def add(f: Callable[..., Names]) -> Callable[..., Names]:
        MAPPINGS.update(dict.fromkeys(names, f))
        return f

    return add


def onnx_type(dtype: Any) -> int:
    """ONNX's number of a dtype."""
    from onnx import TensorProto

    return getattr(TensorProto, _TYPES[dtype])


class Builder:
    """Nodes and initializers; `names` has the ONNX name of each value of the graph of ops."""

    def __init__(self, graph: Any) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._numpy = helper, numpy_helper
        self.values = graph.values
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.names: dict[int, str] = {}
        self.results: list[int] = []  # of the call that is being mapped
        self._sizes: dict[str, str] = {}  # of symbols, as tensors [1]
        self._constants: dict[Any, str] = {}

    def node(self, kind: str, *inputs: str | None, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; the name of its output, or a list of several. An input that is None is left out."""
        made = [f"{kind}_{len(self.nodes)}_{k}" if k else f"{kind}_{len(self.nodes)}" for k in range(outputs)]
        attributes = {key: x for key, x in attributes.items() if x is not None}
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        made_node = self._helper.make_node(kind, [x or "" for x in inputs], made, made[0], **attributes)
        self.nodes.append(made_node)
        return made[0] if outputs == 1 else made

    def initializer(self, name: str, tensor: Any) -> str:
        """A tensor of the file."""
        if tensor.dtype == warptape.bfloat16:
            bits = tensor.detach().cpu().contiguous().view(warptape.int16).numpy().tobytes()
            made = self._helper.make_tensor(name, onnx_type(tensor.dtype), list(tensor.shape), bits, raw=True)
        else:
            made = self._numpy.from_array(tensor.detach().cpu().contiguous().numpy(), name)
        self.initializers.append(made)
        return name

    def constant(self, value: Any, dtype: Any) -> str:
        """A number or a nested list of numbers."""
        key = (repr(value), dtype)
        if key not in self._constants:
            self._constants[key] = self.initializer(
                f"number_{len(self._constants)}", warptape.tensor(value, dtype=dtype)
            )
        return self._constants[key]

    def read_symbol(self, name: str, value: str, dim: int) -> None:
        """Takes a size that varies from a dim of an input."""
        shape = self.node("Shape", value)
        self._sizes[name] = self.node("Gather", shape, self.constant([dim], warptape.int64), axis=0)

    def _expression(self, e: Any) -> str:
        """A size, as an int64 tensor [1]."""
        if isinstance(e, int):
            return self.constant([e], warptape.int64)
        total = ""
        for factor, names in e.terms:
            product = "" if names and factor == 1 else self.constant([factor], warptape.int64)
            for name in names:
                product = self.node("Mul", product, self._sizes[name]) if product else self._sizes[name]
            total = self.node("Add", total, product) if total else product
        return (
            total if e.divisor == 1 else self.node("Div", total, self.constant([e.divisor], warptape.int64))
        )

    def ints(self, sizes: list[Any]) -> str:
        """Integers, of which some may vary, as an int64 tensor."""
        if any(s is None for s in sizes):
            raise UnsupportedOperatorError(
                "a size that depends on the inputs' values, or not linearly on sizes"
            )
        if all(isinstance(s, int) for s in sizes):
            return self.constant(sizes, warptape.int64)
        return self.node("Concat", *map(self._expression, sizes), axis=0)

    def scalar(self, x: Any) -> str:
        """An integer that may vary, as an int64 tensor []."""
        if isinstance(x, int):
            return self.constant(x, warptape.int64)
        return self.node("Squeeze", self._expression(x), self.constant([0], warptape.int64))

    def __call__(self, x: Any) -> str | None:
        """The name of a tensor that a call takes, or None."""
        return self.names[x.id] if isinstance(x, _C._Ref) else None

    def sizes(self, x: Any) -> list[Any]:
        """The sizes of a tensor that a call takes, or of a value by its number."""
        return self.values[getattr(x, "id", x)][2]

    def dtype(self, x: Any) -> Any:
        """The dtype of a tensor that a call takes, or of a value by its number."""
        return self.values[getattr(x, "id", x)][1]

    def cast(self, name: str, have: Any, want: Any) -> str:
        """The tensor in another dtype."""
        return name if have == want else self.node("Cast", name, to=onnx_type(want))

    def operand(self, x: Any, dtype: Any) -> str:
        """A tensor or a number, in a dtype."""
        if isinstance(x, _C._Ref):
            return self.cast(self.names[x.id], self.dtype(x), dtype)
        if isinstance(x, _C._Expr):
            return self.cast(self.scalar(x), warptape.int64, dtype)
        return self.constant(x, dtype)


def common_dtype(b: Builder, x: Any, y: Any) -> Any:
    """What two operands, tensors or numbers, are computed in."""
    if isinstance(x, _C._Ref) and isinstance(y, _C._Ref):
        samples = [warptape.empty([0] * min(len(b.sizes(t)), 1), dtype=b.dtype(t)) for t in (x, y)]
        return warptape.result_type(*samples)
    tensor, number = (x, y) if isinstance(x, _C._Ref) else (y, x)
    number = number.value if isinstance(number, _C._Expr) else number
    return warptape.result_type(
        warptape.empty([0] * min(len(b.sizes(tensor)), 1), dtype=b.dtype(tensor)), number
    )


def tensors_of(args: dict[str, Any]) -> list[Any]:
    """The tensors that a call takes."""
    return [x for x in tree_leaves(args) if isinstance(x, _C._Ref)]


def run_mapping(b: Builder, name: str, args: dict[str, Any], outputs: list[Any]) -> None:
    """Adds what a call becomes and names its results."""
    f = MAPPINGS.get(name) or (MAPPINGS.get(name[:-1]) if name.endswith("_") else None)
    if f is None:
        raise UnsupportedOperatorError(f"there is no ONNX form of op {name} here")
    if args.get("mask") is not None and name.rstrip("_") != "masked_fill":
        raise UnsupportedOperatorError("a reduction of a masked tensor")
    if any(b.dtype(x).is_complex for x in (*tensors_of(args), *filter(None, outputs))):
        raise UnsupportedOperatorError("complex numbers")
    b.results = outputs
    made = f(b, SimpleNamespace(**args), outputs[0] if outputs else None)
    names = [made] if isinstance(made, str) else made
    for i, given in zip(outputs, names, strict=False):
        if i is not None and given is not None:
            b.names[i] = given
