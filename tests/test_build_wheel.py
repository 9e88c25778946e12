"""tools/build_wheel.py sees what is wrong with a wheel, makes stubs, and splits the CUDA plugin off."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = """
int a(void) { return 1; }
int b(void) { return 2; }
int c(void) { return 1; }
int d(void) { return 3; }
__asm__(".symver a, first@@GLIBCXX_3.4.11, remove");
__asm__(".symver b, second@@GLIBCXX_3.4.30, remove");
__asm__(".symver c, second@GLIBCXX_3.4.21, remove");
__asm__(".symver d, third@@GLIBCXX_3.4.30, remove");
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "tools/build_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library libplanted.so with old and new symbols, and libuser.so that needs the newest of each."""
    if shutil.which("gcc") is None or shutil.which("readelf") is None:
        pytest.skip("needs gcc and readelf")
    folder = tmp_path_factory.mktemp("planted")
    (folder / "library.c").write_text(LIBRARY)
    (folder / "library.map").write_text("GLIBCXX_3.4.11 { };\nGLIBCXX_3.4.21 { };\nGLIBCXX_3.4.30 { };\n")
    script = f"-Wl,--version-script={folder / 'library.map'}"
    link(folder / "library.c", folder / "libplanted.so", script)
    user = "int first(void); int second(void); int third(void); int all(void) { return %s; }"
    (folder / "user.c").write_text(user % "first() + second() + third()")
    (folder / "old.c").write_text(user % "first() + second()")
    link(folder / "user.c", folder / "libuser.so", str(folder / "libplanted.so"))
    return folder


def link(source: Path, out: Path, *options: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname," + out.name, str(source), *options]
    subprocess.run([*command, "-o", str(out)], check=True)


def test_versions_are_compared_as_numbers(tool: ModuleType) -> None:
    assert [tool.newer(v) for v in ("GLIBC_2.28", "GLIBC_2.3.4", "GLIBC_2.29", "GLIBC_2.34")] == [0, 0, 1, 1]
    assert [tool.newer(v) for v in ("GLIBCXX_3.4.9", "GLIBCXX_3.4.25", "CXXABI_1.3.11")] == [0, 1, 0]
    assert not tool.newer("CXXABI_FLOAT128") and not tool.newer("GLIBC_PRIVATE") and not tool.newer("libx_9")


def test_a_stub_has_what_is_old_enough(tool: ModuleType, planted: Path, tmp_path: Path) -> None:
    assert tool.too_new(planted / "libuser.so") == ["second@GLIBCXX_3.4.30", "third@GLIBCXX_3.4.30"]
    tool.stub(planted / "libplanted.so", tmp_path / "libplanted.so")
    rows = {
        (r[0], r[4]) for r in tool.dynamic_symbols(tmp_path / "libplanted.so") if r[3] not in ("UND", "ABS")
    }
    assert rows == {("first", "GLIBCXX_3.4.11"), ("second", "GLIBCXX_3.4.21")}
    link(planted / "old.c", tmp_path / "libold.so", str(tmp_path / "libplanted.so"))
    assert tool.too_new(tmp_path / "libold.so") == []


def test_what_is_wrong_with_a_wheel_is_named(tool: ModuleType, planted: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "warptape-1-cp311-cp311-linux_x86_64.whl"
    good = {"warptape/__init__.py": b"", "warptape/nn/": b"", "warptape-1.dist-info/WHEEL": b""}
    tool.write_wheel(wheel, good, "warptape-1.dist-info/RECORD")
    assert tool.faults(wheel) == []
    bad = {"warptape/notes.orig": b"", "warptape/libuser.so": (planted / "libuser.so").read_bytes()}
    tool.write_wheel(wheel, {**good, **bad}, "warptape-1.dist-info/RECORD")
    needs = [f"warptape/libuser.so needs {name}@GLIBCXX_3.4.30" for name in ("second", "third")]
    assert tool.faults(wheel) == ["warptape/notes.orig has no place in it", *needs]


def test_a_wheel_that_is_too_large_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "warptape-1-cp311-cp311-linux_x86_64.whl"
    tool.write_wheel(wheel, {"warptape/__init__.py": bytes(range(256))}, "warptape-1.dist-info/RECORD")
    monkeypatch.setattr(tool, "LIMIT_MB", 1e-5)
    assert [fault.endswith("over 1e-05") for fault in tool.faults(wheel)] == [True]


def test_the_objects_of_a_build_serve_the_next_python(tool: ModuleType, tmp_path: Path) -> None:
    kept, forgotten = "CMakeFiles/wt_ops.dir/add.o", ("CMakeCache.txt", ".skbuild-info.json")
    (tmp_path / kept).parent.mkdir(parents=True)
    for name in (kept, ".ninja_log", ".ninja_deps", *forgotten):
        (tmp_path / name).touch()
    tool.forget_configuration(tmp_path)
    tool.forget_configuration(tmp_path / "of no build")
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {kept, ".ninja_log", ".ninja_deps"}


def test_an_old_python_is_refused_before_pip_looks_for_packages() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (least,) = re.findall(r'^requires-python = ">=(.*)"$', text, re.M)
    (override,) = re.findall(r"^\[\[tool.scikit-build.overrides\]\]\n((?:.+\n)+)", text, re.M)
    assert f'python-version = "<{least}"' in override and "fail = true" in override
    assert f"needs Python {least} or newer" in override


def test_the_plugin_gets_a_wheel_of_its_own(tool: ModuleType, tmp_path: Path) -> None:
    wheel, info = tmp_path / "warptape-1.2-cp311-cp311-linux_x86_64.whl", "warptape-1.2.dist-info"
    metadata = "Name: warptape\nRequires-Dist: numpy>=1.23\nRequires-Dist: nccl<3,>=2; extra == 'cuda'\n"
    files = {"warptape/__init__.py": b"", "warptape/libwarptape_cuda.so": b"elf"}
    files |= {f"{info}/METADATA": metadata.encode(), f"{info}/licenses/LICENSE": b"terms"}
    tool.write_wheel(wheel, files, f"{info}/RECORD")
    plugin = tool.split_plugin(wheel, tmp_path)
    with zipfile.ZipFile(wheel) as rest, zipfile.ZipFile(plugin) as own:
        assert {n for n in rest.namelist() if "dist-info" not in n} == {"warptape/__init__.py"}
        assert {n for n in own.namelist() if "dist-info" not in n} == {"warptape/libwarptape_cuda.so"}
        needs = own.read("warptape_cuda-1.2.dist-info/METADATA").decode()
        assert (
            "Requires-Dist: warptape (==1.2)\nRequires-Dist: nccl<3,>=2\n" in needs and "numpy" not in needs
        )
        for each, record in ((rest, f"{info}/RECORD"), (own, "warptape_cuda-1.2.dist-info/RECORD")):
            listed = {line.split(",")[0] for line in each.read(record).decode().splitlines()}
            assert listed == set(each.namelist())
