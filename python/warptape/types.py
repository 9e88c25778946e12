"""Types of arguments, for annotations."""

from __future__ import annotations

import builtins
import os
from typing import IO

import warptape

from ._missing import install_getattr as _install_getattr

Device = warptape.device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Number = builtins.int | builtins.float | builtins.bool
Tensor = warptape.Tensor
_device, _dtype = warptape.device, warptape.dtype  # what libraries annotate with
_int, _float, _bool = builtins.int, builtins.float, builtins.bool
_size = warptape.Size | list[builtins.int] | tuple[builtins.int, ...]

_install_getattr(__name__)
