"""How optimizer state is written to a state_dict and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import warptape
from warptape import Tensor

_COUNTERS = ("step", "mu_product", "mu", "eta")  # of all optimizers, NAdam and ASGD


def cast_state(param: Tensor, value: Any, key: str | None = None, dtype: Any = None) -> Any:
    """A copy of ``value`` of a saved state, with its tensors on ``param``'s device and of its dtype (or
    ``dtype``): the state may be that of an optimizer that goes on.

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
    given, value = value, _own_tensor(value)
    if key in _COUNTERS and not isinstance(value, warptape.Tensor):
        value = warptape.tensor(float(value), dtype=warptape.float32)
    if isinstance(value, warptape.Tensor):
        if key in _COUNTERS:
            dtype = warptape.float32
        elif not param.is_floating_point():
            dtype = value.dtype
        moved = value.to(dtype=dtype or param.dtype, device=param.device)
        return moved.clone() if moved is given else moved
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
