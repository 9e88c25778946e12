"""The tables of names that no module of the house has: what resolves, what is refused and why."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import warptape as torch
from warptape import _missing
from warptape.torch import listed

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import ecosystem_names as tool
names = [name for _, name in tool.listed()]
assert len(names) == len(set(names)) == 631, len(names)
print(*tool.missing(names))
"""


def test_names_of_2026_resolve_or_have_a_reason():
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "tools")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gone, reasons = done.stdout.split(), tool("ecosystem_names").left_out()
    assert sorted(gone) == sorted(reasons) and len(gone) <= 60
    assert all(len(reason) > 20 for reason in reasons.values())


def test_a_made_up_name_does_not_resolve():
    made_up = ["torch.nn.Linear", "torch._inductor.ir.NoSuchNode", "torch.no_such", "torch._no_such.x"]
    program = PROGRAM.partition("names =")[0] + f"print(*tool.missing({made_up}))"
    command = [sys.executable, "-c", program, str(ROOT / "tools")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == made_up[1:]


def test_every_line_of_the_tables_stands_for_something():
    """What lies elsewhere is there; what is refused says why in words; no name stands twice."""
    seen = set()
    for key, entry in listed._table().items():
        assert entry.path not in seen
        seen.add(entry.path)
        if entry.reason:
            assert re.match(r"[A-Za-z'].{15,}[^.]$", entry.reason), entry
        else:
            listed.value(key)
    assert len(seen) > 800


def test_a_refused_name_fails_at_its_use_alone():
    from warptape._inductor import ir, lowering

    assert isinstance(ir.IRNode, type) and not isinstance(3, ir.IRNode)
    assert issubclass(type("Mine", (ir.TensorBox,), {}), ir.TensorBox)
    for use in (ir.TensorBox, lambda: lowering.to_dtype(3, torch.int8)):
        with pytest.raises(
            NotImplementedError, match=r"torch\._inductor\..*: PyTorch's compiler Inductor is"
        ):
            use()
    assert "Inductor" in str(listed.why("torch._inductor.ir.IRNode")) and listed.why("torch.add") is None


def test_modules_of_the_tables_are_found_and_say_what_they_lack():
    assert importlib.util.find_spec("warptape._inductor.ir") is not None
    assert importlib.util.find_spec("warptape._inductor.no_such") is None
    module = importlib.import_module("warptape.fx.passes.infra.pass_base")
    assert module is torch.fx.passes.infra.pass_base and not hasattr(module, "NoSuch")
    with pytest.raises(ImportError, match=r"no torch\.fx\.passes\.infra\.pass_base\.NoSuch yet"):
        from warptape.fx.passes.infra.pass_base import NoSuch  # noqa: F401
    assert importlib.import_module("warptape.testing._comparison") is torch.testing


def test_an_import_reads_no_table():
    text = "import sys, warptape; print(sum(m.startswith('warptape.torch') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_modules_that_are_packages_in_pytorch():
    """They answer for their `__path__` without the tables, which all imports from a module would load."""
    package = ROOT / "python/warptape"
    below = set()
    for path in package.rglob("*.py"):
        name = ".".join(("warptape", *path.relative_to(package).with_suffix("").parts))
        if listed.has_modules_below(name):
            below.add(name)
    assert {name for name in below if not name.endswith(".__init__")} == _missing._PACKAGES
    code = (
        "import sys; from warptape.core.storage import TypedStorage; print('warptape.torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
