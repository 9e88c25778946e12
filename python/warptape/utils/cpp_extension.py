"""Building C++ and CUDA extensions: `load` and `load_inline` for a program that runs, `CppExtension`.

Sources for PyTorch's `<torch/extension.h>` build against the headers of this package
(docs/guides/extension.md). Objects are kept with a hash of the command and of every file that went into
them, and made again only where one of these differs.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from .._missing import install_getattr as _install_getattr
from ..library import load_extension_library
from ._extension_build import (
    CUDA_HOME,
    BuildPlan,
    build,
    check_compiler_ok_for_platform,
    get_compiler_abi_compatibility_and_version,
    include_paths,
    library_paths,
)

__all__ = [
    "CUDA_HOME",
    "BuildExtension",  # noqa: F822, made when it is asked for: setuptools is imported then
    "CUDAExtension",
    "CppExtension",
    "SyclExtension",
    "check_compiler_ok_for_platform",
    "get_compiler_abi_compatibility_and_version",
    "get_default_build_root",
    "include_paths",
    "is_ninja_available",
    "library_paths",
    "load",
    "load_inline",
    "verify_ninja_availability",
]

_Words = Sequence[str] | None


def is_ninja_available() -> bool:
    """Whether the program ninja is found. Builds do not need it.

    With it several files are compiled at once.
    """
    import shutil

    return shutil.which("ninja") is not None


def verify_ninja_availability() -> None:
    """RuntimeError unless ninja is found; `pip install ninja` installs it.

    Programs that were written for other libraries call it.
    """
    if not is_ninja_available():
        raise RuntimeError("ninja is not found; install it with: pip install ninja")


def get_default_build_root() -> str:
    """Where `load` builds: $TORCH_EXTENSIONS_DIR, else ~/.cache/warptape_extensions.

    The cache is $XDG_CACHE_HOME where that is set.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "warptape_extensions"
    )
    return os.path.realpath(root)


def _build_directory(name: str) -> str:
    place = os.path.join(get_default_build_root(), f"py{sys.version_info[0]}{sys.version_info[1]}", name)
    os.makedirs(place, exist_ok=True)
    return place


def _is_cuda(source: str) -> bool:
    return source.endswith((".cu", ".cuh"))


_versions: dict[tuple[str, str], list[str]] = {}  # of each extension: the keys that this process loaded


def _module_name(name: str, directory: str, key: str) -> str:
    """`name`, or another for another extension of that name: a module is loaded once in a process."""
    keys = _versions.setdefault((directory, name), [])
    if key not in keys:
        keys.append(key)
    return f"{name}_v{keys.index(key)}" if keys.index(key) else name


def _import(name: str, path: str) -> ModuleType:
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: _Words = None,
    extra_cuda_cflags: _Words = None,
    extra_sycl_cflags: _Words = None,
    extra_ldflags: _Words = None,
    extra_include_paths: _Words = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> Any:
    """Builds an extension from files, unless it is there already, and loads it.

    Args:
        name: the extension's, which PYBIND11_MODULE has as TORCH_EXTENSION_NAME.
        sources: files of C++ and CUDA (.cu).
        extra_cflags, extra_cuda_cflags, extra_ldflags: for the compiler, after -O2 -std=c++17; for nvcc; for
            the linker.
        extra_include_paths: where headers are found, too.
        build_directory: an existing folder; by default one of its own below `get_default_build_root()`.
        verbose: prints the commands and what they print.
        with_cuda: whether it is linked with CUDA; by default if a source is CUDA.
        is_python_module: False for a library that registers ops, `torch.ops.<namespace>.<op>`.
        is_standalone: a program is built instead.
        keep_intermediates: objects stay, for the next build.

    Returns:
        The module; the path of what was built where it is none.

    Raises:
        RuntimeError: there is no compiler, or it failed, with what it printed.
        ImportError: the module cannot be loaded.
    """
    if with_sycl or extra_sycl_cflags:
        raise NotImplementedError("torch.utils.cpp_extension.load: SYCL is not supported")
    files = [os.path.abspath(s) for s in ([sources] if isinstance(sources, str) else sources)]
    cuda = any(map(_is_cuda, files)) if with_cuda is None else with_cuda
    directory = os.path.abspath(build_directory) if build_directory else _build_directory(name)
    plan = BuildPlan(
        files,
        directory,
        include_dirs=[*(os.path.abspath(p) for p in extra_include_paths or ()), *include_paths(cuda=cuda)],
        cflags=[*_words(extra_cflags)],
        cuda_cflags=[*_words(extra_cuda_cflags)],
        ldflags=[*_words(extra_ldflags)],
        cuda=cuda,
        shared=not is_standalone,
        verbose=verbose,
        keep=keep_intermediates,
    )
    module = _module_name(name, directory, plan.key())
    plan.defines = [f"TORCH_EXTENSION_NAME={module}", "TORCH_API_INCLUDE_EXTENSION_H"]
    path = build(plan, os.path.join(directory, module + ("" if is_standalone else ".so")), name)
    if is_standalone:
        return path
    if not is_python_module:
        load_extension_library(path)
        return path
    return _import(module, path)


def _words(flags: _Words) -> Sequence[str]:
    if isinstance(flags, str):
        raise TypeError(f"flags are a list of strings, not the string {flags!r}")
    return flags or ()


_CPP_HEADERS = "#include <torch/extension.h>"
_CUDA_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>"


def _bindings(functions: Any) -> str:
    """The module that has the functions: a name, a list of names, or names and docstrings."""
    if isinstance(functions, str):
        functions = [functions]
    docs = functions if isinstance(functions, Mapping) else {name: name for name in functions}
    if not all(isinstance(name, str) for name in docs):
        raise ValueError(f"Expected 'functions' to be a list or dict of names, but got {functions!r}")
    quoted = {
        name: doc.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, doc in docs.items()
    }
    lines = [
        f'  m.def("{name}", torch::wrap_pybind_function({name}), "{doc}");' for name, doc in quoted.items()
    ]
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"])


def _write(path: str, text: str) -> str:
    """Writes a file where it has another text: a file that is the same need not be compiled again."""
    old = None
    if os.path.exists(path):
        with open(path) as file:
            old = file.read()
    if old != text:
        with open(path, "w") as file:
            file.write(text)
    return path


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: _Words = None,
    extra_cuda_cflags: _Words = None,
    extra_sycl_cflags: _Words = None,
    extra_ldflags: _Words = None,
    extra_include_paths: _Words = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> Any:
    """As `load`, from texts: those of C++ become one file, those of CUDA another.

    `functions` are put into the module, with docstrings where it is a dict; those that are written in CUDA
    need a declaration in `cpp_sources`. Errors in C++ are Python exceptions with or without
    `with_pytorch_error_handling`; `use_pch` changes nothing.

    >>> source = "at::Tensor twice(at::Tensor x) { return x + x; }"
    >>> twice = load_inline("twice", source, functions="twice").twice  # doctest: +SKIP
    """
    if with_sycl or sycl_sources or extra_sycl_cflags:
        raise NotImplementedError("torch.utils.cpp_extension.load_inline: SYCL is not supported")
    directory = os.path.abspath(build_directory) if build_directory else _build_directory(name)
    os.makedirs(directory, exist_ok=True)
    cpp = [cpp_sources] if isinstance(cpp_sources, str) else [*cpp_sources]
    cuda = [cuda_sources] if isinstance(cuda_sources, str) else [*(cuda_sources or ())]
    if functions is not None:
        cpp.append(_bindings(functions))
    headers = ([], []) if no_implicit_headers else ([_CPP_HEADERS], [_CUDA_HEADERS])
    sources = [_write(os.path.join(directory, "main.cpp"), "\n".join([*headers[0], *cpp]) + "\n")]
    if cuda:
        sources.append(_write(os.path.join(directory, "cuda.cu"), "\n".join([*headers[1], *cuda]) + "\n"))
    return load(
        name,
        sources,
        extra_cflags,
        extra_cuda_cflags,
        None,
        extra_ldflags,
        extra_include_paths,
        directory,
        verbose,
        with_cuda,
        is_python_module=is_python_module,
        keep_intermediates=keep_intermediates,
    )


def _setuptools(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError("setuptools is not installed: pip install setuptools") from None


def _extension(name: str, sources: Sequence[str], cuda: bool, options: dict[str, Any]) -> Any:
    options["include_dirs"] = [*options.get("include_dirs", ()), *include_paths(cuda=cuda)]
    options["library_dirs"] = [*options.get("library_dirs", ()), *library_paths(cuda=cuda)]
    options["libraries"] = [*options.get("libraries", ()), "warptape", *(["cudart"] if cuda else [])]
    options["language"] = "c++"
    return _setuptools("setuptools").Extension(name, list(sources), **options)


def CppExtension(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """A `setuptools.Extension` with what a C++ extension needs, to be built by `BuildExtension`.

    `extra_compile_args` is a list of flags, or a dict of them: {"cxx": [..], "nvcc": [..]}.
    """
    return _extension(name, sources, False, kwargs)


def SyclExtension(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """NotImplementedError: SYCL is not supported.

    Raises: NotImplementedError always.
    """
    raise NotImplementedError("torch.utils.cpp_extension.SyclExtension: SYCL is not supported")


def CUDAExtension(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """As `CppExtension`, with CUDA sources (.cu) among them.

    Raises:
        OSError: there is no CUDA toolkit.
    """
    return _extension(name, sources, True, kwargs)


@functools.cache
def _build_extension() -> Any:
    class BuildExtension(_setuptools("setuptools.command.build_ext").build_ext):  # type: ignore[misc]
        """The command `build_ext` of `CppExtension` and `CUDAExtension`, for setup's `cmdclass`.

        Objects are compiled as `load` compiles them, MAX_JOBS at a time.
        """

        no_python_abi_suffix = False

        @classmethod
        def with_options(cls, **options: Any) -> Callable[..., Any]:
            """The class with options set: `no_python_abi_suffix`, for a library that is no module of Python;
            `use_ninja` changes nothing."""
            return type("BuildExtension", (cls,), dict(options))

        def get_ext_filename(self, ext_name: str) -> str:
            """The name of the file, without the suffix of this Python's modules where that was asked for."""
            filename = super().get_ext_filename(ext_name)
            parts = filename.split(".")
            return (
                ".".join([*parts[:-2], parts[-1]])
                if self.no_python_abi_suffix and len(parts) > 2
                else filename
            )

        def build_extension(self, ext: Any) -> None:
            """Compiles and links one extension."""
            path = os.path.abspath(self.get_ext_fullpath(ext.name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            directory = os.path.join(os.path.abspath(self.build_temp), ext.name)
            os.makedirs(directory, exist_ok=True)
            build(_plan_of(self, ext, directory), path, ext.name)

    return BuildExtension


def _plan_of(command: Any, ext: Any, directory: str) -> BuildPlan:
    flags = ext.extra_compile_args or []
    if not isinstance(flags, Mapping):
        flags = {"cxx": flags, "nvcc": []}
    macros = [*ext.define_macros, *(command.define or ())]
    cuda = any(map(_is_cuda, ext.sources))
    plan = BuildPlan(
        [os.path.abspath(s) for s in ext.sources],
        directory,
        include_dirs=[os.path.abspath(p) for p in [*ext.include_dirs, *(command.include_dirs or ())]],
        cflags=[*flags.get("cxx", ()), *(["-g"] if command.debug else [])],
        cuda_cflags=[*flags.get("nvcc", ())],
        ldflags=[
            *ext.extra_objects,
            *(f"-L{path}" for path in ext.library_dirs),
            *(f"-l{library}" for library in ext.libraries),
            *(f"-Wl,-rpath,{path}" for path in ext.runtime_library_dirs or ()),
            *(ext.extra_link_args or ()),
        ],
        cuda=cuda,
        own_libraries=False,
        verbose=command.verbose > 1,
    )
    last = ext.name.rpartition(".")[2]
    plan.defines = [
        f"TORCH_EXTENSION_NAME={last}",
        "TORCH_API_INCLUDE_EXTENSION_H",
        *(key if value is None else f"{key}={value}" for key, value in macros),
    ]
    plan.undefines = [*ext.undef_macros]
    return plan


_install_getattr(__name__, BuildExtension=_build_extension)
