"""Types of arguments, for annotations."""

from __future__ import annotations

import builtins
import os
from typing import IO

from warptape import core as wt

Device = wt.device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Number = builtins.int | builtins.float | builtins.bool
Tensor = wt.Tensor
_device, _dtype = wt.device, wt.dtype  # what libraries annotate with
_int, _float, _bool = builtins.int, builtins.float, builtins.bool
_size = wt.Size | list[builtins.int] | tuple[builtins.int, ...]
