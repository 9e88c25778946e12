"""Numbers of the Python package as a whole: python tests/arch/python_numbers.py

What imports load is measured where the package is built.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arch.python_graph import PACKAGE, Graph, circles, is_private
from arch.python_rules import CHECKS, check_private_modules

ROOT = Path(__file__).resolve().parents[2]
LOADED = {
    f"import {PACKAGE}": f"import {PACKAGE}",
    "DataLoader": f"from {PACKAGE}.utils.data import DataLoader",
    "AdamW": f"from {PACKAGE}.optim import AdamW",
    "inference": f"import {PACKAGE}.inference",
    "LLM": f"from {PACKAGE}.inference import LLM",
}


def numbers(graph: Graph) -> dict[str, int]:
    """What the sources tell."""
    with_init, plain = graph.edges(), {name: set[str]() for name in graph.paths}
    for arrow in graph.arrows:
        if arrow.how != "init":
            plain[arrow.source].add(arrow.target)
    apart = [name for name in graph.paths if name.split(".")[1:2] not in (["torch"], ["extras"])]
    lines, (documented, one_line), (arguments, any_type) = graph.lines, *_documentation(graph)
    return {
        "modules in circles, the root counted": sum(map(len, circles(plain))),
        "modules in circles, with each __init__ that runs": sum(map(len, circles(with_init))),
        "files that import the root": len({a.source for a in graph.arrows if a.target == PACKAGE}),
        "top-level files": sum(path.parent == graph.paths[PACKAGE].parent for path in graph.paths.values()),
        "private modules imported across packages": len({key for key, _ in check_private_modules(graph)}),
        "lines of .py": sum(lines.values()),
        "lines without torch/ and extras/": sum(lines[name] for name in apart),
        "public docstrings of one line, %": round(100 * one_line / max(documented, 1)),
        "arguments of type Any, %": round(100 * any_type / max(arguments, 1)),
    }


def _documentation(graph: Graph) -> tuple[tuple[int, int], tuple[int, int]]:
    """Docstrings of public callables and how many have one line; arguments and how many are of type Any."""
    documented = one_line = arguments = any_type = 0
    for name, path in graph.paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                typed = [arg.annotation for arg in args if arg.annotation is not None]
                arguments += len(typed)
                any_type += sum(isinstance(kind, ast.Name) and kind.id == "Any" for kind in typed)
            elif not isinstance(node, ast.ClassDef):
                continue
            text = ast.get_docstring(node)
            if text and not node.name.startswith("_") and not any(map(is_private, name.split("."))):
                documented += 1
                one_line += "\n" not in text
    return (documented, one_line), (arguments, any_type)


def loaded() -> dict[str, int]:
    """Modules of the package that are in memory after an import: of it alone, and what others add."""
    out: dict[str, int] = {}
    count = f"import sys; print(sum(m.split('.')[0] == '{PACKAGE}' for m in sys.modules))"
    for name, code in LOADED.items():
        job = [sys.executable, "-c", f"{code}\n{count}"]  # of what is installed, or on PYTHONPATH
        done = subprocess.run(job, capture_output=True, text=True, check=True)
        out[name] = int(done.stdout) - (next(iter(out.values())) if out else 0)
    return out


def main() -> None:
    graph = Graph(ROOT)
    found = numbers(graph)
    found |= {f"violations: {check.__name__.removeprefix('check_')}": len(check(graph)) for check in CHECKS}
    try:
        found |= {f"modules loaded: {name}": n for name, n in loaded().items()}
    except subprocess.CalledProcessError as error:
        print(f"what imports load was not measured: {error.stderr.strip().splitlines()[-1]}")
    for name, number in found.items():
        print(f"{number:7,}  {name}")


if __name__ == "__main__":
    main()
