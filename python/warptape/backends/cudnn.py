"""cuDNN: convolution and attention on CUDA devices."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

from .. import _C
from ..core.switches import Precision, Switch


def version() -> int | None:
    """The version of the cuDNN found, as 90200 for 9.2.0; None where there is none."""
    versions = [text for name, text in _C._cuda_module().versions() if name.lower() == "cudnn"]
    numbers = versions[0].split(" ")[0].split(".") if versions else []
    if len(numbers) < 3 or not all(n.isdigit() for n in numbers[:3]):
        return None
    major, minor, patch = (int(n) for n in numbers[:3])
    return major * (10000 if major >= 9 else 1000) + minor * 100 + patch


def is_available() -> bool:
    """Whether cuDNN was found."""
    return version() is not None


@contextlib.contextmanager
def flags(
    enabled: bool | None = False,
    benchmark: bool | None = False,
    benchmark_limit: int | None = 10,
    deterministic: bool | None = False,
    allow_tf32: bool | None = True,
    fp32_precision: str = "none",
    depthwise_kernel: str = "auto",
) -> Iterator[None]:
    """Sets the switches within a context; None leaves one. What concerns a search has no effect.

    Args:
        enabled, allow_tf32: whether cuDNN, and its TF32, may be used.
        deterministic: whether all kernels give the same bits each time.
        benchmark, benchmark_limit, fp32_precision, depthwise_kernel: of a search.
    """
    module = sys.modules[__name__]
    wanted = {
        "enabled": enabled,
        "benchmark": benchmark,
        "deterministic": deterministic,
        "allow_tf32": allow_tf32,
    }
    before = {name: getattr(module, name) for name in wanted}
    try:
        for name, value in wanted.items():
            if value is not None:
                setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class _CudnnModule(ModuleType):
    enabled = Switch("cudnn.enabled", True, "Use cuDNN where it serves.")
    allow_tf32 = Switch("cudnn.allow_tf32", True, "float32 convolutions may run in TF32.")
    fp32_precision = Precision("cudnn.allow_tf32")
    benchmark = Switch(
        "cudnn.benchmark",
        False,
        "Choose cuDNN's attention or our own by measurement, once for each shape. Convolutions go by cuDNN's "
        "heuristics. Without it equal runs choose alike.",
    )
    deterministic = Switch("cudnn.deterministic", False, "Choose deterministic algorithms only.")


sys.modules[__name__].__class__ = _CudnnModule
# The switches again, for type checkers and editors.
enabled: bool
allow_tf32: bool
fp32_precision: str
benchmark: bool
deterministic: bool
