"""cuDNN's plans for our convolutions on a device that need not be there.

    python tools/cudnn_plans.py properties H200.json    on a GPU: writes its properties as cuDNN has them
    python tools/cudnn_plans.py plans H200.json         anywhere: makes plans for that device and prints them

Compiles tests/cudnn/conv_plans.cpp with the graphs of kernels/cuda/conv/conv_graph.h, against the headers of
the CUDA toolkit and of the wheels that `pip install '.[cuda]'` brings, and calls the cuDNN among them (9.11
or later). `plans` fails where a case has no plan.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests/cudnn/conv_plans.cpp"
#: header: the wheel that has it
HEADERS = {
    "cuda_runtime.h": "nvidia-cuda-runtime",
    "crt/host_defines.h": "nvidia-cuda-crt",
    "cublasLt.h": "nvidia-cublas",
    "nvrtc.h": "nvidia-cuda-nvrtc",
    "cudnn.h": "nvidia-cudnn-cu13",
    "cudnn_frontend.h": "nvidia-cudnn-frontend",
}
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


@dataclass(frozen=True)
class Plan:
    """One line of the program: a case, and what cuDNN chose for it or why it has nothing."""

    case: str
    dtype: str
    layout: str
    direction: str
    rules: str
    found: bool
    text: str
    workspace: int  # bytes

    @property
    def name(self) -> str:
        return f"{self.case}, {self.dtype}, {self.layout}, {self.direction}, {self.rules}"


def wheel_files(package: str) -> list[metadata.PackagePath]:
    try:
        return metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []


def include_folder(header: str) -> Path | None:
    """Where the header is found: a wheel's folder, the toolkit's, or CUDNN_FRONTEND_INCLUDE."""
    for file in wheel_files(HEADERS[header]):
        if file.as_posix().endswith(f"include/{header}"):
            return Path(str(file.locate())).parents[header.count("/")]
    for folder in (TOOLKIT / "include", Path(os.environ.get("CUDNN_FRONTEND_INCLUDE", "/nowhere"))):
        if (folder / header).exists():
            return folder
    return None


def cudart() -> Path | None:
    """The static CUDA runtime, which the program is linked with."""
    for file in wheel_files("nvidia-cuda-runtime"):
        if file.name == "libcudart_static.a":
            return Path(str(file.locate()))
    found = TOOLKIT / "lib64/libcudart_static.a"
    return found if found.exists() else None


def missing() -> list[str]:
    """What would have to be installed."""
    found = [f"{header} ({HEADERS[header]})" for header in HEADERS if include_folder(header) is None]
    if cudart() is None:
        found.append("libcudart_static.a (the CUDA toolkit, or nvidia-cuda-runtime)")
    if shutil.which("g++") is None:
        found.append("g++")
    return found


def build(out: Path) -> Path:
    """The compiled program, in the folder."""
    if lacks := missing():
        raise SystemExit(f"cudnn_plans: not found: {', '.join(lacks)}")
    folders = {str(include_folder(header)) for header in HEADERS}
    sources = [
        PROGRAM,
        ROOT / "kernels/cuda/libraries/library.cpp",
        ROOT / "kernels/cuda/libraries/library_functions.cpp",
    ]
    libraries = {
        "WARPTAPE_CUDNN_DIR": include_folder("cudnn.h"),
        "WARPTAPE_CUBLAS_DIR": include_folder("cublasLt.h"),
    }
    target = out / "conv_plans"
    command = [*(["ccache"] if shutil.which("ccache") else []), "g++", "-std=c++20", "-O0"]
    flags = [f"-I{ROOT}", f"-I{ROOT / 'kernels/include'}", *(f"-isystem{f}" for f in sorted(folders))]
    flags += [f'-D{name}="{folder}/../lib"' for name, folder in libraries.items()]
    objects = [out / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects, strict=True):
        subprocess.run([*command, *flags, "-c", str(source), "-o", str(made)], check=True)
    wrapped = [f"-Wl,--wrap={name}" for name in ("cudaGetDevice", "cudaDeviceGetAttribute")]
    links = [*wrapped, str(cudart()), "-ldl", "-lrt", "-pthread"]
    subprocess.run(["g++", "-o", str(target), *map(str, objects), *links], check=True)
    return target


def driver_stub(out: Path) -> dict[str, str]:
    """The environment for the program. cuDNN's libraries want the driver's libcuda.so.1 opened, and call
    nothing of it for a plan: without a driver it is one whose functions say that there is no device."""
    try:
        ctypes.CDLL("libcuda.so.1")
        return dict(os.environ)
    except OSError:
        pass
    libraries = [str(f.locate()) for f in wheel_files("nvidia-cudnn-cu13") if ".so" in f.name]
    listed = subprocess.run(["nm", "-D", "--undefined-only", *libraries], capture_output=True, text=True)
    names = sorted(set(re.findall(r"\bU (cu[A-Z]\w*)", listed.stdout)))
    (out / "cuda.c").write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    stub = [str(out / "libcuda.so.1"), str(out / "cuda.c"), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", *stub], check=True)
    folders = [str(out), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def plans(program: Path, properties: Path) -> Iterator[Plan]:
    """The plans for the device, as they are made."""
    command = [str(program), "plans", str(properties)]
    env = driver_stub(program.parent)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            *names, found, text, workspace = line.rstrip("\n").split("|")
            yield Plan(*names, found == "plan", text, int(workspace))
    if process.returncode:
        raise SystemExit(f"cudnn_plans: the program ended with code {process.returncode}")


def table(found: list[Plan]) -> str:
    """Cases with a plan of all, by dtype, layout and direction."""
    cells = Counter((p.dtype, p.layout, p.direction) for p in found)
    good = Counter((p.dtype, p.layout, p.direction) for p in found if p.found)
    lines = ["| dtype | layout | forward | input | weight |", "|" + " --- |" * 5]
    for dtype, layout in dict.fromkeys((p.dtype, p.layout) for p in found):
        row = [(dtype, layout, direction) for direction in ("forward", "input", "weight")]
        lines.append(f"| {dtype} | {layout} | " + " | ".join(f"{good[c]} of {cells[c]}" for c in row) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("properties", "plans"))
    parser.add_argument("file", type=Path, help="the device's properties as JSON")
    parser.add_argument("--all", action="store_true", help="print each plan")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        if options.what == "properties":
            return subprocess.run([str(program), "properties", str(options.file)], check=False).returncode
        found = list(plans(program, options.file))
    for plan in found:
        if options.all or not plan.found:
            print(f"{plan.name}: {plan.text}")
    print(table(found))
    return 0 if found and all(plan.found for plan in found) else 1


if __name__ == "__main__":
    sys.exit(main())
