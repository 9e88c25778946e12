"""Discrete Fourier transforms, `torch.fft`: any length, differentiable any number of times.

`norm` says where the factor 1/n stands: "backward" (the default) at the inverse, "forward" at the other,
"ortho" as 1/sqrt(n) at both. An `n`, or an `s` for several dims, cuts the input or fills it with zeros first.

Raises:
    RuntimeError: an unknown norm, a length below 1, dims that repeat, or more of them than the input has.
    DtypeError: float16 or bfloat16; complex numbers where a real signal is expected.
    NotImplementedError: a tensor that is not on the CPU.
"""

from __future__ import annotations

from ... import _C

globals().update({name: op for name, op in vars(_C._fft).items() if not name.startswith("__")})
