"""cuBLAS: which shortcuts matrix products may take."""

from __future__ import annotations

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


def is_built() -> bool:
    """Whether this build has the CUDA plugin."""
    return bool(_C._build_info()["cuda"])


__getattr__ = _lookup(__name__)
