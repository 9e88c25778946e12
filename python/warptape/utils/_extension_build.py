"""Compiling and linking extensions: where compilers, headers and libraries are, and what is made again."""

from __future__ import annotations

import fcntl
import functools
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..version import __version__

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CXX_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-Wno-psabi")
_NVCC_FLAGS = (
    *("-O2", "-std=c++17", "--expt-relaxed-constexpr", "--compiler-options", "-fPIC"),
    # c10::Half and c10::BFloat16 convert to float; so would CUDA's types, and calls were ambiguous.
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"),
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
)


def _find_cuda_home() -> str | None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            return home
    if nvcc := shutil.which("nvcc"):
        beside = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
        if os.path.exists(os.path.join(beside, "include", "cuda_runtime.h")):
            return beside
    return "/usr/local/cuda" if os.path.exists("/usr/local/cuda/bin/nvcc") else None


# The folder of the CUDA toolkit, or None.
CUDA_HOME: str | None = _find_cuda_home()


def _cuda_home() -> str:
    if CUDA_HOME is None:
        raise OSError(
            "CUDA_HOME environment variable is not set, and no CUDA toolkit was found. Install one, and set "
            "CUDA_HOME to its folder."
        )
    return CUDA_HOME


def _pybind11_include() -> str:
    try:
        import pybind11
    except ImportError:
        raise ImportError(
            "extensions are built with the headers of pybind11, which is not installed: pip install pybind11"
        ) from None
    return pybind11.get_include()


def include_paths(device_type: str = "cpu", cuda: bool = False) -> list[str]:
    """The folders of headers that an extension needs.

    Raises:
        ImportError: pybind11 is not installed.
        OSError: for CUDA, without a toolkit.
    """
    # Headers of PyTorch's names, those that they are written on, and pybind11's.
    paths = [os.path.join(PACKAGE, "torch", "include"), os.path.join(PACKAGE, "include"), _pybind11_include()]
    if cuda or device_type == "cuda":
        paths += [p for p in [os.path.join(_cuda_home(), "include")] if p != "/usr/include"]
    return paths


def library_paths(device_type: str = "cpu", cuda: bool = False) -> list[str]:
    """The folders of libraries that an extension is linked with. OSError for CUDA, without a toolkit."""
    paths = [PACKAGE]
    if cuda or device_type == "cuda":
        home = _cuda_home()
        names = ("lib64", "lib", os.path.join("targets", "x86_64-linux", "lib"))
        paths += [p for p in (os.path.join(home, name) for name in names) if os.path.isdir(p)]
    return paths


def _command(variable: str, default: str) -> list[str]:
    """A compiler as a command; the environment may name another."""
    words = shlex.split(os.environ.get(variable) or default)
    if not words or shutil.which(words[0]) is None:
        raise RuntimeError(
            f"there is no C++ compiler {' '.join(words)!r}: install one (apt install g++), or set the "
            f"environment variable {variable} to its name"
        )
    return words


def _nvcc() -> list[str]:
    return [os.path.join(_cuda_home(), "bin", "nvcc")]


def check_compiler_ok_for_platform(compiler: str) -> bool:
    """Whether there is such a compiler, and it is GCC or Clang."""
    return shutil.which(compiler) is not None and bool(
        re.search(r"gcc|g\+\+|clang|Free Software", _version(compiler))
    )


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def get_compiler_abi_compatibility_and_version(compiler: str) -> tuple[bool, tuple[int, ...]]:
    """Whether the compiler has all of C++17 (GCC 9, Clang 9), and its version; zeros without one."""
    if not check_compiler_ok_for_platform(compiler):
        return False, (0, 0, 0)
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", _version(compiler))
    version = tuple(int(n) for n in match.groups()) if match else (0, 0, 0)
    return version >= (9, 0, 0), version


def cuda_flags() -> list[str]:
    """What nvcc compiles for: TORCH_CUDA_ARCH_LIST ("8.0;9.0+PTX"), the devices here, or its default."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if not wanted:
        from .. import cuda

        if not cuda.is_available():
            return []
        wanted = sorted({"{}.{}".format(*cuda.get_device_capability(i)) for i in range(cuda.device_count())})
    flags = []
    for arch in wanted:
        number, _, ptx = arch.partition("+")
        if not re.fullmatch(r"\d+\.\d+[af]?", number) or ptx not in ("", "PTX"):
            raise ValueError(
                f"Unknown CUDA arch ({arch}) or GPU not supported: TORCH_CUDA_ARCH_LIST has 8.0;9.0+PTX"
            )
        digits = number.replace(".", "")
        flags.append(f"-gencode=arch=compute_{digits},code=sm_{digits}")
        if ptx:
            flags.append(f"-gencode=arch=compute_{digits},code=compute_{digits}")
    return flags


@dataclass
class BuildPlan:
    """One library or program to build: absolute sources, and what the compilers and the linker are told."""

    sources: list[str]
    directory: str  # of objects
    include_dirs: Sequence[str] = ()
    defines: list[str] = field(default_factory=list)
    undefines: list[str] = field(default_factory=list)
    cflags: Sequence[str] = ()
    cuda_cflags: Sequence[str] = ()
    ldflags: Sequence[str] = ()
    cuda: bool = False
    shared: bool = True
    own_libraries: bool = True  # linked with warptape, beside what ldflags say
    verbose: bool = False
    keep: bool = True

    def key(self) -> str:
        """A hash of the sources' texts and the flags."""
        flags = (self.include_dirs, self.cflags, self.cuda_cflags, self.ldflags, self.cuda, __version__)
        digest = hashlib.sha256(repr(flags).encode())
        for source in self.sources:
            with open(source, "rb") as file:
                digest.update(file.read() + b"\0")
        return digest.hexdigest()

    def compile_command(self, source: str, out: str) -> list[str]:
        """The command that makes an object."""
        python = sysconfig.get_paths()["include"]
        if not os.path.exists(os.path.join(python, "Python.h")):
            raise RuntimeError(
                f"there is no Python.h in {python}: install Python's headers (apt install python3-dev)"
            )
        if source.endswith(".cu"):
            words = [*_nvcc(), *_NVCC_FLAGS, *cuda_flags(), *self.cuda_cflags]
        else:
            words = [*_command("CXX", "c++"), *_CXX_FLAGS, *self.cflags]
        words += [f"-I{path}" for path in self.include_dirs]
        words += [f"-I{python}", *(f"-D{d}" for d in self.defines), *(f"-U{u}" for u in self.undefines)]
        return [*words, "-MMD", "-MF", f"{out}.d", "-c", source, "-o", out]

    def link_command(self, objects: Sequence[str], out: str) -> list[str]:
        """The command that links the objects."""
        words = [*_command("CXX", "c++"), *(["-shared"] if self.shared else []), *objects]
        if self.own_libraries:
            words += [f"-L{path}" for path in library_paths(cuda=self.cuda)]
            words += ["-lwarptape", *(["-lcudart"] if self.cuda else [])]
        if not self.shared:
            words += [f"-Wl,-rpath,{path}" for path in library_paths(cuda=self.cuda)]
        return [*words, *self.ldflags, "-o", out]


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """One process at a time builds in a folder; the lock goes with the process."""
    with open(os.path.join(directory, ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _dependencies(path: str) -> list[str]:
    """The files that a compiler's list of dependencies names."""
    with open(path) as file:
        text = file.read().replace("\\\n", " ")
    return [word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", text.partition(": ")[2]) if word]


def _stamp(command: Sequence[str], files: Sequence[str]) -> str:
    """A hash of a command and the files that went into what it makes; "" where one of them is gone."""
    digest = hashlib.sha256("\0".join([*command, _version(command[0])]).encode())
    try:
        for path in sorted(files):
            with open(path, "rb") as file:
                digest.update(file.read() + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()


def _is_made(out: str, command: Sequence[str]) -> bool:
    try:
        with open(f"{out}.stamp") as file:
            return os.path.exists(out) and file.read() == _stamp(command, _dependencies(f"{out}.d"))
    except OSError:
        return False


def _run(command: Sequence[str], name: str, verbose: bool) -> None:
    if verbose:
        print(shlex.join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if verbose and done.stdout:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"Error building extension '{name}': {shlex.join(command)}\n{done.stdout}")


def _compile(plan: BuildPlan, pair: tuple[str, str], name: str) -> bool:
    """Whether the object had to be made: (source, object)."""
    source, out = pair
    command = plan.compile_command(source, out)
    if _is_made(out, command):
        return False
    _run(command, name, plan.verbose)
    with open(f"{out}.stamp", "w") as file:
        file.write(_stamp(command, _dependencies(f"{out}.d")))
    return True


def build(plan: BuildPlan, path: str, name: str) -> str:
    """Makes the library or program `path`, as far as it is not made already; returns the path.

    Raises:
        RuntimeError: there is no compiler, or it failed, with what it printed.
    """
    objects = [
        os.path.join(plan.directory, f"{i}_{os.path.basename(source)}.o")
        for i, source in enumerate(plan.sources)
    ]
    workers = int(os.environ.get("MAX_JOBS") or min(len(os.sched_getaffinity(0)), 8))
    with _locked(plan.directory), ThreadPoolExecutor(max(workers, 1)) as pool:
        objects_built = [
            *pool.map(lambda pair: _compile(plan, pair, name), zip(plan.sources, objects, strict=True))
        ]
        command = plan.link_command(objects, path)
        linked = os.path.join(plan.directory, os.path.basename(path) + ".command")
        if any(objects_built) or not os.path.exists(path) or not _same(linked, shlex.join(command)):
            partial = f"{path}.{os.getpid()}.new"  # a process that has loaded the old one keeps it
            _run([*command[:-1], partial], name, plan.verbose)
            os.replace(partial, path)
            with open(linked, "w") as file:
                file.write(shlex.join(command))
        if not plan.keep:
            for part in objects:
                for made_file in glob.glob(glob.escape(part) + "*"):
                    os.remove(made_file)
    return path


def _same(path: str, text: str) -> bool:
    try:
        with open(path) as file:
            return file.read() == text
    except OSError:
        return False
