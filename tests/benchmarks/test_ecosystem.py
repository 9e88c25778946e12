"""The comparison of tools/ecosystem.py finds planted differences, and the wheel named torch redirects."""

import importlib.metadata
import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warptape
from warptape.torch.wheel import make_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ecosystem(monkeypatch):
    pytest.importorskip("tomllib", reason="the tool needs Python 3.11")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import ecosystem

    return ecosystem


def returned(values, tolerance=1e-4):
    return {"values": values, "tolerance": tolerance, "seconds": 1.0}


def test_numbers_are_compared_with_the_largest(ecosystem):
    assert ecosystem.difference([1.0, 100.0], [1.5, 100.0]) == pytest.approx(0.005)
    assert ecosystem.difference({"loss": 0.0}, {"loss": 0.0}) == 0.0
    assert ecosystem.judge(returned([1.0]), returned([1.00001]))["status"] == "agrees"
    assert ecosystem.judge(returned([1.0]), returned([1.001]))["status"] == "differs"
    assert ecosystem.judge(returned([1.0]), returned([1.001], 0.01))["status"] == "differs"
    assert ecosystem.judge(returned([1.0], 0.01), returned([1.001]))["status"] == "agrees"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([math.nan], [1.0]),
        ([1.0], [math.nan]),
        ([math.inf], [-math.inf]),
        ([math.inf], [1e38]),
        ([1, 2], [1, 3]),
        ([1], [1.0]),
        ([True], [1]),
        ("a", "b"),
        ([1.0], [1.0, 1.0]),
        ([[1.0], []], [[1.0]]),
        ({"a": 1.0}, {"b": 1.0}),
        (None, 0.0),
    ],
)
def test_what_is_no_rounding_differs(ecosystem, ours, theirs):
    assert isinstance(ecosystem.difference(ours, theirs), str)
    assert ecosystem.judge(returned(ours, 10.0), returned(theirs, 10.0))["status"] == "differs"
    assert ecosystem.difference(ours, ours) == 0.0


def test_errors_are_told_by_side(ecosystem):
    error = {"error": "AttributeError: no", "seconds": 0.0}
    assert ecosystem.judge(error, returned(1.0))["status"] == "fails"
    assert ecosystem.judge(returned(1.0), error)["status"] == "no peer"
    assert ecosystem.judge(error, error)["status"] == "no peer"
    assert ecosystem.judge(None, returned(1.0)) == {
        "status": "fails", "text": "did not run", "seconds": None, "pytorch_seconds": 1.0,
    }  # fmt: skip


SCRIPT = """# /// script
# dependencies = ["nothing==1.0", "numpy"]
# ///
import json, os, sys, time
left = dict.fromkeys(sys.argv[2:])
def write():
    json.dump(left, open(sys.argv[1], "w"))
write()
for name in left:
    if name == "ends":
        os._exit(3)
    if name == "waits":
        time.sleep(60)
    left[name] = {"values": name, "tolerance": 0.0, "seconds": 0.0}
    write()
"""


def test_case_that_ends_its_process_takes_no_other_with_it(ecosystem, tmp_path):
    script = tmp_path / "toy_cases.py"
    script.write_text(SCRIPT)
    assert ecosystem.requirements(script) == ["nothing==1.0", "numpy"]
    found = ecosystem.run(Path(sys.executable), script, ["a", "ends", "b", "waits", "c"], 5.0)
    assert [found[name].get("values") for name in ("a", "b", "c")] == ["a", "b", "c"]
    assert "ended with code 3" in found["ends"]["error"] and "took more than 5 s" in found["waits"]["error"]


def test_script_that_cannot_be_imported_is_told(ecosystem, tmp_path):
    script = tmp_path / "toy_cases.py"
    script.write_text("import there_is_no_such_module\n")
    found = ecosystem.run(Path(sys.executable), script, ["a"], 60.0)
    assert "there_is_no_such_module" in found[""]["error"]
    with pytest.raises(ValueError, match="no inline script metadata"):
        ecosystem.requirements(script)


def test_cases_write_what_they_return(tmp_path):
    """_cases.py itself, under warptape's own name for torch."""
    script = tmp_path / "toy_cases.py"
    script.write_text(
        "import torch\nfrom _cases import case, main\n"
        "@case\ndef values():\n    return {'x': torch.arange(2.0), 'n': (1, 'a', None)}\n"
        "@case(tolerance=0.5)\ndef drawn():\n    return torch.rand(1)\n"
        "@case\ndef wrong():\n    raise KeyError('k')\n"
        "@case\ndef kind():\n    return object()\n"
        "main()\n"
    )
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "warptape.torch", str(script), str(out)]
    path = {"PYTHONPATH": f"{ROOT / 'benchmarks/ecosystem'}:{Path(warptape.__path__[0]).parent}"}
    done = subprocess.run(command, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["values"]["values"] == {"x": [0.0, 1.0], "n": [1, "a", None]}
    assert found["drawn"]["tolerance"] == 0.5
    assert found["drawn"]["values"] == [
        warptape.rand(1, generator=warptape.Generator().manual_seed(0)).item()
    ]
    assert found["wrong"]["error"] == "KeyError: 'k'" and "object" in found["kind"]["error"]


def test_wheel_redirects_torch(tmp_path):
    wheel = make_wheel(tmp_path / "wheels")
    with zipfile.ZipFile(wheel) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        assert {"METADATA", "RECORD", "WHEEL", "__init__.py"} <= {*names}
        # Beside them modules for editors, which no import reaches: see the program below.
        assert {name.rpartition(".")[2] for name in names if "." in name} == {"py", "pyi", "typed"}
        archive.extractall(tmp_path / "site")
    program = (
        "import importlib.metadata, torch, torch.nn.functional as F, warptape\n"
        "assert torch is warptape and F is warptape.nn.functional\n"
        "import sys, torch.optim.lr_scheduler, torch.cuda.amp, torch.utils.data\n"
        "places = [(getattr(m, '__file__', None) or '').split('/') for m in sys.modules.values()]\n"
        "assert not any('site' in place for place in places)\n"
        "print(importlib.metadata.version('torch'), torch.__version__)"
    )
    path = {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(warptape.__path__[0]).parent}"}
    done = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second and first.startswith("2.13.0+warptape")
    info = importlib.metadata.PathDistribution(next((tmp_path / "site").glob("torch-*.dist-info")))
    assert info.requires == ["warptape"] and info.version == first


def test_wheel_is_refused_beside_pytorch(tmp_path, monkeypatch):
    folder = tmp_path / "torch-2.13.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"PyTorch 2\.13\.0 is installed here"):
        make_wheel(tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()
