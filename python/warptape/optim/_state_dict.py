"""How optimizer state is written to a state_dict and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ..core.placed import Placed
from ..core.wrappers import is_wrapper
from ._split import full_tensor_of

_COUNTERS = ("step", "mu_product", "mu", "eta")  # of all optimizers, NAdam and ASGD


def cast_state(param: Tensor, value: Any, key: str | None = None, dtype: wt.dtype | None = None) -> Any:
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
            dtype = wt.float32
        return {k: cast_state(param, v, k, dtype) for k, v in value.items()}
    given, value = value, _own_tensor(value)
    if key in _COUNTERS and not isinstance(value, wt.Tensor):
        value = wt.tensor(float(value), dtype=wt.float32)
    if isinstance(value, wt.Tensor):
        if key in _COUNTERS:
            dtype = wt.float32
        elif not param.is_floating_point():
            dtype = value.dtype
        if isinstance(param, Placed) and value.ndim and value.shape == param.shape:
            value = param.like_full(value)  # type: ignore[attr-defined]
            shard: Any = cast_state(param.detach().to_local(), value.to_local(), key, dtype)  # type: ignore[attr-defined]
            return value.like_local(shard)  # type: ignore[attr-defined]
        value = full_tensor_of(value)
        moved = value.to(dtype=dtype or param.dtype, device=param.device)
        return moved.clone() if moved is given and not is_wrapper(given) else moved
    if isinstance(value, Iterable):
        return type(value)(cast_state(param, v, None, dtype) for v in value)  # type: ignore[call-arg]
    return value


def _own_tensor(value: Any) -> Any:
    """A tensor of ours, copied, if ``value`` is an array or a tensor of another library; else ``value``."""
    import numpy as np  # here, for it is half of what importing warptape would take

    if isinstance(value, wt.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return wt.from_numpy(np.array(value))
    if hasattr(value, "__dlpack__"):
        return wt.from_dlpack(value).clone()
    return value
