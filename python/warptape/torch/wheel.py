"""`python -m warptape.torch.wheel [folder]`: makes a wheel named torch that redirects to warptape.

pip then takes `torch` as installed, in the version that warptape stands in for, and `import torch` gives
warptape in every program of that environment. The wheel holds the redirection, the version, and modules of
names that nothing runs: by them editors and type checkers find under `torch` what `warptape` has.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .._missing import public_name
from ._finder import TORCH_VERSION

_INIT = '''"""Redirects `import torch` to warptape; made by `python -m warptape.torch.wheel`."""

import sys

import warptape

sys.modules["torch"] = warptape
import warptape.torch

warptape.torch.install()
'''


_FUNCTORCH = """# Redirects `import functorch` to warptape; made by `python -m warptape.torch.wheel`.
import sys

import warptape.functorch

sys.modules["functorch"] = warptape.functorch
"""


def _installed_pytorch() -> str:
    """The version of the distribution named torch in this environment, '' where it is only warptape's."""
    versions = [d.version for d in importlib.metadata.distributions(name="torch")]
    return next((version for version in versions if "+warptape" not in version), "")


def write_wheel(
    folder: str | Path, name: str, version: str, files: dict[str, str], requires: Iterable[str]
) -> Path:
    """Write a wheel of Python files, `files` by path, that requires other distributions; returns its path.

    Raises:
        OSError: the file cannot be written.
    """
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: warptape\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    out = Path(folder) / f"{name}-{version}-py3-none-any.whl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return out


def stubs() -> dict[str, str]:
    """{path: text}: for each public module of warptape one of torch with all its names, and py.typed.

    All but torch itself end in .py: of a stub alone pyright says that it has no source.
    """
    root = Path(__file__).resolve().parents[1]
    homes: dict[str, str] = {}  # public module -> where it lies
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        parts = path.relative_to(root).with_suffix("").parts
        home = ".".join(["warptape", *(parts[:-1] if parts[-1] == "__init__" else parts)])
        name = public_name(home)
        if not any(part.startswith("_") for part in name.split(".")) and parts[0] != "torch":
            homes[name] = home
    packages = {name.rpartition(".")[0] for name in homes}
    files = {"torch/py.typed": ""}
    for name, home in homes.items():
        place = "torch" + name.removeprefix("warptape").replace(".", "/")
        inside = [n for n in homes if n.rpartition(".")[0] == name] if name != "warptape" else []
        # The star comes last: torch.nn.utils.weight_norm is the function, not the module of that name.
        lines = [f'"""{home}, as torch has it."""', "", "# mypy: ignore-errors"]
        lines += [f"from . import {short} as {short}" for short in (n.rpartition(".")[2] for n in inside)]
        lines.append(f"from {home} import *")
        lines += ["from warptape import __version__ as __version__"] if name == "warptape" else []
        suffix = ".pyi" if name == "warptape" else ".py"
        files[place + ("/__init__" if name in packages else "") + suffix] = "\n".join(lines) + "\n"
    return files


def make_wheel(folder: str | Path = ".") -> Path:
    """Write the wheel named torch into `folder` and return its path.

    Raises:
        RuntimeError: this environment has PyTorch: installing the wheel would replace it.
        OSError: the file cannot be written.
    """
    if version := _installed_pytorch():
        raise RuntimeError(
            f"warptape.torch.wheel: PyTorch {version} is installed here and the wheel would replace it; use "
            "an environment without it, or `python -m warptape.torch`, which needs no wheel"
        )
    return write_wheel(
        folder,
        "torch",
        str(TORCH_VERSION),
        {"torch/__init__.py": _INIT, "functorch/__init__.py": _FUNCTORCH, **stubs()},
        ["warptape"],
    )


def main() -> None:
    """Write the wheel into the folder that the command line names and print its path."""
    parser = argparse.ArgumentParser(
        prog="python -m warptape.torch.wheel", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", nargs="?", default=".", help="where the wheel is written")
    try:
        print(make_wheel(parser.parse_args().folder))
    except RuntimeError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"warptape.torch.wheel: the wheel cannot be written: {error}")


if __name__ == "__main__":
    main()
