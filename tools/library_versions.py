"""Whether the CUDA plugin builds and runs with the libraries that this Python has.

    python tools/library_versions.py

PyTorch pins older releases of NVIDIA's libraries than `pip install '.[cuda]'` brings. Run by a Python that
has those releases, this compiles the plugin's host code against their headers (no code is generated), and
looks every function that the plugin opens up in their shared libraries. Those that the plugin can do without
are named; any other that is missing fails the check.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
#: the plugin's name of a library: its wheel and its file
LIBRARIES = {
    "Nvrtc": ("nvidia-cuda-nvrtc", "libnvrtc.so"),
    "CublasLt": ("nvidia-cublas", "libcublasLt.so"),
    "Cublas": ("nvidia-cublas", "libcublas.so"),
    "Cudnn": ("nvidia-cudnn-cu13", "libcudnn.so"),
    "Nccl": ("nvidia-nccl-cu13", "libnccl.so"),
    "Cupti": ("nvidia-cuda-cupti", "libcupti.so"),
    "Cufft": ("nvidia-cufft", "libcufft.so"),
    "Cusolver": ("nvidia-cusolver", "libcusolver.so"),
}
#: headers that show where a wheel's include folder is
HEADERS = {
    "nvidia-cublas": "cublasLt.h",
    "nvidia-cudnn-cu13": "cudnn.h",
    "nvidia-cudnn-frontend": "cudnn_frontend.h",
    "nvidia-nccl-cu13": "nccl.h",
}
#: looked up by library_has() before they are called
OPTIONAL = re.compile(r"cusolverDnX(sytrf|hetrf|sytrs|hetrs)(_bufferSize)?")
LOOKED_UP = re.compile(r'library_symbol\((?:\w+::)*Library::(\w+),\s*((?:"\w*"\s*)+)\)')
OF_NVRTC = re.compile(r'call\("(nvrtc\w+)"')


def wheel_file(package: str, name: str) -> Path:
    """The first file of the wheel whose own name begins so."""
    for file in metadata.files(package) or []:
        if file.name.startswith(name):
            return Path(str(file.locate())).resolve()
    raise SystemExit(f"library_versions: {package} has no {name}")


def host_sources() -> list[Path]:
    folders = ("kernels/cuda", "csrc/core/cuda", "csrc/distributed/transport/nccl")
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.cpp"))


def compiler() -> list[str]:
    includes = [wheel_file(package, header).parent for package, header in HEADERS.items()]
    folders = [ROOT, ROOT / "csrc", ROOT / "kernels/include"]
    system = [*dict.fromkeys(includes), TOOLKIT / "include"]
    return [
        "g++",
        "-std=c++20",
        "-w",
        '-DWARPTAPE_CUDA_BUILT=""',
        *(f"-I{folder}" for folder in folders),
        *(f"-isystem{folder}" for folder in system),
    ]


def check(source: Path) -> tuple[str, set[tuple[str, str]]]:
    """What the compiler says of the file, and the functions that it looks up."""
    command = compiler()
    made = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True)
    if made.returncode:
        return made.stderr, set()
    text = subprocess.run([*command, "-E", "-P", str(source)], capture_output=True, text=True, check=True)
    found = {(library, re.sub(r'["\s]', "", name)) for library, name in LOOKED_UP.findall(text.stdout)}
    return "", found | {("Nvrtc", name) for name in OF_NVRTC.findall(text.stdout)}


def functions_of(library: str) -> set[str]:
    file = wheel_file(*LIBRARIES[library])
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(file)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}


def main() -> int:
    for package in sorted({package for package, _ in LIBRARIES.values()}):
        print(f"{package} {metadata.version(package)}")
    sources = host_sources()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, sources))
    bad = [f"{source.relative_to(ROOT)}:\n{said}" for source, (said, _) in zip(sources, results) if said]
    asked = set().union(*(found for _, found in results))
    missing = {
        (library, name)
        for library in {library for library, _ in asked}
        for name in {n for at, n in asked if at == library} - functions_of(library)
    }
    for library, name in sorted(missing):
        print(f"{library} has no {name}" + ("; the plugin does without" if OPTIONAL.fullmatch(name) else ""))
    bad += [f"{name} is missing" for _, name in sorted(missing) if not OPTIONAL.fullmatch(name)]
    print(f"{len(sources)} files, {len(asked)} functions, {len(bad)} faults")
    print("\n".join(bad), file=sys.stderr)
    return 1 if bad or not asked else 0


if __name__ == "__main__":
    sys.exit(main())
