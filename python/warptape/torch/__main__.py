"""`python -m warptape.torch`: runs a program as python would, with warptape in place of torch."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from ._finder import install

_USAGE = "usage: python -m warptape.torch (script.py | folder | -m module | -c code) [arguments]"
_HELP = f"""{_USAGE}

Runs a program that is written for PyTorch, unmodified: `import torch` gives warptape, in the program, in the
libraries that it imports and in the processes that it starts. An installed PyTorch is not used.

`python -m warptape.torch.coverage train.py` lists the names of torch that the program uses and that are
missing."""


def _without_own_frames(show: Callable[..., Any]) -> Callable[..., Any]:
    """An excepthook whose traceback starts where python's own would."""

    def hook(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        rest = trace
        while rest is not None:
            if rest.tb_frame.f_code.co_filename == __file__:
                trace = rest.tb_next
            rest = rest.tb_next
        show(kind, error.with_traceback(trace), trace)

    return hook


def _fresh_main() -> dict[str, Any]:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module).update(__builtins__=builtins)
    if sys.version_info < (3, 14):  # since then they are made when asked for
        vars(module).update(__annotations__={})
    return vars(module)


def _run_module(name: str, as_folder: bool = False) -> None:
    _fresh_main()
    # What python itself calls for -m: the program is __main__, not a copy of it that goes away.
    runpy._run_module_as_main(name, not as_folder)  # type: ignore[attr-defined]


def _run_script(path: str) -> None:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        words = f"can't open file {os.path.abspath(path)!r}: [Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: {words}", file=sys.stderr)
        sys.exit(2)
    file_name = os.path.abspath(path)
    names = _fresh_main()
    names["__file__"], names["__cached__"] = file_name, None
    names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", file_name)
    exec(compile(source, file_name, "exec", dont_inherit=True), names)


def main() -> None:
    """Run what sys.argv names."""
    arguments = sys.argv[1:]
    option = arguments[0][:2] if arguments else ""
    if option in ("-m", "-c"):
        attached = arguments[0][2:]
        target, rest = (attached, arguments[1:]) if attached else ("".join(arguments[1:2]), arguments[2:])
    else:
        target, rest = option and arguments[0], arguments[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_HELP)
        return
    if not target or (option.startswith("-") and option not in ("-m", "-c")):
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    install()
    sys.excepthook = _without_own_frames(sys.excepthook)
    sys.argv = [option if option in ("-m", "-c") else target, *rest]
    place = os.path.realpath(target)
    folder = option not in ("-m", "-c") and os.path.isdir(place)
    first = {"-m": os.getcwd(), "-c": ""}.get(option, place if folder else os.path.dirname(place))
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = first
    elif folder:
        sys.path.insert(0, first)
    if option == "-m":
        own = target == "torch" or target.startswith("torch.")
        _run_module("warptape" + target.removeprefix("torch") if own else target)
    elif option == "-c":
        exec(compile(target, "<string>", "exec", dont_inherit=True), _fresh_main())
    elif folder:
        _run_module("__main__", as_folder=True)
    else:
        _run_script(target)


if __name__ == "__main__":
    main()
