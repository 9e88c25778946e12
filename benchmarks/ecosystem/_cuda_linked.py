"""Lets PyTorch's CPU build load the ops of torchvision and torchaudio, which PyPI has linked against CUDA.

Their CPU kernels are in there. Empty libraries stand for CUDA's, and functions are bound when they are first
called, so those of CUDA are never looked for. Needs a C compiler. Under warptape there is nothing to do.
"""

import ctypes
import importlib.metadata
import os
import subprocess
import tempfile
from pathlib import Path

import torch

LIBRARIES = {
    "torchvision": ("_C.so",),
    "torchaudio": ("lib/_torchaudio.abi3.so", "lib/libtorchaudio.abi3.so"),
}
# What the libraries refer to when they are loaded: an object of PyTorch's, and CUDA's list of kernels.
NEEDED = {
    "libc10_cuda.so": "",
    "libtorch_cuda.so": "char _ZN3c104cuda20CUDACachingAllocator9allocatorE[4096];",
    "libcudart.so.13": """void *__cudaRegisterFatBinary(void *p) { return p; }
        void __cudaRegisterFatBinaryEnd() {} void __cudaUnregisterFatBinary() {}
        void __cudaRegisterFunction() {} void __cudaRegisterVar() {}""",
}


def load() -> None:
    """Loads the libraries before their packages do, which then find them loaded."""
    if Path(torch.__file__).parent.name == "warptape" or torch.version.cuda is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        versions = Path(folder, "versions")  # CUDA's names are looked up with the library's own as version
        for name, source in NEEDED.items():
            made = os.path.join(folder, name)
            versions.write_text(f"{name} {{ *; }};" if "cudart" in name else "{ *; };")
            options = ["-shared", "-fPIC", f"-Wl,-soname,{name},--version-script,{versions}", "-o", made]
            subprocess.run(["cc", *options, "-x", "c", "-"], input=source.encode(), check=True)
            ctypes.CDLL(made, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
        for package, files in LIBRARIES.items():
            try:
                home = importlib.metadata.distribution(package).locate_file(package)
            except importlib.metadata.PackageNotFoundError:
                continue
            for file in files:
                ctypes.CDLL(os.path.join(home, file), mode=os.RTLD_LAZY)


load()
