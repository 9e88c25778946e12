"""An extension in CUDA: built and loaded where there is nvcc, and run where there is a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import warptape as torch
from warptape.utils import _extension_build, cpp_extension

HERE = Path(__file__).resolve().parent
HAS_NVCC = cpp_extension.CUDA_HOME is not None and os.path.exists(f"{cpp_extension.CUDA_HOME}/bin/nvcc")
pytest.importorskip("pybind11")


@pytest.fixture(scope="module")
def ext(tmp_path_factory):
    if not HAS_NVCC:
        pytest.skip("no nvcc")
    if not (HERE / "rms_norm.cu").exists():
        pytest.skip("without the source of the extension")
    folder = str(tmp_path_factory.mktemp("cuda"))
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
        return cpp_extension.load("rms", str(HERE / "rms_norm.cu"), build_directory=folder)


@pytest.mark.slow
def test_a_kernel_is_built_and_refuses_tensors_of_the_host(ext):
    with pytest.raises(RuntimeError, match="rms_norm: expected CUDA tensors, got one on cpu"):
        ext.rms_norm(torch.ones(2, 3), torch.ones(3), 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_kernel_runs_on_the_current_stream(ext, dtype):
    x, weight = torch.randn(5, 300, device="cuda", dtype=dtype), torch.randn(300, device="cuda", dtype=dtype)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = ext.rms_norm(x.t().contiguous().t(), weight, 1e-6)
        torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (300,), weight, 1e-6))


def test_what_nvcc_compiles_for(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0a 10.0+PTX")
    assert _extension_build.cuda_flags() == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_100,code=sm_100",
        "-gencode=arch=compute_100,code=compute_100",
    ]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Volta")
    with pytest.raises(ValueError, match=r"Unknown CUDA arch \(Volta\)"):
        _extension_build.cuda_flags()


def test_without_a_toolkit(monkeypatch):
    monkeypatch.setattr(_extension_build, "CUDA_HOME", None)
    for call in (cpp_extension.include_paths, cpp_extension.library_paths):
        with pytest.raises(OSError, match="CUDA_HOME environment variable is not set"):
            call("cuda")
    with pytest.raises(OSError, match="no CUDA toolkit was found"):
        cpp_extension.CUDAExtension("ext", ["kernel.cu"])
