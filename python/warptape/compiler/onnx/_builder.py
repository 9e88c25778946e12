"""The ONNX graph in the making, and the table of what each op becomes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from warptape import core as wt

from ... import _C
from ...core.op_facts import OpTable
from ...core.pytree import tree_leaves
from ._errors import UnsupportedOperatorError
from ._sizes import Atom, Form, Varying

OPSET = 18
Names = str | list[str | None]
_TYPES = {
    wt.float32: "FLOAT",
    wt.float64: "DOUBLE",
    wt.float16: "FLOAT16",
    wt.bfloat16: "BFLOAT16",
    wt.int8: "INT8",
    wt.int16: "INT16",
    wt.int32: "INT32",
    wt.int64: "INT64",
    wt.uint8: "UINT8",
    wt.bool: "BOOL",
    wt.complex64: "COMPLEX64",
    wt.complex128: "COMPLEX128",
}
MAPPINGS: OpTable[Callable[..., Names]] = OpTable()


def maps(*names: str) -> Callable[[Callable[..., Names]], Callable[..., Names]]:
    """Registers what an op becomes, by its name or by a fact that it declares (core/op_facts.py):
    f(builder, arguments, its first result) -> names of its results."""

    def add(f: Callable[..., Names]) -> Callable[..., Names]:
        MAPPINGS.update(dict.fromkeys(names, f))
        return f

    return add


def onnx_type(dtype: wt.dtype) -> int:
    """ONNX's number of a dtype."""
    from onnx import TensorProto

    return getattr(TensorProto, _TYPES[dtype])


class Builder:
    """Nodes and initializers; `names` has the ONNX name of each value of the graph of ops."""

    def __init__(self, graph: Any, reserved: Iterable[str] = ()) -> None:
        """`graph` has `values`; `reserved` are names that a user gave."""
        from onnx import helper, numpy_helper

        self._helper, self._numpy = helper, numpy_helper
        self.values = graph.values
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.names: dict[int, str] = {}
        self.results: list[int] = []  # of the call that is being mapped
        self._sizes: dict[str, str] = {}  # of symbols, as tensors [1]
        self._constants: dict[Any, str] = {}
        self._used = set(reserved)

    def fresh(self, name: str) -> str:
        """The name, or one like it where it is another value's."""
        unused, number = name, 0
        while unused in self._used:
            number += 1
            unused = f"{name}_{number}"
        self._used.add(unused)
        return unused

    def node(self, kind: str, *inputs: str | None, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; the name of its output, or a list of several. An input that is None is left out."""
        stem = f"{kind}_{len(self.nodes)}"
        outputs_of = [self.fresh(f"{stem}_{k}" if k else stem) for k in range(outputs)]
        attributes = {key: x for key, x in attributes.items() if x is not None}
        if any(isinstance(x, (Varying, _C._Expr)) for x in tree_leaves(attributes)):
            raise UnsupportedOperatorError("a size that varies, where ONNX wants a number")
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        made_node = self._helper.make_node(
            kind, [x or "" for x in inputs], outputs_of, outputs_of[0], **attributes
        )
        self.nodes.append(made_node)
        return outputs_of[0] if outputs == 1 else outputs_of

    def initializer(self, name: str, tensor: Any) -> str:
        """A tensor of the file, under its name or one like it."""
        name = self.fresh(name)
        if tensor.dtype == wt.bfloat16:
            bits = tensor.detach().cpu().contiguous().view(wt.int16).numpy().tobytes()
            tensor_proto = self._helper.make_tensor(
                name, onnx_type(tensor.dtype), list(tensor.shape), bits, raw=True
            )
        else:
            tensor_proto = self._numpy.from_array(tensor.detach().cpu().contiguous().numpy(), name)
        self.initializers.append(tensor_proto)
        return name

    def constant(self, value: object, dtype: wt.dtype) -> str:
        """A number or a nested list of numbers."""
        if any(isinstance(x, (Varying, _C._Expr)) for x in tree_leaves(value)):
            raise UnsupportedOperatorError("a size that varies, where ONNX wants a number")
        key = (repr(value), dtype)
        if key not in self._constants:
            self._constants[key] = self.initializer(
                f"number_{len(self._constants)}", wt.tensor(value, dtype=dtype)
            )
        return self._constants[key]

    def read_symbol(self, name: str, value: str, dim: int, factor: int = 1, offset: int = 0) -> None:
        """Takes a size that varies from a dim of an input, which is `factor` times it and `offset`."""
        size = self.node("Gather", self.node("Shape", value), self._number(dim), axis=0)
        size = self.node("Sub", size, self._number(offset)) if offset else size
        self._sizes[name] = self.node("Div", size, self._number(factor)) if factor != 1 else size

    def _number(self, x: int) -> str:
        return self.constant([x], wt.int64)

    def _expression(self, e: object) -> str:
        """A size, as an int64 tensor [1]."""
        if isinstance(e, int):
            return self._number(e)
        form = e.form() if isinstance(e, Varying) else _form_of(e)
        if form is None:
            raise UnsupportedOperatorError(
                "a size that depends on those of the inputs in a way that is not known here"
                + (f": it is {e.values}" if isinstance(e, Varying) else "")
            )
        total = ""
        for factor, atoms in form.terms:
            product = "" if atoms and factor == 1 else self._number(factor)
            for atom in atoms:
                product = self.node("Mul", product, self._atom(atom)) if product else self._atom(atom)
            total = self.node("Add", total, product) if total else product
        return self.node("Div", total, self._number(form.divisor)) if form.divisor != 1 else total

    def _atom(self, a: Atom) -> str:
        x = self._sizes[a.symbol]
        x = self.node("Mul", x, self._number(a.factor)) if a.factor != 1 else x
        x = self.node("Add", x, self._number(a.offset)) if a.offset else x
        if a.divisor != 1:  # ONNX's Div rounds towards zero, its Mod is that of Python
            rest = self.node("Mod", x, self._number(a.divisor))
            x = self.node("Div", self.node("Sub", x, rest), self._number(a.divisor))
        x = self.node("Mod", x, self._number(a.modulus)) if a.modulus else x
        x = x if a.low is None else self.node("Max", x, self._number(a.low))
        return x if a.high is None else self.node("Min", x, self._number(a.high))

    def ints(self, sizes: list[Any]) -> str:
        """Integers, of which some may vary, as an int64 tensor."""
        if any(s is None for s in sizes):
            raise UnsupportedOperatorError(
                "a size that depends on the inputs' values, or not linearly on sizes"
            )
        if all(isinstance(s, int) for s in sizes):
            return self.constant(sizes, wt.int64)
        return self.node("Concat", *map(self._expression, sizes), axis=0)

    def scalar(self, x: object) -> str:
        """An integer that may vary, as an int64 tensor []."""
        if isinstance(x, int):
            return self.constant(x, wt.int64)
        return self.node("Squeeze", self._expression(x), self.constant([0], wt.int64))

    def __call__(self, x: object) -> str | None:
        """The name of a tensor that a call takes, or None."""
        return self.names[x.id] if isinstance(x, _C._Ref) else None

    def sizes(self, x: object) -> list[Any]:
        """The sizes of a tensor that a call takes, or of a value by its number."""
        return self.values[getattr(x, "id", x)][2]

    def dtype(self, x: object) -> Any:
        """The dtype of a tensor that a call takes, or of a value by its number."""
        return self.values[getattr(x, "id", x)][1]

    def cast(self, name: str, have: wt.dtype, want: wt.dtype) -> str:
        """The tensor in another dtype."""
        return name if have == want else self.node("Cast", name, to=onnx_type(want))

    def operand(self, x: object, dtype: wt.dtype) -> str:
        """A tensor or a number, in a dtype."""
        if isinstance(x, _C._Ref):
            return self.cast(self.names[x.id], self.dtype(x), dtype)
        if isinstance(x, (Varying, _C._Expr)):
            return self.cast(self.scalar(x), wt.int64, dtype)
        return self.constant(x, dtype)


def same_size(x: object, y: object) -> bool:
    """Whether two sizes are one."""
    if isinstance(x, _C._Expr) and isinstance(y, _C._Expr):
        return bool(x.terms == y.terms and x.divisor == y.divisor)
    return bool(x == y)


def _form_of(e: Any) -> Form:
    """An expression of a graph that was recorded for all sizes."""
    if e.divisor != 1:  # of sizes that divide: the file would not refuse others
        raise UnsupportedOperatorError(
            "a size of an ExportedProgram that is divided; give torch.onnx.export the module itself"
        )
    return Form([(factor, [Atom(name) for name in names]) for factor, names in e.terms])


def common_dtype(b: Builder, x: Any, y: Any) -> Any:
    """What two operands, tensors or numbers, are computed in."""
    if isinstance(x, _C._Ref) and isinstance(y, _C._Ref):
        samples = [wt.empty([0] * min(len(b.sizes(t)), 1), dtype=b.dtype(t)) for t in (x, y)]
        return wt.result_type(*samples)
    tensor, number = (x, y) if isinstance(x, _C._Ref) else (y, x)
    number = 1 if isinstance(number, (Varying, _C._Expr)) else number
    return wt.result_type(wt.empty([0] * min(len(b.sizes(tensor)), 1), dtype=b.dtype(tensor)), number)


def tensors_of(args: dict[str, Any]) -> list[Any]:
    """The tensors that a call takes."""
    return [x for x in tree_leaves(args) if isinstance(x, _C._Ref)]


def run_mapping(b: Builder, name: str, args: dict[str, Any], outputs: list[Any]) -> None:
    """Adds what a call becomes and names its results."""
    f = MAPPINGS.find(name)
    if f is None:
        raise UnsupportedOperatorError(f"there is no ONNX form of op {name} here")
    if args.get("mask") is not None and name.rstrip("_") != "masked_fill":
        raise UnsupportedOperatorError("a reduction of a masked tensor")
    if any(b.dtype(x).is_complex for x in (*tensors_of(args), *filter(None, outputs))):
        raise UnsupportedOperatorError("complex numbers")
    b.results = outputs
    results = f(b, SimpleNamespace(**args), outputs[0] if outputs else None)
    names = [results] if isinstance(results, str) else results
    for i, result in zip(outputs, names, strict=False):
        if i is not None and result is not None:
            b.names[i] = result
