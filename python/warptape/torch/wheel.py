"""`python -m warptape.torch.wheel [folder]`: makes a wheel named torch that redirects to warptape.

pip then takes `torch` as installed, in the version that warptape stands in for, and `import torch` gives
warptape in every program of that environment. The wheel holds the redirection and the version, nothing else.
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
    found = [d.version for d in importlib.metadata.distributions(name="torch")]
    return next((version for version in found if "+warptape" not in version), "")


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
        {"torch/__init__.py": _INIT, "functorch/__init__.py": _FUNCTORCH},
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
    except (RuntimeError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
