"""The processor."""

from __future__ import annotations

from .. import _C
from .._processor import cpu_flags as _cpu_flags
from .._processor import usable_isas as _usable_isas

_set_pytorch_dropout = _C._private._set_pytorch_dropout


def get_cpu_capability() -> str:
    """The instruction set of the kernels in use; `WARPTAPE_CPU_LEVEL` in the environment chooses a lower one.

    Returns:
        "DEFAULT", "AVX2" or "AVX512".

    >>> torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2", "AVX512")
    True
    """
    best = _usable_isas(_cpu_flags())[-1:]
    return {"avx2": "AVX2", "avx512": "AVX512", "avx512bf16": "AVX512"}.get(
        best[0] if best else "", "DEFAULT"
    )


def set_dropout_masks(source: str) -> None:
    """Choose where dropout on the CPU takes its masks from: "philox" or "pytorch".

    "philox", the default, draws element by element from a counter (docs/guides/determinism.md): every
    device and every rank draws the same, and nothing is kept for the backward. "pytorch" draws what
    PyTorch's CPU build draws on a processor of this maker, so that a program with dropout gives PyTorch's
    losses from the same seed; masks are then drawn one number after the other, kept for the backward, and
    attention with dropout computes all its scores at once. `WARPTAPE_DROPOUT=pytorch` in the environment
    chooses it from the start.

    Raises:
        ValueError: another source.
    """
    if source not in ("philox", "pytorch"):
        raise ValueError(f"set_dropout_masks: expected 'philox' or 'pytorch', got {source!r}")
    _set_pytorch_dropout(source == "pytorch")


def get_dropout_masks() -> str:
    """Where dropout on the CPU takes its masks from; `set_dropout_masks` says what each stands for.

    Returns:
        "philox" or "pytorch".
    """
    on = _set_pytorch_dropout(False)
    _set_pytorch_dropout(on)
    return "pytorch" if on else "philox"
