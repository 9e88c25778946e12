"""The processor."""

from __future__ import annotations

from .._missing import lookup as _lookup


def get_cpu_capability() -> str:
    """The instruction set of the kernels in use: DEFAULT, AVX2 or AVX512."""
    from ..doctor import cpu_flags, usable_isas

    best = usable_isas(cpu_flags())[-1:]
    return {"avx2": "AVX2", "avx512": "AVX512", "avx512bf16": "AVX512"}.get(
        best[0] if best else "", "DEFAULT"
    )


__getattr__ = _lookup(__name__)
