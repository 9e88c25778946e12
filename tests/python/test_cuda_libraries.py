"""Host code of the CUDA plugin around its libraries, compiled alone: how products are put to cuBLAS, what is
kept per shape, in which folders libraries are found. The libraries here are small stand-ins."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
MAJOR = 99  # no toolkit of this machine has that version: what is found is what a test made

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs g++ and an x86-64 processor"
)


def compile_cpp(out: Path, *arguments: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(COMPILER), "-o", str(out), *arguments], check=True, timeout=600)


def make_library(out: Path, code: str) -> None:
    source = out.with_suffix(".cpp")
    out.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(code)
    compile_cpp(out, "-shared", "-fPIC", f"-Wl,-soname,{out.name}", str(source))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("libraries") / "site" / "warptape" / "test_libraries"
    sources = [
        str(ROOT / "tests/emulator/test_libraries.cpp"),
        str(ROOT / "kernels/cuda/libraries/library.cpp"),
    ]
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-DWARPTAPE_CUDA_MAJOR={MAJOR}"]
    compile_cpp(out, *flags, f"-I{ROOT}", f"-I{ROOT / 'kernels/include'}", *sources, "-ldl", "-pthread")
    return out


def run(program: Path, check: str, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("WARPTAPE_CUDA_LIBRARIES", "CUDA_HOME")}
    done = subprocess.run(
        [str(program), check], env=clean | env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("check", ["products", "copies", "cache"])
def test_is_worked_out(program: Path, check: str) -> None:
    run(program, check)


def test_folders_in_order(program: Path) -> None:
    lines = run(program, "folders", WARPTAPE_CUDA_LIBRARIES="/first::/second", CUDA_HOME="/home").splitlines()
    assert lines[:2] == ["/first", "/second"]
    assert lines[-2:] == ["/home/lib64", "/usr/local/cuda/lib64"]
    wheels = [str(Path(line).resolve()) for line in lines[2:-2]]
    assert str(program.parents[1] / "nvidia" / "cudnn" / "lib") in wheels
    assert str(program.parents[1] / "nvidia" / f"cu{MAJOR}" / "lib") in wheels


def test_wheels_of_another_folder_are_searched(program: Path, tmp_path: Path) -> None:
    """`pip install --target` puts the plugin elsewhere than the nvidia-* wheels that PyTorch brought."""
    (tmp_path / "nvidia").mkdir()
    lines = run(program, "folders", PACKAGES=str(tmp_path)).splitlines()
    assert f"{tmp_path}/nvidia/cudnn/lib" in lines and f"{tmp_path}/nvidia/cu{MAJOR}/lib" in lines
    assert not any("nowhere" in line for line in run(program, "folders", PACKAGES="/nowhere").splitlines())


def test_missing_library_says_what_to_install(program: Path) -> None:
    text = run(program, "symbol", WARPTAPE_CUDA_LIBRARIES="/nowhere")
    assert f"cuBLASLt (libcublasLt.so.{MAJOR}) was not found; `pip install nvidia-cublas`" in text
    assert "/nowhere" in text and "WARPTAPE_CUDA_LIBRARIES" in text


def test_old_library_says_so(program: Path, tmp_path: Path) -> None:
    make_library(tmp_path / f"libcublasLt.so.{MAJOR}", "")
    text = run(program, "symbol", WARPTAPE_CUDA_LIBRARIES=str(tmp_path))
    assert f"{tmp_path}/libcublasLt.so.{MAJOR} has no function cublasLtOfTomorrow" in text


def test_broken_file_is_told_and_passed_over(program: Path, tmp_path: Path) -> None:
    broken, good = tmp_path / "broken", tmp_path / "good"
    broken.mkdir()
    (broken / f"libcublasLt.so.{MAJOR}").write_text("no library")
    assert "Found, but not usable" in run(program, "symbol", WARPTAPE_CUDA_LIBRARIES=str(broken))
    make_library(
        good / f"libcublasLt.so.{MAJOR}", 'extern "C" unsigned long cublasLtGetVersion() { return 131002; }'
    )
    text = run(program, "versions", WARPTAPE_CUDA_LIBRARIES=f"{broken}:{good}")
    assert f"cuBLASLt: 13.10.2 ({good}/libcublasLt.so.{MAJOR})" in text


def test_parts_of_cudnn_are_there_before_it_asks(program: Path) -> None:
    """cuDNN opens its parts by bare name: none is found so unless it was opened before."""
    folder = program.parents[1] / "nvidia" / "cudnn" / "lib"
    asks = """
    #include <dlfcn.h>
    extern "C" unsigned long cudnnGetVersion() {
      return dlopen("libcudnn_graph.so.9", RTLD_NOW) && dlopen("libcudnn_ops.so.9", RTLD_NOW) ? 92800 : 0;
    }"""
    make_library(folder / "libcudnn.so.9", asks)
    for part in ("graph", "ops"):
        make_library(folder / f"libcudnn_{part}.so.9", "")
    try:
        assert "cuDNN: 9.28.0 (" in run(program, "versions")
        (folder / "libcudnn_ops.so.9").unlink()
        assert "cuDNN: 0.0.0 (" in run(program, "versions")
    finally:
        shutil.rmtree(folder)


def test_what_cusolver_needs_is_there_before_it(program: Path) -> None:
    """cuSOLVER is linked with cuSPARSE and nvJitLink, which lie beside it."""
    folder = program.parents[1] / "nvidia" / "cusolver" / "lib"
    asks = """
    #include <dlfcn.h>
    extern "C" int cusolverGetVersion(int* version) {
      *version = dlopen("libcusparse.so.12", RTLD_NOW) && dlopen("libnvJitLink.so.13", RTLD_NOW) ? 12412 : 0;
      return 0;
    }"""
    make_library(folder / "libcusolver.so.12", asks)
    for part in ("libcusparse.so.12", "libnvJitLink.so.13"):
        make_library(folder / part, "")
    try:
        assert "cuSOLVER: 12.4.12 (" in run(program, "versions")
        (folder / "libcusparse.so.12").unlink()
        assert "cuSOLVER: 0.0.0 (" in run(program, "versions")
    finally:
        shutil.rmtree(folder)
