"""Writes what follows from the declarations of the ops: the stubs, python/warptape/**/*.pyi,
docs/reference/ops.md, and the ops in the headers for extensions.

It runs with the installed warptape. tests/test_generated.py compares.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import keyword
import pkgutil
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import warptape
from warptape import _C, core
from warptape._missing import ROOMS, public_name, torch_names, wing

ROOT = Path(__file__).resolve().parents[1]
# Bits of OpFlag in csrc/op/facts.h, and where Python finds the op.
FUNCTION, METHOD, NN, OUT, LINALG, PRIVATE, SPECIAL, FFT = 1, 2, 4, 8, 16, 32, 64, 128
WINDOWS, MASKED = 1 << 30, 1 << 31
# The module that has the ops of a place, and whose stub declares them.
MODULES = {
    FUNCTION: "warptape.core",
    NN: "warptape.nn.functional",
    LINALG: "warptape.linalg",
    SPECIAL: "warptape.special",
    FFT: "warptape.fft",
    WINDOWS: "warptape.signal.windows",
    MASKED: "warptape.masked",
}
# Inside a class or this module, names such as bool and dtype mean something else: private aliases do not.
TYPES = {
    "Tensor": "Tensor",
    "tuple of Tensors": "Sequence[Tensor]",
    "tuple of Tensors or None": "Sequence[Tensor | None]",
    "int": "_int",
    "float": "_float",
    "bool": "_bool",
    "Number": "_Number",
    "tuple of ints": "_int | Sequence[_int]",
    "tuple of tuples of ints": "Sequence[_int | Sequence[_int]]",
    "tuple of floats": "_float | Sequence[_float]",
    "tuple of Numbers": "Sequence[_Number]",
    "torch.dtype": "_dtype",
    "torch.device": "_device | _str | _int",
    "str": "_str",
    "torch.memory_format": "memory_format",
    "torch.Generator": "Generator",
}
# Arguments that take more than their declared type says.
ARGUMENTS = {("linear_cross_entropy", "options"): "Any"}
RETURNS = {
    "None": "None",
    "Tensor": "Tensor",
    "list": "tuple[Tensor, ...]",
    "bool": "_bool",
    "int": "_int",
    "float": "_float",
    "Number": "_Number",
    "ints": "Size",
    "int tuple": "tuple[_int, ...]",
    "dtype": "_dtype",
    "OneOrMany": "Any",
    "TensorAndList": "tuple[Tensor, tuple[Tensor, ...]]",
}
# Of compiled classes: attributes and methods that are no ops. What is not named here is Any.
ATTRIBUTES = {
    "_base": "Tensor | None",
    "_cdata": "_int",
    "_version": "_int",
    "data": "Tensor",
    "device": "_device",
    "dtype": "_dtype",
    "grad": "Tensor | None",
    "grad_fn": "Node | None",
    "is_cpu": "_bool",
    "is_cuda": "_bool",
    "is_floating_point": "_bool",
    "is_leaf": "_bool",
    "is_meta": "_bool",
    "is_signed": "_bool",
    "itemsize": "_int",
    "nbytes": "_int",
    "ndim": "_int",
    "output_nr": "_int",
    "requires_grad": "_bool",
    "retains_grad": "_bool",
    "shape": "Size",
    "type": "_str",
}
OPERAND = "Tensor | _Number"
METHODS = {
    **{f"__{n}__": f"(self, other: {OPERAND}, /) -> Tensor" for n in ["lt", "le", "gt", "ge"]},
    **{
        f"__{prefix}{n}__": f"(self, other: {OPERAND}, /) -> Tensor"
        for n in [
            "add",
            "sub",
            "mul",
            "truediv",
            "floordiv",
            "mod",
            "pow",
            "matmul",
            "and",
            "or",
            "xor",
            "lshift",
            "rshift",
        ]
        for prefix in ("", "r", "i")
    },
    **{f"__{n}__": "(self) -> Tensor" for n in ["neg", "pos", "abs", "invert"]},
    **{f"__{n}__": f"(self) -> _{n}" for n in ["int", "float", "bool"]},
    **{f"__{n}__": "(self, other: object, /) -> Any" for n in ["eq", "ne"]},
    "__len__": "(self) -> _int",
    "__index__": "(self) -> _int",
    "__hash__": "(self) -> _int",
    "__repr__": "(self) -> _str",
    "__str__": "(self) -> _str",
    "__getitem__": "(self, index: Any, /) -> Tensor",
    "__setitem__": "(self, index: Any, value: Any, /) -> None",
    "numel": "(self) -> _int",
    "get_state": "(self) -> Tensor",
    "set_state": "(self, state: Tensor, /) -> None",
    "manual_seed": "(self, seed: _int, /) -> Generator",
    "seed": "(self) -> _int",
    "initial_seed": "(self) -> _int",
    "name": "(self) -> _str",
}
CONSTRUCTORS = {
    "device": "(self, type: _device | _str | _int, index: _int = ...) -> None",
    "Generator": "(self, device: _device | _str = ...) -> None",
    "_Tracer": "(self, inputs: Any) -> None",
    "_Engine": "(self, **options: Any) -> None",
}
BASES = {"Size": "tuple[_int, ...]"}
LEFT_OUT = {
    *(
        "__doc__",
        "__module__",
        "__new__",
        "__weakref__",
        "__dict__",
        "__slots__",
        "__dictoffset__",
        "__init__",
    ),
    *("__weaklistoffset__", "__getattribute__", "__init_subclass__", "__class_getitem__", "__delitem__"),
}
HEADER = '''"""The compiled part. Written by tools/generate.py from the ops' declarations; do not edit."""

# mypy: disable-error-code="overload-overlap,overload-cannot-match,override,misc"
import builtins
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import warptape

from . import core, fft, linalg, masked, return_types, special
from .core import Tensor
from .nn import functional
from .signal import windows

_functions = core
_nn = functional
_linalg = linalg
_special = special
_fft = fft
_windows = windows
_masked = masked

_bool: TypeAlias = builtins.bool
_int: TypeAlias = builtins.int
_float: TypeAlias = builtins.float
_str: TypeAlias = builtins.str
_Number: TypeAlias = _int | _float | _bool
_dtype: TypeAlias = dtype
_device: TypeAlias = device
'''
# A module that has ops: as in the module itself, and its other public names.
MODULE_HEADER = '''"""The names of {name}. Written by tools/generate.py; do not edit."""

# mypy: disable-error-code="overload-overlap,overload-cannot-match,misc"
from collections.abc import Sequence
from typing import Any, overload

from warptape._C import _bool, _device, _dtype, _float, _int, _Number, _str
'''


class Arg(NamedTuple):
    name: str
    type: str
    optional: bool
    has_default: bool
    keyword_only: bool
    var_args: bool
    default: str


class Op(NamedTuple):
    name: str
    flags: int
    args: list[Arg]
    returns: str
    signature: str
    return_names: list[str]
    doc: str
    autocast: tuple[str, str]  # on the CPU, on CUDA devices


def all_ops() -> list[Op]:
    """Every op's declaration, sorted by name; overloads keep the order in which they are tried."""
    ops = [
        Op(n, p, [Arg(*a) for a in args], r, s, list(names), doc, autocast)
        for n, p, args, r, s, names, doc, autocast, *_ in _C._list_ops()
    ]
    return sorted(ops, key=lambda op: op.name)


def arguments(op: Op, method: bool) -> Iterator[str]:
    """The parameters of one op as a stub has them."""
    star = False
    for i, arg in enumerate(op.args):
        if method and i == 0:
            yield "self"
            continue
        kind = ARGUMENTS.get((op.name, arg.name)) or TYPES[arg.type] + (" | None" if arg.optional else "")
        if arg.var_args:  # x.view(2, 3) as well as x.view((2, 3))
            each = "Any" if arg.type.startswith("tuple of Tensors") else "_int | Sequence[_int]"
            yield f"*{arg.name}: {each}"
            star = True
            continue
        if arg.keyword_only and not star:
            yield "*"
            star = True
        name = arg.name + "_" if keyword.iskeyword(arg.name) else arg.name
        default = arg.default or ("None" if arg.type == "torch.Generator" else "")
        default = "..." if default.startswith("torch.") else default  # a name that a stub need not have
        yield f"{name}: {kind}{' = ' * bool(default)}{default}"
    if op.flags & OUT:
        if not star:
            yield "*"
        yield "out: Any = ..."


def result_name(op: Op) -> str:
    """The class of an op's named results, as csrc/bindings/ops/op_function.cpp names it."""
    return ("linalg_" if op.flags & LINALG and not op.flags & FUNCTION else "") + op.name


def results_stub() -> str:
    """The text of return_types.pyi."""
    lines = ['"""The named tuples that ops return. Written by tools/generate.py; do not edit."""', ""]
    lines += ["from typing import NamedTuple", "", "from warptape.core import Tensor"]
    for name, kind in sorted(vars(_C._return_types).items()):
        if not name.startswith("_"):
            lines += ["", f"class {name}(NamedTuple):"]
            lines += [f"    {field}: Tensor" for field in kind.__match_args__]
    return "\n".join(lines) + "\n"


def stub_of(group: list[Op], method: bool, indent: str, static: bool = False) -> Iterator[str]:
    """All overloads of one name."""
    for op in group:
        if len(group) > 1:
            yield f"{indent}@overload"
        if static:
            yield f"{indent}@staticmethod"
        returns = RETURNS.get(op.returns, "tuple[Tensor, ...]")
        if op.return_names and op.returns == "tuple":
            returns = f"return_types.{result_name(op)}"
        yield f"{indent}def {op.name}({', '.join(arguments(op, method))}) -> {returns}: ..."


def grouped(ops: Iterable[Op]) -> dict[str, list[Op]]:
    groups: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        groups[op.name].append(op)
    return groups


def stub_of_type(cls: type, ops: dict[str, list[Op]]) -> str:
    """A compiled class: its properties and methods by inspection, its ops by declaration."""
    members = []
    if cls.__name__ in CONSTRUCTORS:
        members.append(f"    def __init__{CONSTRUCTORS[cls.__name__]}: ...")
    for name, member in sorted(vars(cls).items()):
        if (
            name in ops
            or name in LEFT_OUT
            or (cls.__name__ in BASES and hasattr(cls.__base__, name.replace("__r", "__")))
        ):
            continue  # an item or sum of a Size is what its base says
        if isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType, property)):
            members.append(f"    {name}: {ATTRIBUTES.get(name, 'Any')}")
        elif isinstance(member, (classmethod, staticmethod)):
            members.append(f"    @staticmethod\n    def {name}(*args: Any, **kwargs: Any) -> Any: ...")
        elif callable(member):
            members.append(
                f"    def {name}{METHODS.get(name, '(self, *args: Any, **kwargs: Any) -> Any')}: ..."
            )
    for name in sorted(ops):
        members.extend(stub_of(ops[name], True, "    "))
    base = f"({BASES[cls.__name__]})" if cls.__name__ in BASES else ""
    return "\n".join([f"class {cls.__name__}{base}:", *(members or ["    ..."])])


def stub_of_value(name: str, value: Any) -> str:
    if inspect.isroutine(value):
        return f"def {name}(*args: Any, **kwargs: Any) -> Any: ..."
    return f"{name}: {type(value).__name__ if type(value).__name__ in vars(_C) else 'Any'}"


def stub_text() -> str:
    """The text of _C.pyi."""
    ops = all_ops()
    classes, values = [], []
    for name, value in sorted(vars(_C).items()):
        if name.startswith("__") or (
            isinstance(value, types.ModuleType) and name not in ("_distributed", "_return_types")
        ):
            continue
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [
                b.__name__ for b in value.__bases__ if b.__module__ == "builtins" or hasattr(_C, b.__name__)
            ]
            classes.append(f"class {name}({', '.join(bases)}): ...")
        elif isinstance(value, type) and value.__name__ != name:
            values.append(f"{name} = {value.__name__}")
        elif isinstance(value, type):
            methods = grouped(op for op in ops if op.flags & METHOD) if name == "TensorBase" else {}
            classes.append(stub_of_type(value, methods))
        else:
            values.append(stub_of_value(name, value))
    lines = ["class _private:"]
    for _, group in sorted(grouped(op for op in ops if op.flags & PRIVATE).items()):
        lines.extend(stub_of(group, False, "    ", static=True))
    classes.append("\n".join(lines))
    classes.sort(key=lambda text: ("Error" not in text.split("(")[0] or "RuntimeError" not in text, text))
    return HEADER + "\n" + "\n\n".join(classes) + "\n\n" + "\n".join(values) + "\n"


def import_of(module: str, name: str, value: Any) -> str | None:
    """The line by which the stub of `module` takes `name` from where it is defined, if it is named there."""
    if isinstance(value, types.ModuleType):
        has_stub = module == "warptape" and not name.startswith("__")
        own = public_name(value.__name__) if has_stub else value.__name__
        home, _, defined = own.rpartition(".")
        return f"from {home} import {defined} as {name}" if value.__spec__ else None
    if module == "warptape" and name in core.__all__ and vars(core)[name] is value:
        return f"from warptape.core import {name} as {name}"
    if vars(_C).get(name) is value:
        return f"from warptape._C import {name} as {name}"
    home, defined = getattr(value, "__module__", None) or "", getattr(value, "__name__", "")
    if home in (module, "warptape") or not home.startswith("warptape."):
        return None
    if vars(sys.modules.get(home)).get(defined) is not value:
        return None
    return f"from {home} import {defined} as {name}"


def type_of(value: Any) -> str:
    """The annotation of a module's constant, or of a class that is made at run time."""
    kind = type(value).__name__
    if isinstance(value, type) and issubclass(value, warptape.Tensor):
        return "type[Tensor]"
    if type(value) in (bool, int, float, str):
        return f"_{kind}"
    return f"_{kind}" if kind in ("dtype", "device") else kind if kind in vars(_C) else "Any"


def public_rooms() -> dict[str, str]:
    """The public names, which type checkers find, of modules that lie elsewhere in the package, and where."""
    return {
        name: room
        for name, room in sorted({**ROOMS, **wing()}.items())
        if not any(part.startswith("_") for part in name.split("."))
        or f"torch.{name}" in torch_names()
        or name == "_tensor"  # which files of this package name, too
    }


def submodules(module: types.ModuleType) -> Iterator[str]:
    """The public modules in a package, without its compiled libraries."""
    for file in pkgutil.iter_modules(getattr(module, "__path__", ())):
        spec = importlib.util.find_spec(f"{module.__name__}.{file.name}")
        if not file.name.startswith("_") and spec and (spec.origin or "").endswith(".py"):
            yield file.name
    if module is warptape:
        yield from (name for name in public_rooms() if "." not in name)


def public_names(module: types.ModuleType) -> dict[str, Any]:
    """What a module answers to: its own names, those that it computes when asked, and its submodules."""
    late = vars(module).get("__getattr__")
    computed = inspect.getclosurevars(late).nonlocals["computed"] if late else {}
    names = {name: get() for name, get in computed.items()}
    for found in submodules(module):
        names[found] = importlib.import_module(f"{module.__name__}.{found}")
    names |= {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") or (inspect.isroutine(value) and value.__name__ == name)
    }
    return {
        name: value
        for name, value in sorted(names.items())
        if name not in ("annotations", "__getattr__", "__dir__")
        and not (isinstance(value, types.ModuleType) and not value.__name__.startswith("warptape."))
    }


def module_stub(place: str, bit: int) -> str:
    """The text of the stub of a module: its ops by declaration, other names by inspection."""
    module = importlib.import_module(place)
    ops = grouped(op for op in all_ops() if op.flags & bit)
    imports, values, functions = [], [], []
    for name, value in public_names(module).items():
        if name in ops and type(value).__name__ == "OpFunction":
            functions.extend(stub_of(ops[name], False, ""))
        elif (line := import_of(module.__name__, name, value)) is not None:
            imports.append(line)
        else:
            values.append(f"{name}: {type_of(value)}")
    if module is warptape:
        imports.append("from warptape.version import __version__ as __version__")
    else:
        names = ("Generator", "Size", "Tensor", "memory_format") if module is not core else ()
        imports += [f"from warptape.core import {name}" for name in names]
        imports.append("from warptape import return_types")
    text = MODULE_HEADER.format(name=module.__name__)
    return text + "\n".join([*sorted(imports), "", *values, "", *functions]) + "\n"


def stub_path(name: str) -> Path:
    """Where that stub lies: beside its module."""
    file = importlib.import_module(name).__file__
    assert file is not None
    return (ROOT / "python" / Path(file).relative_to(Path(warptape.__file__).parents[1])).with_suffix(".pyi")


def texts() -> dict[Path, str]:
    """What to write, by file."""
    stubs = {stub_path(name): module_stub(name, bit) for bit, name in [*MODULES.items(), (0, "warptape")]}
    package = ROOT / "python/warptape"
    stubs |= {package / "_C.pyi": stub_text(), package / "core/namespaces/return_types.pyi": results_stub()}
    rooms = public_rooms()
    for public, room in rooms.items():
        text = f'"""{room}, by its public name. Written by tools/generate.py; do not edit."""\n\n'
        text += f"from warptape.{room} import *\n"
        path = package.joinpath(*public.split("."))
        holds_others = any(other.startswith(f"{public}.") for other in rooms)
        stubs[path / "__init__.pyi" if holds_others else path.with_suffix(".pyi")] = text
    sys.path.insert(0, str(ROOT / "tools"))
    from generate_headers import header_texts
    from generate_pages import ops_checks, ops_page

    headers = {ROOT / path: text for path, text in header_texts(all_ops()).items()}
    pages = {"reference": ops_page(all_ops()), "measurements": ops_checks(all_ops())}
    return {**stubs, **headers, **{ROOT / f"docs/{shelf}/ops.md": text for shelf, text in pages.items()}}


def main() -> int:
    """Writes the files, or compares them with what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only compare, with exit code 1 when a file differs"
    )
    check = parser.parse_args().check
    different = []
    for path, text in texts().items():
        if path.exists() and path.read_text() == text:
            continue
        different.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in different:
        print(f"{path.relative_to(ROOT)} {'differs' if check else 'written'}")
    return int(check and bool(different))


if __name__ == "__main__":
    raise SystemExit(main())
