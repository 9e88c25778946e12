"""The ops in the headers for extensions: methods of at::Tensor and functions of namespace at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FUNCTION, METHOD, NN, OUT, LINALG, SPECIAL, FFT = (1 << bit for bit in (0, 1, 2, 3, 4, 6, 7))
FOLDER = Path("python/warptape/torch/include/ATen/ops")
HEADER = "// Written by tools/generate.py from the declarations of the ops.\n"
TYPES = {
    "Tensor": "const Tensor&",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "Number": "const Scalar&",
    "tuple of ints": "IntArrayRef",
    "tuple of Tensors": "TensorList",
    "tuple of floats": "ArrayRef<double>",
    "tuple of Numbers": "ArrayRef<Scalar>",
    "torch.dtype": "ScalarType",
    "torch.device": "Device",
    "str": "string_view",
}
RETURNS = {
    "Tensor": "Tensor",
    "OneOrMany": "Tensor",
    "list": "std::vector<Tensor>",
    "None": "void",
    "bool": "bool",
    "int": "int64_t",
    "dtype": "ScalarType",
    "Number": "Scalar",
}
# How many tensors an op returns whose results have no names.
RESULTS = {
    "native_layer_norm": 3,
    "native_group_norm": 3,
    "native_batch_norm": 3,
    "var_mean": 2,
    "std_mean": 2,
}
# Written in ATen/core/TensorBody.h.
BY_HAND = {
    *(
        "to",
        "item",
        "type_as",
        "size",
        "stride",
        "numel",
        "dim",
        "data",
        "cpu",
        "cuda",
        "is_contiguous",
        "type",
    ),
    *("is_floating_point", "is_complex", "is_signed", "element_size", "index_put_", "unique", "ndimension"),
    *("storage_offset", "is_same", "get_device", "requires_grad_", "tolist", "data_ptr", "slice"),
}
KEYWORDS = {
    *(
        "bool",
        "char",
        "double",
        "float",
        "int",
        "long",
        "short",
        "default",
        "register",
        "operator",
        "and",
        "or",
    ),
    *("xor", "not", "complex", "class", "template", "this", "new", "delete", "union", "bitand", "bitor"),
}
IN_PLACE = re.compile(r"[a-z0-9]_$")


class Parameter(NamedTuple):
    """A parameter in C++: how it is declared, and what is passed on for it."""

    type: str
    name: str
    default: str
    values: tuple[str, ...]


def _default(arg: Any, kind: str) -> str:
    text = arg.default
    if arg.type == "torch.Generator" or text == "None" or (arg.optional and not text):
        return "{}"
    if kind.endswith("ArrayRef") or kind.startswith("ArrayRef") or kind == "TensorList":
        return text.replace("[", "{").replace("]", "}").replace("(", "{").replace(")", "}").replace(",}", "}")
    if kind == "string_view":
        return text.replace("'", '"')
    if text.startswith("torch."):
        return "k" + {"long": "Int64"}.get(text[6:], text[6:].capitalize())
    return {"True": "true", "False": "false", "inf": "INFINITY"}.get(text, text)


def _parameter(arg: Any) -> Parameter | None:
    name = arg.name + "_" if arg.name in KEYWORDS else "self" if arg.name == "input" else arg.name
    if arg.type == "torch.Generator":
        return Parameter("const optional<Generator>&", name, "{}", (name,))
    if arg.type == "torch.memory_format":
        return Parameter("optional<MemoryFormat>", name, "{}" if arg.has_default else "", (name,))
    if arg.type not in TYPES:
        return None
    kind = TYPES[arg.type]
    if arg.optional:
        kind = {
            "IntArrayRef": "OptionalIntArrayRef",
            "const Tensor&": "const optional<Tensor>&",
            "const Scalar&": "const optional<Scalar>&",
        }.get(kind, f"optional<{kind}>")
    return Parameter(kind, name, _default(arg, kind) if arg.has_default else "", (name,))


def parameters(op: Any) -> list[Parameter] | None:
    """The parameters of an op, or None where C++ has no type for one of them."""
    names = [arg.name for arg in op.args]
    factory = "device" in names and "requires_grad" in names
    found: list[Parameter] = []
    for arg in op.args:
        if factory and arg.name == "dtype":
            values = ("options.dtype_opt()", "options.device_opt()", "options.requires_grad()")
            found.append(Parameter("const TensorOptions&", "options", "{}", values))
        elif factory and arg.name in ("device", "requires_grad"):
            continue
        elif (parameter := _parameter(arg)) is None:
            return None
        elif factory and arg.type == "torch.Generator":
            found.append(Parameter("", "", "", ("nullopt",)))  # no parameter
        else:
            found.append(parameter)
    return found


class Overload(NamedTuple):
    """A function or method to write."""

    op: str
    name: str
    returns: str
    parameters: list[Parameter]
    flags: int

    def required(self) -> int:
        """How many parameters must be given: one with a default before one without must, too."""
        shown = self.shown()
        return max([i + 1 for i, p in enumerate(shown) if not p.default], default=0)

    def shown(self) -> list[Parameter]:
        """The parameters of the function."""
        return [p for p in self.parameters if p.name]

    def types(self) -> tuple[str, ...]:
        """What makes it another overload."""
        return tuple(p.type for p in self.shown())


def _names(op: Any) -> Iterator[str]:
    if op.flags & (FUNCTION | METHOD | NN):
        yield op.name
    for flag, prefix in ((LINALG, "linalg_"), (FFT, "fft_"), (SPECIAL, "special_")):
        if op.flags & flag:
            yield prefix + op.name


def overloads(ops: Iterable[Any]) -> Iterator[Overload]:
    """All that can be written, in the order of the declarations."""
    for op in ops:
        returns = RETURNS.get(op.returns)
        if op.returns == "tuple" and (count := len(op.return_names) or RESULTS.get(op.name)):
            returns = f"std::tuple<{', '.join(['Tensor'] * count)}>"
        given = parameters(op)
        if returns is None or given is None or op.name in BY_HAND or op.name.startswith("__"):
            continue
        for name in _names(op):
            if name not in KEYWORDS:
                yield Overload(name, name, returns, given, op.flags)


def _signature(overload: Overload, taken: set[tuple[str, ...]]) -> str | None:
    """The parameters in C++, or None where an earlier overload is the same. A call that an earlier one takes
    stays that one's: parameters lose their defaults until no call fits both by number and types."""
    shown, types = overload.shown(), overload.types()
    required = overload.required()
    while types[:required] in taken:
        required += 1
        if required > len(types):
            return None
    for count in range(required, len(types) + 1):
        taken.add(types[:count])
    return ", ".join(
        f"{p.type} {p.name}" + (f" = {p.default}" if i >= required and p.default else "")
        for i, p in enumerate(shown)
    )


def _values(overload: Overload) -> str:
    return ", ".join(value for p in overload.parameters for value in p.values)


def _call(returns: str, op: str, values: str) -> str:
    return f'return wtx::call<{returns}>("{op}"{", " if values else ""}{values});'


def _method(overload: Overload, taken: set[tuple[str, ...]]) -> str | None:
    first, *rest = overload.parameters
    if first.type != "const Tensor&":
        return None
    inner = overload._replace(parameters=rest)
    signature = _signature(inner, taken)
    if signature is None:
        return None
    values = ", ".join(filter(None, ["*this", _values(inner)]))
    if IN_PLACE.search(overload.name):
        rest = values.removeprefix("*this")
        body = f'return wtx::call_in_place("{overload.op}", const_cast<Tensor&>(*this){rest});'
        return f"Tensor& {overload.name}({signature}) const {{ {body} }}"
    body = _call(overload.returns, overload.op, values)
    return f"{overload.returns} {overload.name}({signature}) const {{ {body} }}"


def _function(overload: Overload, taken: set[tuple[str, ...]]) -> str | None:
    signature = _signature(overload, taken)
    if signature is None:
        return None
    values = _values(overload)
    if IN_PLACE.search(overload.name) and overload.parameters[0].type == "const Tensor&":
        body = f'return wtx::call_in_place("{overload.op}", {values});'
        return f"inline Tensor& {overload.name}({signature.removeprefix('const ')}) {{ {body} }}"
    body = _call(overload.returns, overload.op, values)
    return f"inline {overload.returns} {overload.name}({signature}) {{ {body} }}"


def _out_function(overload: Overload, taken: set[tuple[str, ...]]) -> str | None:
    if overload.returns != "Tensor":
        return None
    signature = _signature(overload, taken)
    if signature is None:
        return None
    body = f'return write_out(out, wtx::call<Tensor>("{overload.op}", {_values(overload)}));'
    return (
        f"inline Tensor& {overload.name}_out(Tensor& out{', ' if signature else ''}{signature}) {{ {body} }}"
    )


def header_texts(ops: list[Any]) -> dict[Path, str]:
    """The two files, by their place in the tree."""
    methods, functions, taken = [], [], {}
    for overload in overloads(ops):

        def claimed(kind: str, name: str = overload.name) -> set[tuple[str, ...]]:
            return taken.setdefault((kind, name), set())

        if overload.flags & METHOD and overload.name == overload.op:
            methods.append(_method(overload, claimed("method")))
        if overload.flags & (FUNCTION | NN | LINALG | FFT | SPECIAL):
            functions.append(_function(overload, claimed("function")))
            if overload.flags & OUT:
                functions.append(_out_function(overload, claimed("out")))
    return {
        FOLDER / "methods.inc": HEADER + "\n".join(filter(None, methods)) + "\n",
        FOLDER / "functions.inc": HEADER + "\n".join(filter(None, functions)) + "\n",
    }
