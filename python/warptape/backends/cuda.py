"""cuBLAS: which shortcuts matrix products may take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .. import _C
from .._missing import install_getattr as _install_getattr
from ._switch import Switch


class _Matmul:
    """Switches of matrix products on CUDA devices."""

    allow_tf32 = Switch("cuda.matmul.allow_tf32", False, "float32 products may run in TF32.")
    allow_bf16_reduced_precision_reduction = Switch(
        "cuda.matmul.allow_bf16_reduced_precision_reduction", True, "bfloat16 sums may be kept in bfloat16."
    )
    allow_fp16_reduced_precision_reduction = Switch(
        "cuda.matmul.allow_fp16_reduced_precision_reduction", True, "float16 sums may be kept in float16."
    )


matmul = _Matmul()
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
    """Sets the four switches within a context. Deprecated by PyTorch: use torch.nn.attention.sdpa_kernel."""
    before = dict(attention_switches)
    attention_switches.update(
        flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn
    )
    try:
        yield dict(attention_switches)
    finally:
        attention_switches.update(before)


def is_built() -> bool:
    """Whether this build has the CUDA plugin."""
    return bool(_C._build_info()["cuda"])


_install_getattr(__name__)
