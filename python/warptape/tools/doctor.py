"""What this installation was built with, what it finds on this machine, what is missing and what to install.

``python -m warptape.doctor`` prints the report; its exit code is 0 if warptape works here, else 1.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from .._processor import cpu_flags, usable_isas
from ..version import __version__

_LAPACK_PACKAGE = "scipy-openblas32"
#: Packages that pip installs with warptape, beside LAPACK's.
_REQUIRED = ("numpy", "safetensors", "tqdm")
#: Optional packages: what they serve, and the extra that installs them.
_EXTRAS = {
    "matplotlib": ("loss plots", "plot"),
    "sklearn": ("examples/train_digits.py", "examples"),
    "jupyterlab": ("warptape course", "course"),
    "nbclient": ("tools/execute_notebooks.py", "notebooks"),
    "tokenizers": ("text of warptape generate", "inference"),
    "uvicorn": ("warptape serve", "serve"),
    "pybind11": ("extensions in C++", "extensions"),
    "scipy": ("tests", "tests"),
    "pytest": ("tests", "tests"),
}


def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def find_lapack() -> Path | None:
    """The LAPACK library that pip installed, or None."""
    from importlib.util import find_spec

    spec = find_spec(_LAPACK_PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    return path if path.exists() else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def explain_import_error(error: ImportError) -> str:
    """What to do about an ``ImportError`` of the compiled part of warptape, as one paragraph.

    Args:
        error: what ``import warptape._C`` raised.
    """
    text = str(error)
    start = f"warptape's compiled part cannot be loaded: {text}."
    if "libgomp" in text:
        return f"{start} The GNU OpenMP library is missing; install your system's libgomp1 package."
    if "GLIBC" in text or "CXXABI" in text:
        return f"{start} It was built on a newer system; build it here: pip install --force-reinstall ."
    return f"{start} Build it for this Python ({platform.python_version()}): pip install --force-reinstall ."


def _built() -> Iterator[str]:
    from .. import _C

    info = _C._build_info()
    yield f"compiler            {info['compiler']}"
    yield f"CPU kernels for     {info['isas']}"
    yield f"CUDA plugin         {info['cuda'] or 'no'}"
    if info["sanitize"]:
        yield f"sanitizers          {info['sanitize']}"


def _found() -> Iterator[str]:
    from .. import _C

    built = _C._build_info()["isas"].split()
    usable = usable_isas(cpu_flags())
    chosen = [isa for isa in usable if isa in built]
    yield f"processor           {cpu_model()}, {len(os.sched_getaffinity(0))} cores usable"
    yield f"instruction sets    {' '.join(usable) or 'unknown'}"
    yield f"kernels in use      {chosen[-1] if chosen else 'none'}"
    yield f"bfloat16 products   {'in hardware' if 'avx512_bf16' in cpu_flags() else 'emulated'}"
    yield f"AMX                 {'yes' if 'amx_bf16' in cpu_flags() else 'no'}"
    lapack = find_lapack()
    if lapack:
        yield f"LAPACK              {_version(_LAPACK_PACKAGE)} at {lapack}"
    for package in filter(_version, _REQUIRED):
        yield f"{package:19} {_version(package)}"
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists() or ctypes.util.find_library("cuda"):
        yield f"NVIDIA driver       {driver.read_text().splitlines()[0] if driver.exists() else 'found'}"
    yield from _found_cuda()


def _found_cuda() -> Iterator[str]:
    """Devices, and the libraries that the CUDA plugin opens; nothing without it."""
    from .. import _C, cuda

    cuda_runtime = _C._cuda_module()
    why = cuda_runtime.why_not()
    if why is not None:
        return
    for i in range(cuda.device_count()):
        p = cuda.get_device_properties(i)
        yield (
            f"{f'cuda:{i}':19} {p.name}, compute capability {p.major}.{p.minor}, "
            f"{p.total_memory / 2**30:.1f} GiB, {p.multi_processor_count} multiprocessors"
        )
    for name, version in cuda_runtime.versions():
        yield f"{name.replace('_', ' '):19} {version}"


def _missing_cuda() -> Iterator[str]:
    from .. import _C

    cuda_runtime = _C._cuda_module()
    why = cuda_runtime.why_not()
    if why is not None:
        yield f"{'CUDA':19} {why}"
        return
    for name, version in cuda_runtime.versions():
        if version.startswith("not found"):
            yield f"{name:19} {version}"


def _missing() -> Iterator[str]:
    from importlib.util import find_spec

    from .. import _C

    info = _C._build_info()
    for package in _REQUIRED:
        if _version(package) is None:
            yield f"{package:19} which warptape requires: pip install {package}"
    for package, (purpose, extra) in _EXTRAS.items():
        if find_spec(package) is None:
            yield f"{package:19} for {purpose}: pip install 'warptape[{extra}]'"
    if find_lapack() is None:
        yield f"{'LAPACK':19} for linear algebra: pip install {_LAPACK_PACKAGE}"
    yield from _missing_cuda()
    best = usable_isas(cpu_flags())[-1:]
    if best and best[0] != "avx512bf16" and best[0] not in info["isas"].split():
        yield f"{'kernels':19} for {best[0]}: reinstall without WARPTAPE_CPU_ISAS"


def problem() -> str | None:
    """What keeps warptape from working here, or None: a small product is computed and compared with NumPy."""
    import numpy as np

    from warptape import core as wt

    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    try:
        got = (wt.from_numpy(a) @ wt.from_numpy(a.T.copy())).numpy()
    except Exception as error:  # whatever it is, it belongs into the report
        return f"a product of two small matrices fails: {type(error).__name__}: {error}"
    if not np.array_equal(got, a @ a.T):
        return f"a product of two small matrices is wrong: expected {(a @ a.T).tolist()}, got {got.tolist()}"
    return None


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough (`| head -1`); the exit code still counts
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report() -> Iterator[str]:
    """The report's lines, without the trial."""
    yield f"warptape {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"at {Path(__file__).parents[1]}"
    for title, lines in (("built in", _built()), ("found", _found()), ("missing", _missing())):
        yield f"\n{title}"
        for line in list(lines) or ["nothing"]:
            yield f"  {line}"


def main() -> int:
    """Print the report; return the exit code."""
    import argparse  # modules that only ask for the processor's flags do without

    argparse.ArgumentParser(
        "warptape doctor",
        description="Print what this installation was built with, what it finds here, and what is missing.",
        epilog="The exit code is 0 if warptape works here, else 1.",
    ).parse_args()
    for line in report():
        _say(line)
    wrong = problem()
    _say(f"\n{'warptape works here' if wrong is None else 'warptape does not work here: ' + wrong}")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
