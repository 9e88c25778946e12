"""What editors and type checkers know of `import torch` where the wheel named torch is installed."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warptape
from warptape.torch import wheel

PACKAGE = Path(warptape.__file__).parents[1]
# (import, what is typed, what is completed)
COMPLETIONS = [
    ("import torch", "torch.softm", "softmax"),
    ("import torch", "torch.ones(2).softm", "softmax"),
    ("import torch", "torch.nn.Lin", "Linear"),
    ("import torch.nn as nn", "nn.Conv2", "Conv2d"),
    ("from torch import nn", "nn.functional.cross_en", "cross_entropy"),
    ("import torch.nn.functional as F", "F.gel", "gelu"),
    ("import torch", "torch.optim.AdamW", "AdamW"),
    ("from torch.utils.data import DataLoader", "DataLoa", "DataLoader"),
    ("import torch", "torch.linalg.sv", "svd"),
    ("import torch.distributed as dist", "dist.all_red", "all_reduce"),
    ("import torch", "torch.distributions.Norm", "Normal"),
]
RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(2, 3)
model = nn.Linear(3, 4)
loss = F.cross_entropy(model(x), torch.tensor([0, 1]))
loss.backward()
torch.optim.AdamW(model.parameters(), lr=1e-3).step()
loader = DataLoader(TensorDataset(x), batch_size=2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cudnn.deterministic = True
print(torch.__version__, torch.distributions.Normal(0.0, 1.0).log_prob(x), torch.func.vmap(torch.sin)(x))
"""
WRONG = {
    "torch.sofmax(x, 1)": "attr-defined",
    "x.softmx(1)": "attr-defined",
    'torch.randn("a")': "arg-type",
    "nn.Linea(1, 2)": "attr-defined",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel, "_installed_pytorch", lambda: "")
        made = wheel.make_wheel(folder)
    zipfile.ZipFile(made).extractall(folder / "site")
    return folder / "site"


@pytest.mark.parametrize("head, typed, expected", COMPLETIONS)
def test_an_editor_completes(head: str, typed: str, expected: str, site: Path) -> None:
    jedi = pytest.importorskip("jedi")
    others = [path for path in sys.path if "site-packages" not in path]
    project = jedi.Project(site.parent, sys_path=[str(site), str(PACKAGE), *others])
    found = jedi.Script(f"{head}\n{typed}", project=project).complete(2, len(typed))
    assert expected in [each.name for each in found]


def test_mypy_finds_slips_and_no_others(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    env = os.environ | {"MYPYPATH": os.pathsep.join([str(site), str(PACKAGE)])}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, env=env, timeout=280)
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(lines) == len(WRONG), done.stdout
    first = RIGHT.count("\n") + 1
    for i, (line, code) in enumerate(zip(lines, WRONG.values(), strict=True)):
        assert f"program.py:{first + i}: error:" in line and f"[{code}]" in line, line


def test_pyright_finds_slips_and_no_others(site: Path, tmp_path: Path) -> None:
    """The editors' checker also asks whether a package lists the names that it hands on."""
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("needs pyright")
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    settings = {"include": ["program.py"], "extraPaths": [str(site), str(PACKAGE)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    found = json.loads(done.stdout)["generalDiagnostics"]
    first = RIGHT.count("\n")
    assert [each["range"]["start"]["line"] for each in found] == [first + i for i in range(len(WRONG))], found


def hidden(path: Path) -> set[str]:
    """Names that a module imports and does not list: a checker of types calls them private."""
    names, listed = set(), set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                listed |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {one.asname or one.name for one in node.names if one.name not in ("*", one.asname)}
    return names - listed


@pytest.mark.parametrize("module", ["cuda", "func", "distributions", "optim", "optim.lr_scheduler"])
def test_a_package_lists_the_names_that_it_hands_on(module: str) -> None:
    lines = (Path(__file__).with_name("public_names.txt")).read_text().splitlines()
    (public,) = (line.split(":")[1].split() for line in lines if line.startswith(f"warptape.{module}:"))
    file = importlib.import_module(f"warptape.{module}").__file__
    assert file is not None
    assert set(public) & hidden(Path(file)) == set()


def test_a_name_that_is_not_listed_is_found(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(
        "from .a import b, c, d as d, e\n__all__ = ['b']\n__all__ += ['e']\n"
    )
    assert hidden(tmp_path / "planted.py") == {"c"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(wheel, "_installed_pytorch", lambda: "")
    monkeypatch.setattr(sys, "argv", ["wheel", str(tmp_path / "file")])
    with pytest.raises(SystemExit, match=r"warptape\.torch\.wheel: the wheel cannot be written: .*file"):
        wheel.main()
