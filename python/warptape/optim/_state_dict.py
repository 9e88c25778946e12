"""How optimizer state is written to a state_dict and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import warptape
from warptape import Tensor

_COUNTERS = ("step", "mu_product", "mu", "eta")  # of all optimizers, NAdam and ASGD


def cast_state(param: Tensor, value: Any, key: str | None = None, dtype: Any = None) -> Any:
    """``value`` of a saved state, with its tensors moved to ``param``'s device and dtype (or ``dtype``).

    A state with a ``master_param`` of float32 is float32 altogether.
    ``step`` becomes a float32 scalar tensor (old files keep it as a number); the update kernels count in it.
    Other counters stay in float32, too: a resumed run is to give the uninterrupted one's bits.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        if "master_param" in value:
            dtype = warptape.float32
        return {k: cast_state(param, v, k, dtype) for k, v in value.items()}
    value = _own_tensor(value)
    if key in _COUNTERS:
        if not isinstance(value, warptape.Tensor):
            value = warptape.tensor(float(value), dtype=warptape.float32)
        return value.to(dtype=warptape.float32, device=param.device)
    if isinstance(value, warptape.Tensor):
        if param.is_floating_point():
            return value.to(dtype=dtype or param.dtype, device=param.device)
        return value.to(device=param.device)
    if isinstance(value, Iterable):
        return type(value)(cast_state(param, v, None, dtype) for v in value)  # type: ignore[call-arg]
    return value


def _own_tensor(value: Any) -> Any:
    """A tensor of ours, copied, if ``value`` is an array or a tensor of another library; else ``value``."""
    import numpy as np  # here, for it is half of what importing warptape would take

    if isinstance(value, warptape.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return warptape.from_numpy(np.array(value))
    if hasattr(value, "__dlpack__"):
        return warptape.from_dlpack(value).clone()
    return value
