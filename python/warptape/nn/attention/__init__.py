"""torch.nn.attention: which kernels scaled_dot_product_attention may take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from enum import IntEnum

from ...backends import cuda as _cuda

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(IntEnum):
    """Kinds of kernels. The runtime chooses by shape and device; all give the same values up to rounding.

    The names are PyTorch's; `sdpa_kernel` takes them.
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4

    def __repr__(self) -> str:
        return f"SDPBackend.{self.name}"

    __str__ = __repr__


_SWITCHES = {
    SDPBackend.MATH: "math",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "mem_efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}


@contextlib.contextmanager
def sdpa_kernel(backends: Sequence[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[None]:
    """Within this context torch.backends.cuda's switches of attention allow `backends` only.

    The switches can be read; the choice of the kernel stays the runtime's.

    Raises:
        TypeError: something that is no SDPBackend.
    """
    chosen = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for backend in chosen:
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel: expected SDPBackends, got {type(backend).__name__}")
    before = dict(_cuda.attention_switches)
    _cuda.attention_switches.update({name: kind in chosen for kind, name in _SWITCHES.items()})
    try:
        yield
    finally:
        _cuda.attention_switches.update(before)
