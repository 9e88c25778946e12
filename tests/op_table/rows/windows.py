"""torch.signal.windows against SciPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.signal import windows

from ..table import E, Op, Rng, S, Sample, Under

U = Under()
LENGTHS = [{"M": m, "sym": sym} for m in (0, 1, 2, 7, 10) for sym in (True, False)]


def window(name: str, ref: Callable[..., Any], *extra: dict[str, Any], error: Any = None) -> Op:
    def samples(r: Rng) -> list[Sample]:
        return [S(**one, **more, dtype=U) for one in LENGTHS for more in (extra or ({},))]

    def reference(M: int, dtype: Any = None, **how: Any) -> np.ndarray:
        return np.asarray(ref(M, **how))

    return Op(
        f"signal.windows.{name}",
        samples,
        reference,
        dtypes=("float64", "float32"),
        tol={"float64": (1e-12, 1e-15)},
        grad=False,
        factory=True,
        layouts=(),
        errors=(E("ValueError", -1, **(extra or ({},))[-1]), *((error,) if error else ())),
    )


def exponential(M: int, tau: float = 1.0, sym: bool = True, center: float | None = None) -> np.ndarray:
    return np.asarray(windows.exponential(M, center, tau, sym)) if M else np.zeros(0)


ROWS = [
    window("bartlett", windows.bartlett),
    window("blackman", windows.blackman),
    window("cosine", windows.cosine),
    window("exponential", exponential, {}, {"tau": 2.5}, error=E("ValueError", 3, tau=0)),
    window("gaussian", lambda M, std=1.0, sym=True: windows.gaussian(M, std, sym), {}, {"std": 2.5}),
    window(
        "general_cosine", lambda M, a, sym: windows.general_cosine(M, a, sym), {"a": (0.4, 0.3, 0.2, 0.1)}
    ),
    window("general_hamming", lambda M, alpha, sym: windows.general_hamming(M, alpha, sym), {"alpha": 0.3}),
    window("hamming", windows.hamming),
    window("hann", windows.hann),
    window("kaiser", lambda M, beta=12.0, sym=True: windows.kaiser(M, beta, sym), {}, {"beta": 3.0}),
    window("nuttall", windows.nuttall),
]
