"""The rules of the design that a compiler does not check: direction of includes and imports, size budgets,
places of vendor headers. Every rule is a function from a source tree to its violations; each is run on this
tree, which must have none, and on a tree with one planted violation, which must be found."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arch.budgets import BUDGETS, MAX_TOTAL_LINES

ROOT = Path(__file__).resolve().parents[2]

# A layer may include itself and what is listed; ops and distributed stand side by side.
BELOW: dict[str, set[str]] = {
    "kernels": set(),
    "core": {"kernels"},
    "tensor": {"core", "kernels"},
    "autograd": {"tensor", "core", "kernels"},
    "op": {"autograd", "tensor", "core", "kernels"},
    "ops": {"op", "autograd", "tensor", "core", "kernels"},
    "transforms": {"ops", "op", "autograd", "tensor", "core", "kernels"},
    "graph": {"ops", "op", "autograd", "tensor", "core", "kernels"},
    "inference": {"ops", "op", "tensor", "core", "kernels"},
    "capi": {"graph", "ops", "op", "autograd", "tensor", "core", "kernels"},
    "distributed": {"autograd", "tensor", "core", "kernels"},
    "bindings": {
        "capi",
        "graph",
        "inference",
        "transforms",
        "ops",
        "op",
        "distributed",
        "autograd",
        "tensor",
        "core",
        "kernels",
    },
}
PYTHON_THIRD_PARTY = {
    "numpy",
    "safetensors",
    "tqdm",
}  # what pip always installs; all else is imported inside functions
# But for packages that are an extra themselves, and whose __init__ imports nothing of it.
PYTHON_EXTRAS = {"serve": {"uvicorn", "starlette", "httptools", "grpc", "google", "prometheus_client"}}
# Debts: what these say of ops belongs on the declarations. The list may only shrink.
LISTS_OF_OPS = {
    "python/warptape/torch/names/functional.py": "the names of torch.functional",
    "python/warptape/nn/parameter.py": "what a parameter without a shape answers",
}
CUDA_PLACES = ("kernels/cuda/", "csrc/core/cuda/", "csrc/distributed/transport/nccl/")
CUDA_HEADER = re.compile(
    r"^(cuda|cublas|cudnn|curand|cusparse|cusolver|cufft|cupti|nccl|nvml|nvtx|nvrtc|mma\.h|cooperative_groups"
    r"|thrust/|cub/|cutlass/|cute/)"
)
GLOO_PLACE = "csrc/distributed/transport/gloo/"
MPI_PLACE = "csrc/distributed/transport/mpi/"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_FOLDER_FILES = 30
CPP = (".h", ".cpp", ".cu", ".cuh")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root).as_posix(), path


def layer_of(relative: str) -> str | None:
    parts = relative.split("/")
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] == "csrc" and len(parts) > 2:
        return parts[1]
    return None


def includes(root: Path) -> Iterator[tuple[str, bool, str]]:
    """(including file, written with angle brackets, included name)"""
    for relative, path in files(root, ("kernels", "csrc"), CPP):
        for match in INCLUDE.finditer(path.read_text()):
            yield relative, match[1] == "<", match[2]


def check_include_direction(root: Path) -> list[str]:
    bad = []
    for relative, system, name in includes(root):
        layer = layer_of(relative)
        first = name.split("/")[0]
        if layer is None:
            bad.append(f"{relative}: lies in no layer of csrc")
        elif system and first not in BELOW:
            if name == "Python.h" or first == "pybind11":
                if layer != "bindings":
                    bad.append(f"{relative}: <{name}> belongs to csrc/bindings")
        elif "/" in name and first in BELOW and first != layer and first not in BELOW[layer]:
            bad.append(f"{relative}: {layer} includes {name}, which is not below it")
        elif ".." in name.split("/") or first == "csrc":
            bad.append(f"{relative}: includes {name}; name it from its layer's root")
        elif relative.startswith("kernels/include/") and first != "kernels" and not system:
            bad.append(f"{relative}: a kernel contract includes {name}")
    return bad


def check_vendor_places(root: Path) -> list[str]:
    bad = []
    for relative, _, name in includes(root):
        if CUDA_HEADER.match(name) and not relative.startswith(CUDA_PLACES):
            bad.append(f"{relative}: <{name}> outside of {', '.join(CUDA_PLACES)}")
        if name.startswith("gloo/") and not relative.startswith(GLOO_PLACE):
            bad.append(f"{relative}: <{name}> outside of {GLOO_PLACE}")
        if name == "mpi.h" and not relative.startswith(MPI_PLACE):
            bad.append(f"{relative}: <{name}> outside of {MPI_PLACE}")
    for relative, _ in files(root, ("kernels", "csrc"), (".cu", ".cuh")):
        if not relative.startswith(CUDA_PLACES):
            bad.append(f"{relative}: device code outside of {', '.join(CUDA_PLACES)}")
    return bad


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[ast.stmt, str]]:
    """Absolute names of all imported modules; `package` is where relative imports start."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield node, stem
            for alias in node.names:
                yield node, f"{stem}.{alias.name}"


def check_python_imports(root: Path) -> list[str]:
    bad = []
    for relative, path in files(root, ("python",), (".py",)):
        parts = relative.removesuffix(".py").split("/")[1:]
        package = parts[:-1]
        tree = ast.parse(path.read_text())
        at_import = {id(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}
        allowed = sys.stdlib_module_names | PYTHON_THIRD_PARTY
        if parts[-1] not in ("__init__", "__main__"):
            allowed |= PYTHON_EXTRAS.get(parts[1], set())
        for node, name in imported(tree, package):
            top = name.split(".")[0]
            if top == "torch":
                bad.append(f"{relative}:{node.lineno}: imports torch")
            elif top != "warptape" and id(node) in at_import and top not in allowed:
                bad.append(f"{relative}:{node.lineno}: imports {top} at module level; it is an extra")
    for relative, path in files(root, ("examples",), (".py",)):
        for node, name in imported(ast.parse(path.read_text()), []):
            if name.split(".")[0] == "torch":
                bad.append(f"{relative}:{node.lineno}: imports torch")
    return sorted(set(bad))


def check_file_length(root: Path) -> list[str]:
    folders = ("kernels", "csrc", "python", "tests", "benchmarks", "examples", "tools", "cmake")
    bad = []
    for relative, path in files(root, folders, (*CPP, ".py", ".cmake", ".sh")):
        count = len(path.read_text().splitlines())
        if count > MAX_FILE_LINES:
            bad.append(f"{relative}: {count} lines, at most {MAX_FILE_LINES}")
    return bad


def check_folder_size(root: Path) -> list[str]:
    folders: dict[str, list[str]] = {}
    for relative, _ in files(root, ("kernels", "csrc"), CPP):
        folders.setdefault(relative.rpartition("/")[0], []).append(relative)
    return [
        f"{folder} has {len(names)} files, at most {MAX_FOLDER_FILES}: {', '.join(names)}"
        for folder, names in folders.items()
        if len(names) > MAX_FOLDER_FILES
    ]


def check_function_length(root: Path) -> list[str]:
    bad = []
    for relative, path in files(root, ("python", "benchmarks", "examples", "tools", "tests"), (".py",)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                start = node.body[0]
                if ast.get_docstring(node, clean=False) is not None and len(node.body) > 1:
                    start = node.body[1]  # documentation is not length
                count = (node.end_lineno or 0) - start.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    bad.append(
                        f"{relative}:{node.lineno}: {node.name} has {count} lines, not {MAX_FUNCTION_LINES}"
                    )
    for relative, path in files(root, ("kernels", "csrc"), CPP):
        for line, count in long_cpp_functions(path.read_text()):
            bad.append(f"{relative}:{line}: a function of {count} lines, at most {MAX_FUNCTION_LINES}")
    return bad


def long_cpp_functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, length) of too long bodies. As clang-format writes it, a function at namespace scope ends
    with a brace alone in the first column; types end with `};` and namespaces with a comment."""
    opened = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("}"):
            if line == "}" and opened and number - opened - 1 > MAX_FUNCTION_LINES:
                yield opened, number - opened - 1
            opened = 0
        elif line.endswith("{") and line[:1] not in (" ", "#", "/", ""):
            opened = number


def most_lines(size: int) -> int:
    """With room, so that no new op is the one that has to delete lines elsewhere."""
    return size * 103 // 100


def check_total_lines(root: Path) -> list[str]:
    rest = "kernels + csrc"
    lines = {rest: 0} | dict.fromkeys(BUDGETS, 0)
    for relative, path in files(root, ("kernels", "csrc", "python"), (*CPP, ".py")):
        part = next((name for name, (_, places) in BUDGETS.items() if relative.startswith(places)), rest)
        lines[part] += len(path.read_text().splitlines())
    sizes = {rest: MAX_TOTAL_LINES} | {name: size for name, (size, _) in BUDGETS.items()}
    return [
        f"{part}: {n} lines, at most {most_lines(sizes[part])}: delete what the change made needless, or "
        "raise the size in tests/arch/budgets.py and say why"
        for part, n in lines.items()
        if n > most_lines(sizes[part])
    ]


def check_slot_owners(root: Path) -> list[str]:
    """A slot name in kernels/cpu is registered by one file only, or two files would race for it."""
    owners: dict[str, set[str]] = {}
    for relative, path in files(root, ("kernels",), (".cpp", ".cu")):
        twin = re.sub(r"_none(?=\.cpp$)", "", relative)  # of twins the build takes one
        for name in re.findall(r"^\s*WT_KERNEL\(\s*(\w+)\s*,", path.read_text(), re.MULTILINE):
            owners.setdefault(f"{relative.split('/')[1]}: {name}", set()).add(twin)
    return [
        f"{slot} is registered by {', '.join(sorted(who))}"
        for slot, who in sorted(owners.items())
        if len(who) > 1
    ]


# "name", function, flags: a declaration of an op. Its places are flags, or constants of flags in the file.
DECLARATION = re.compile(r'(?<!\w )"(\w+)",\s*[\w:]+(?:<[^<>]*>)?,\s*(k\w+(?:\s*\|\s*k\w+)*)\s*,')
PLACES = {"kFunction", "kMethod", "kNN", "kLinalg", "kSpecial", "kFFT", "kPrivate"}
CONSTANT = re.compile(r"constexpr OpFacts (k\w+)\s*=\s*([^;]+);")
MOST_NAMES = 5  # of ops, in one statement that declares none


def declared(root: Path) -> Iterator[tuple[str, str, set[str]]]:
    """(file, name, places) of every op that is declared without a macro."""
    known = {"kBothOut": {"kFunction", "kMethod"}}  # csrc/ops/elementwise/unary.h
    for relative, path in files(root, ("csrc/op", "csrc/ops"), (".cpp",)):
        text = path.read_text()
        constants = known | {name: set(re.findall(r"k\w+", flags)) for name, flags in CONSTANT.findall(text)}
        for name, flags in DECLARATION.findall(text):
            each = re.findall(r"k\w+", flags)
            places = PLACES & set().union(*(constants.get(flag, {flag}) for flag in each))
            if places:
                yield relative, name, places


def check_op_owners(root: Path) -> list[str]:
    """All overloads of a name in one place are in one file, or their order would be the linker's."""
    owners: dict[tuple[str, str], set[str]] = {}
    for relative, name, places in declared(root):
        for place in places:
            owners.setdefault((name, place), set()).add(relative)
    return [
        f"{name} ({place}) is declared in {', '.join(sorted(who))}"
        for (name, place), who in sorted(owners.items())
        if len(who) > 1
    ]


def check_lists_of_ops(root: Path) -> list[str]:
    """Facts about an op are on its declaration: no statement of C++ or Python lists names of ops."""
    owners: dict[str, str] = {name.removesuffix("_"): relative for relative, name, _ in declared(root)}
    bad = []
    for relative, path in files(root, ("csrc",), (".h", ".cpp")):
        if relative in LISTS_OF_OPS:
            continue
        line = 1
        for statement in re.split(r"(;)", re.sub(r"^#include.*", "", path.read_text(), flags=re.MULTILINE)):
            words = re.findall(r"\w+", " ".join(re.findall(r'"([^"\n]*)"', statement)))
            listed = {w.removesuffix("_") for w in words} & owners.keys()
            listed = {name for name in listed if owners[name] != relative}  # a family may name its own
            if len(listed) > MOST_NAMES and not re.search(
                r"\bk(Function|Method|Both|NN|Private|Place)|Alias|Slot\b", statement
            ):
                bad.append(f"{relative}:{line}: a list of ops: {', '.join(sorted(listed)[:8])} ..")
            line += statement.count("\n")
    for relative, path in files(root, ("python",), (".py",)):
        # What ops are called in ONNX and ATen, and what they mean for sequences of several lengths.
        names = (
            "python/warptape/compiler/onnx/",
            "python/warptape/library/subclass_",
            "python/warptape/utils/_python_dispatch.py",
        )
        if relative.startswith((*names, "python/warptape/extras/nested/")) or relative in LISTS_OF_OPS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return, ast.Call, ast.Compare)):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                words = re.findall(r"\w+", " ".join(text for text in texts if isinstance(text, str)))
                listed = {word.removesuffix("_") for word in words} & owners.keys()
                if len(listed) > MOST_NAMES:
                    bad.append(f"{relative}:{node.lineno}: a list of ops: {', '.join(sorted(listed)[:8])} ..")
    return bad


PLANTED: list[tuple[Callable[[Path], list[str]], str, str]] = [
    (check_include_direction, "csrc/core/bad.h", '#include "tensor/tensor.h"\n'),
    (check_include_direction, "csrc/ops/bad.cpp", '#include "distributed/group.h"\n'),
    (check_include_direction, "csrc/op/bad.h", '#include "ops/good.h"\n'),
    (check_include_direction, "csrc/autograd/bad.cpp", '  #  include "op/op.h"\n'),
    (check_include_direction, "csrc/tensor/bad.cpp", "#include <Python.h>\n"),
    (check_include_direction, "csrc/ops/bad.cpp", "#include <pybind11/pybind11.h>\n"),
    (check_include_direction, "kernels/cpu/bad.cpp", '#include "core/errors.h"\n'),
    (check_include_direction, "kernels/cpu/bad.cpp", '#include "../../csrc/core/errors.h"\n'),
    (check_include_direction, "csrc/core/bad.cpp", '#include "csrc/tensor/tensor.h"\n'),
    (check_include_direction, "kernels/include/kernels/bad.h", '#include "parallel.h"\n'),
    (check_vendor_places, "csrc/tensor/bad.cpp", "#include <cuda_runtime.h>\n"),
    (check_vendor_places, "csrc/distributed/bad.cpp", "#include <nccl.h>\n"),
    (check_vendor_places, "kernels/cpu/bad.cpp", "#include <cub/cub.cuh>\n"),
    (check_vendor_places, "csrc/distributed/bad.cpp", "#include <gloo/context.h>\n"),
    (check_vendor_places, "csrc/distributed/bad.cpp", "#include <mpi.h>\n"),
    (check_vendor_places, "csrc/ops/bad.cu", "\n"),
    (check_python_imports, "python/warptape/bad.py", "import torch\n"),
    (check_python_imports, "python/warptape/bad.py", "import matplotlib.pyplot as plt\n"),
    (check_python_imports, "python/warptape/serve/__init__.py", "import uvicorn\n"),
    (check_python_imports, "python/warptape/serve/bad.py", "import tokenizers\n"),
    (check_python_imports, "examples/bad.py", "from torch import nn\n"),
    (check_file_length, "csrc/core/bad.h", "// line\n" * (MAX_FILE_LINES + 1)),
    (check_file_length, "tests/bad.py", "# line\n" * (MAX_FILE_LINES + 1)),
    (check_folder_size, "csrc/core/full/bad.h", "\n"),
    (
        check_function_length,
        "python/warptape/bad.py",
        "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES + 1),
    ),
    (
        check_function_length,
        "csrc/ops/bad.cpp",
        "int f() {\n" + "  g();\n" * (MAX_FUNCTION_LINES + 1) + "}\n",
    ),
    (check_slot_owners, "kernels/cpu/bad.cpp", "WT_KERNEL(good, f);\n"),
    (
        check_op_owners,
        "csrc/ops/bad.cpp",
        'const Op<F> a{"one", a_impl, kFunction | kOut, {"input"}, "One."};\n',
    ),
    (check_lists_of_ops, "csrc/core/bad.cpp", 'auto a = "one two three four five six";\n'),
    (
        check_lists_of_ops,
        "csrc/ops/bad.cpp",
        'const char* a[] = {"one", "two_", "three", "four", "five", "six"};\n',
    ),
    (check_lists_of_ops, "python/warptape/bad.py", 'A = {"one", "two_", "three", "four", "five", "six"}\n'),
]
CHECKS = [
    check_include_direction,
    check_vendor_places,
    check_python_imports,
    check_file_length,
    check_folder_size,
    check_function_length,
    check_total_lines,
    check_slot_owners,
    check_op_owners,
    check_lists_of_ops,
]
NUMBERS = ("one", "two", "three", "four", "five", "six")
GOOD = {
    **{f"csrc/core/full/good_{i}.h": "\n" for i in range(MAX_FOLDER_FILES)},
    "csrc/ops/numbers.cpp": "constexpr OpFacts kBoth = kFunction | kMethod;\n"
    + "".join(f'const Op<F> {n}{{"{n}", f<A, B>, kBoth | kComplex, {{"input"}}, "{n}"}};\n' for n in NUMBERS)
    + 'ElementwiseSlot slots[] = {{"one"}, {"two"}, {"three"}, {"four"}, {"five"}, {"six"}};\n',
    "csrc/ops/other_place.cpp": 'const Op<F> one{"one", f, kNN, {"input"}, "Another one."};\n',
    "csrc/core/good.h": '#include <vector>\n\n#include "kernels/types.h"\n',
    "csrc/ops/good.cpp": '#include "ops/good.h"\n#include "autograd/node.h"\n\nint f() {\n  return 1;\n}\n',
    "csrc/ops/good_type.cpp": "struct A {\n"
    + "  int x;\n" * 100
    + "};\n\nnamespace b {\n\nA f() {\n  return {};\n}\n}\n",
    "csrc/bindings/good.cpp": '#include <Python.h>\n#include "op/op.h"\n',
    "kernels/cpu/good.cpp": '#include "parallel.h"\n#include "kernels/types.h"\nWT_KERNEL(good, good);\n',
    "kernels/cpu/good_none.cpp": "WT_KERNEL(good, good);\n",
    "kernels/cuda/good.cu": "#include <cub/cub.cuh>\nWT_KERNEL(good, good);\n",
    "python/warptape/nn/good.py": "import numpy as np\nfrom . import low\nfrom .. import _C\n"
    "def plot():\n    '''Draw.\n" + "    text\n" * 100 + "    '''\n    import matplotlib\n",
    "python/warptape/nn/low.py": "import os\n",
    "python/warptape/optim/good.py": "from ..nn import good\nimport warptape as torch\n",
}


def write(root: Path, tree: dict[str, str]) -> None:
    for relative, text in tree.items():
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_source_tree(check: Callable[[Path], list[str]]) -> None:
    assert (ROOT / "CMakeLists.txt").is_file(), "the architecture test reads the source tree it lies in"
    assert check(ROOT) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_rule_passes_a_good_tree(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert check(tmp_path) == []


@pytest.mark.parametrize(("check", "relative", "text"), PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_rule_finds_a_planted_violation(
    check: Callable[[Path], list[str]], relative: str, text: str, tmp_path: Path
) -> None:
    write(tmp_path, {**GOOD, relative: text})
    found = check(tmp_path)
    assert len(found) >= 1, "the planted violation was not found"
    assert all(relative in line for line in found), found


def test_total_is_counted(tmp_path: Path) -> None:
    write(tmp_path, {"kernels/m.h": "int x;\n" * most_lines(MAX_TOTAL_LINES)})
    assert check_total_lines(tmp_path) == []
    for i, (size, places) in enumerate(BUDGETS.values()):
        write(tmp_path, {f"{places[0]}one.cpp": "\n" * most_lines(size)})
        assert len(check_total_lines(tmp_path)) == i
        write(tmp_path, {f"{places[0]}two.cpp": "\n"})
        assert len(check_total_lines(tmp_path)) == i + 1
    write(tmp_path, {"kernels/one.h": "\n"})
    assert len(check_total_lines(tmp_path)) == 1 + len(BUDGETS)
