"""cuBLAS: which shortcuts matrix products may take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _C
from .._missing import lookup as _lookup
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


def flash_sdp_enabled() -> bool:
    """Whether a program allows flash attention."""
    return attention_switches["flash"]


def math_sdp_enabled() -> bool:
    """Whether a program allows attention made of single ops."""
    return attention_switches["math"]


def mem_efficient_sdp_enabled() -> bool:
    """Whether a program allows memory-efficient attention."""
    return attention_switches["mem_efficient"]


def cudnn_sdp_enabled() -> bool:
    """Whether a program allows cuDNN's attention."""
    return attention_switches["cudnn"]


def enable_flash_sdp(enabled: bool) -> None:
    """Sets what flash_sdp_enabled() tells."""
    attention_switches["flash"] = bool(enabled)


def enable_math_sdp(enabled: bool) -> None:
    """Sets what math_sdp_enabled() tells."""
    attention_switches["math"] = bool(enabled)


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Sets what mem_efficient_sdp_enabled() tells."""
    attention_switches["mem_efficient"] = bool(enabled)


def enable_cudnn_sdp(enabled: bool) -> None:
    """Sets what cudnn_sdp_enabled() tells."""
    attention_switches["cudnn"] = bool(enabled)


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


__getattr__ = _lookup(__name__)
