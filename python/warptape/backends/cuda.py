"""cuBLAS: which shortcuts matrix products may take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core.switches import Precision, Switch

if TYPE_CHECKING:
    pass


class _Matmul:
    """Switches of matrix products on CUDA devices."""

    allow_tf32 = Switch("cuda.matmul.allow_tf32", False, "float32 products may run in TF32.")
    fp32_precision = Precision("cuda.matmul.allow_tf32")
    allow_bf16_reduced_precision_reduction = Switch(
        "cuda.matmul.allow_bf16_reduced_precision_reduction", True, "bfloat16 sums may be kept in bfloat16."
    )
    allow_fp16_reduced_precision_reduction = Switch(
        "cuda.matmul.allow_fp16_reduced_precision_reduction", True, "float16 sums may be kept in float16."
    )


class _PlanCache:
    """The FFT plans that are kept for a CUDA device, and how many may be; of the current one, unless one is
    given by `cufft_plan_cache[device]`."""

    def __init__(self, device: int = -1) -> None:
        self._device = device

    def __getitem__(self, device: Any) -> _PlanCache:
        place = _C.device("cuda", device) if isinstance(device, int) else _C.device(device)
        return _PlanCache(-1 if place.index is None else place.index)

    def _ask(self, what: int, value: int = 0) -> int:
        return _C._cuda_module().fft_plans(self._device, what, value)

    @property
    def size(self) -> int:
        """How many plans are kept."""
        return self._ask(0)

    @property
    def max_size(self) -> int:
        """How many plans may be kept; the least recently used are forgotten first.

        Raises: RuntimeError where it is set to a number below 0.
        """
        return self._ask(1)

    @max_size.setter
    def max_size(self, value: int) -> None:
        if value < 0:
            raise RuntimeError(f"cufft_plan_cache: max_size must be 0 or more, got {value}")
        self._ask(2, value)

    def clear(self) -> None:
        """Forgets all plans."""
        most = self.max_size
        self.max_size = 0
        self.max_size = most


matmul = _Matmul()
cufft_plan_cache = _PlanCache()
# Which kinds of attention kernels a program allows: it is kept, and the choice stays the runtime's.
attention_switches = {"flash": True, "math": True, "mem_efficient": True, "cudnn": True}


def _attention_switch(kind: str) -> tuple[Callable[[], bool], Callable[[bool], None]]:
    """<kind>_sdp_enabled() and enable_<kind>_sdp(), which sets what the first tells."""

    def enabled() -> bool:
        return attention_switches[kind]

    def enable(enabled: bool) -> None:
        attention_switches[kind] = bool(enabled)

    enabled.__doc__ = f"Whether a program allows {kind} attention."
    enable.__doc__ = f"Sets whether a program allows {kind} attention."
    for function, name in ((enabled, f"{kind}_sdp_enabled"), (enable, f"enable_{kind}_sdp")):
        function.__name__ = function.__qualname__ = name
    return enabled, enable


flash_sdp_enabled, enable_flash_sdp = _attention_switch("flash")
math_sdp_enabled, enable_math_sdp = _attention_switch("math")
mem_efficient_sdp_enabled, enable_mem_efficient_sdp = _attention_switch("mem_efficient")
cudnn_sdp_enabled, enable_cudnn_sdp = _attention_switch("cudnn")


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[dict[str, bool]]:
    """Sets the four switches within a context. Deprecated by PyTorch: use torch.nn.attention.sdpa_kernel.

    Args:
        enable_flash, enable_math, enable_mem_efficient, enable_cudnn: what each is set to.
    """
    before = dict(attention_switches)
    attention_switches.update(
        flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn
    )
    try:
        yield dict(attention_switches)
    finally:
        attention_switches.update(before)


def is_built() -> bool:
    """Whether this build has the CUDA plugin; `torch.cuda.is_available` tells of a device, too.

    >>> isinstance(torch.backends.cuda.is_built(), bool)
    True
    """
    return bool(_C._build_info()["cuda"])
