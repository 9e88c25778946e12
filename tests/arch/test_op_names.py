"""What is known of an op is on its declaration (csrc/op/facts.h): no other C++ code knows an op, or an
argument of one, by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPARE = re.compile(
    r"""\bname\b[\w.()]*\s*[!=]=\s*"|"\s*[!=]=\s*[\w.>()-]*name\b|\b(?:starts|ends)_with\(["']"""
    r"""|strn?cmp\([^;"]*name\b[^;"]*"|\bname\b[\w.()]*,\s*\{"|\bname\b[\w.()]*\.find\(["']"""
)
# The registry of ops, and what lies below it or beside it.
OUTSIDE = ("csrc/op/", "csrc/core/", "csrc/tensor/", "csrc/distributed/")
# Lines that compare another name than an op's with a text, by file.
OTHER_NAMES = {
    "csrc/bindings/graph/trace.cpp": 2,  # kinds of control flow
    "csrc/bindings/ops/parse.cpp": 9,  # other names of arguments in Python, NumPy's types
    "csrc/capi/extension/extension.cpp": 1,  # an attribute
    "csrc/graph/text/graph_parse.cpp": 1,  # kinds of control flow
    "csrc/graph/text/lexer.h": 2,  # numbers
    "csrc/ops/index/scatter_reduce.cpp": 5,  # modes of an op, here and below
    "csrc/ops/linalg/sparse.cpp": 4,
    "csrc/ops/nn/interpolate.cpp": 5,
    "csrc/ops/nn/recurrent.cpp": 4,
    "csrc/ops/reduce/segment.cpp": 1,
}


def compares(root: Path) -> dict[str, int]:
    found = {}
    for path in sorted((root / "csrc").rglob("*")):
        relative = path.relative_to(root).as_posix()
        if path.suffix in (".h", ".cpp") and not relative.startswith(OUTSIDE):
            found[relative] = sum(bool(COMPARE.search(line)) for line in path.read_text().split("\n"))
    return {relative: count for relative, count in found.items() if count}


def test_no_op_is_known_by_its_name() -> None:
    assert compares(ROOT) == OTHER_NAMES, (
        "more: make it a fact of the declaration (csrc/op/facts.h); fewer: lower the number"
    )


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("csrc/graph/bad.cpp", 'if (std::string_view(c.op->name) == "add") f();'),
        ("csrc/graph/bad.h", 'if (name == "add" || name == "sub") f();'),
        ("csrc/transforms/bad.cpp", 'if ("add" != c.op->name) f();'),
        ("csrc/transforms/bad.cpp", 'bool d = name.starts_with("dim");'),
        ("csrc/bindings/bad.cpp", "bool writes = name.ends_with('_');"),
        ("csrc/ops/bad.cpp", 'if (!std::strcmp(insn.name, "copy")) f();'),
        ("csrc/ops/bad.cpp", 'if (is_one_of(c.op->name, {"add", "sub"})) f();'),
        ("csrc/capi/bad.cpp", 'if (std::string_view(c.op->name).find("empty") != npos) f();'),
    ],
)
def test_a_planted_one_is_found(relative: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / relative
    path.parent.mkdir(parents=True)
    path.write_text(f'std::string name = "add";\n  {text}\nregister_op(name, "add", {{"input"}});\n')
    (tmp_path / "csrc/op").mkdir()
    (tmp_path / "csrc/op/registry.cpp").write_text(text)
    assert compares(tmp_path) == {relative: 1}
