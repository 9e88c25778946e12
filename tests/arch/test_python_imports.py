"""What modules of the Python package know of each other: the rules of python_rules.py, on this tree and on
trees with a planted violation of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from arch.python_graph import Graph, circles
from arch.python_numbers import numbers
from arch.python_rules import (
    CHECKS,
    Violations,
    check_attributes,
    check_circles,
    check_direction,
    check_extension,
    check_late_names,
    check_private_modules,
    check_root,
    readme_imports,
)

ROOT = Path(__file__).resolve().parents[2]
GOOD = {
    "__init__.py": "from . import nn\n\n_late = lambda: __import__('warptape.optim').optim\n",
    "version.py": "class Tensor:\n    def _split(self):\n        return self._parts\n",
    "nn/__init__.py": "from .modules import *\n",
    "nn/_cast.py": "def cast(x):\n    x._cast_to = 1\n    x.is_cast = True\n",
    "nn/modules/__init__.py": "from .linear import Linear\n",
    "nn/modules/linear.py": "from ... import _C, version\nfrom .. import _cast\n\n\n"
    "class Linear:\n    def f(self):\n        return self._cast_to, _C._secret, _cast.cast\n",
    "nn/functional.py": "from .modules import linear\n",
    "optim/__init__.py": "from .sgd import SGD\n",
    "optim/sgd.py": "from ..nn.modules.linear import Linear\nimport os\n\n\nclass SGD:\n    slices = 1\n\n"
    "    def f(self, x):\n        return getattr(x, 'slices', 0), hasattr(x, 'is_cast'), x._fields\n",
    "distributed/__init__.py": "from .. import version\n",
}
# A rule, a file, its text and the key of the violation that must be found.
PLANTED = [
    (check_root, "nn/bad.py", "import warptape as torch\n", "root nn.bad"),
    (check_root, "nn/bad.py", "def f():\n    from warptape import Tensor\n", "root nn.bad"),
    (check_root, "nn/bad.py", "import sys\n\nroot = sys.modules['warptape']\n", "root nn.bad"),
    (check_root, "nn/bad.py", "root = __import__('warptape')\n", "root nn.bad"),
    (check_root, "nn/bad.py", "import sys\n\nroot = sys.modules.get('warptape')\n", "root nn.bad"),
    (check_root, "nn/modules/bad.py", "from ... import zeros\n", "root nn.modules.bad"),
    (check_direction, "nowhere.py", "", "ring nowhere"),
    (check_direction, "nn/bad.py", "from ..optim import SGD\n", "above nn.bad optim"),
    (check_direction, "nn/bad.py", "def f():\n    from ..optim import SGD\n", "above nn.bad optim"),
    (check_direction, "nn/bad.py", "if TYPE_CHECKING:\n    from ..optim import SGD\n", "above nn.bad optim"),
    (
        check_direction,
        "nn/bad.py",
        "import importlib\n\nimportlib.import_module('warptape.optim')\n",
        "above nn.bad optim",
    ),
    (check_direction, "nn/bad.py", "import_module('..optim.sgd', __package__)\n", "above nn.bad optim.sgd"),
    (
        check_direction,
        "nn/bad.py",
        "def f():\n    return __import__('warptape.optim').optim\n",
        "above nn.bad optim",
    ),
    (check_direction, "nn/bad.py", "import warptape\n\nx = warptape.optim.SGD\n", "above nn.bad optim"),
    (check_direction, "nn/modules/bad.py", "from ... import optim as o\n", "above nn.modules.bad optim"),
    (check_direction, "distributed/bad.py", "from .. import nn\n", "above distributed.bad nn"),
    (check_direction, "utils/_pytree.py", "from .data import low\n", "above utils._pytree utils.data.low"),
    (check_circles, "nn/_cast.py", "from . import functional\n", "circle"),
    (check_circles, "nn/_cast.py", "def f():\n    from . import functional\n", "circle"),
    (
        check_circles,
        "nn/_cast.py",
        "if TYPE_CHECKING:\n    from .functional import x\n",
        "circle",
    ),
    (
        check_circles,
        "version.py",
        "import_module('warptape.nn.functional')\n",
        "circle",
    ),
    (check_circles, "version.py", "from .optim import sgd\n", "circle"),
    (check_private_modules, "optim/bad.py", "from ..nn import _cast\n", "private optim.bad nn._cast"),
    (check_private_modules, "optim/bad.py", "from ..nn._cast import cast\n", "private optim.bad nn._cast"),
    (
        check_private_modules,
        "optim/bad.py",
        "from .. import nn\n\nx = nn._cast.cast\n",
        "private optim.bad nn._cast",
    ),
    (check_attributes, "optim/bad.py", "def f(x):\n    return x._cast_to\n", "attribute optim _cast_to"),
    (
        check_attributes,
        "optim/bad.py",
        "def f(x):\n    return getattr(x, '_cast_to', 0)\n",
        "attribute optim _cast_to",
    ),
    (check_attributes, "optim/bad.py", "def f(x):\n    return x._split()\n", "attribute optim _split"),
    (check_attributes, "nn/bad.py", "def f(x):\n    return hasattr(x, 'slices')\n", "attribute nn slices"),
    (
        check_late_names,
        "func/__init__.py",
        "if TYPE_CHECKING:\n    from .api import grad, vmap\n\n_LATE = {'api': 'vmap'}\n",
        "late func api.grad",
    ),
    (check_late_names, "func/__init__.py", "_LATE = {'api': 'vmap'}\n", "late func api.vmap"),
]


def graph_of(root: Path, tree: dict[str, str]) -> Graph:
    for relative, text in tree.items():
        path = root / "python" / "warptape" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Graph(root)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(ROOT)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_source_tree_has_no_violations(check: Callable[[Graph], Violations], graph: Graph) -> None:
    bad = check(graph)
    assert not bad, "mend these:\n" + "\n".join(f"{words}  [{key}]" for key, words in bad)


PACKAGES = sorted(path.parent.name for path in (ROOT / "python" / "warptape").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_short_readme_of_files_that_exist(package: str) -> None:
    folder = ROOT / "python" / "warptape" / package
    text = (folder / "README.md").read_text()
    assert len(text.splitlines()) <= 30
    table, rest = text.split("It may import: ")
    named = [
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in row.split(" | ")[0].split("`")[1::2]
    ]
    assert named and [name for name in named if not (folder / name).exists()] == []
    imports, tests = rest.split(".\nTests: ")
    assert imports.split("`")[1::2] == readme_imports(package)
    assert [path for path in tests.split("`")[1::2] if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rule_passes_a_good_tree(check: object, tmp_path: Path) -> None:
    assert callable(check) and check(graph_of(tmp_path, GOOD)) == []


@pytest.mark.parametrize(("check", "relative", "text", "key"), PLANTED)
def test_rule_finds_a_planted_violation(
    check: object, relative: str, text: str, key: str, tmp_path: Path
) -> None:
    planted = graph_of(tmp_path, {**GOOD, "utils/__init__.py": "", "utils/data/low.py": "", relative: text})
    assert callable(check)
    found: Violations = check(planted)
    assert {k if " " in key else k.split()[0] for k, _ in found} == {key}
    assert any(f"python/warptape/{relative}" in words for _, words in found)


def test_names_that_the_extension_binds_or_a_protocol_asks_for_are_agreed(tmp_path: Path) -> None:
    source = tmp_path / "csrc" / "bindings" / "a.cpp"
    source.parent.mkdir(parents=True)
    asks = "def f(x):\n    return x._cast_to, x._split(), getattr(x, 'is_cast', 0)\n"
    tree = {**GOOD, "optim/bad.py": asks}

    def found(protocols: str, cpp: str) -> set[str]:
        source.write_text(cpp)
        planted = graph_of(tmp_path, {**tree, "core/__init__.py": "", "core/protocols.py": protocols})
        return {key.split()[-1] for key, _ in check_attributes(planted)}

    protocol = "class P(Protocol):\n    _cast_to: int\n\n    def _split(self): ...\n"
    assert found("", 'log("_cast_to", 1);\nerror({"_split"});\n') == {"_cast_to", "_split"}
    assert found("", 'x.def("_cast_to", f);\n') == {"_split"}
    assert found("", '    {"_split", f, 0},\n') == {"_cast_to"}
    assert found(protocol, "") == set()
    assert found(protocol.replace("(Protocol)", ""), "") == {"_cast_to", "_split"}


def test_an_extension_that_names_a_module_where_it_does_not_lie(tmp_path: Path) -> None:
    source = tmp_path / "csrc" / "a.cpp"
    source.parent.mkdir()
    tree = {
        **GOOD,
        "_missing.py": "ROOMS = {'sparse': 'extras.sparse'}\n",
        "extras/sparse.py": "",
        "futures.py": "",
    }
    source.write_text('f("warptape.extras.sparse");\nf("warptape.futures");\nf("warptape.node");\n')
    assert check_extension(graph_of(tmp_path, tree)) == []
    source.write_text('f("warptape.futures");\nf("warptape.sparse");\n')
    assert [key for key, _ in check_extension(Graph(tmp_path))] == ["extension sparse"]


def test_an_init_that_an_import_runs_counts(tmp_path: Path) -> None:
    planted = graph_of(
        tmp_path, {**GOOD, "version.py": "", "optim/__init__.py": "from .. import distributed\n"}
    )
    assert planted.edges()["warptape.optim.sgd"] >= {
        "warptape.nn",
        "warptape.nn.modules",
        "warptape.nn.modules.linear",
    }
    assert "warptape.optim" not in planted.edges()["warptape.optim.sgd"]  # the package that it lies in


def test_circles_of_a_graph() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert circles(edges) == [["a", "b", "c"], ["d", "e"]]


def test_numbers_of_a_tree(tmp_path: Path) -> None:
    planted = graph_of(
        tmp_path,
        {
            **GOOD,
            "nn/_cast.py": "import warptape\n",
            "nn/good.py": 'def f(x: Any, y: int) -> None:\n    """One line."""\n',
            "optim/bad.py": 'from ..nn import _cast\n\n\nclass A:\n    """Two\n    lines.\n    """\n',
            "torch/__init__.py": "\n\n",
        },
    )
    found = numbers(planted)
    assert found["files that import the root"] == 1
    assert found["private modules imported across packages"] == 1
    assert found["top-level files"] == 2
    assert found["modules in circles, the root counted"] == 7  # all but nn.functional and what knows no root
    assert found["lines of .py"] - found["lines without torch/ and extras/"] == 2
    assert found["public docstrings of one line, %"] == 50 and found["arguments of type Any, %"] == 50
