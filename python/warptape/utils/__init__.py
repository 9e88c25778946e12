"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

import os as _os
from typing import Any

from .._missing import install_getattr as _install_getattr
from ..core.swap import swap_tensors

__all__ = ["checkpoint", "cmake_prefix_path", "data", "hooks", "summary", "swap_tensors"]

# For find_package(warptape): CMAKE_PREFIX_PATH.
cmake_prefix_path: str = _os.path.join(_os.path.dirname(_os.path.dirname(__file__)), "share", "cmake")


def summary(
    model: Any,
    *inputs: Any,
    input_size: Any = None,
    dtypes: Any = None,
    device: Any = None,
    depth: int | None = 3,
    **kwargs: Any,
) -> Any:
    """What a model is made of: each module's output shapes, parameters, FLOPs and bytes, and their sums.

    The model runs once, forward, in eval mode and without gradients, on `model(*inputs, **kwargs)`. It is
    left as it was: no hook stays, not after an error either, every module has the mode that it had, buffers
    and the random state do not change. On the meta device shapes are all that is computed.

    Args:
        inputs: arguments of the model.
        input_size: instead of these, the size of a tensor of zeros, batch included, or a list of sizes.
        dtypes: of these zeros, one or a list; the default dtype unless given. Tokens are `torch.long`.
        device: where they are made; where the model's parameters are unless given.
        depth: down to which level the table has lines; None for all. `rows` has all modules.

    Returns:
        A Summary with `rows`, `parameters`, `trainable`, `flops`, `parameter_bytes`, `buffer_bytes` and
        `activation_bytes`; printed it is a table, whose mult-adds are half of the FLOPs.

    Raises:
        TypeError: no Module.
        ValueError: neither inputs nor input_size, or both; not a dtype for each size; lazy parameters.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> print(torch.utils.summary(model, input_size=(4, 8)))
    module       output   parameters  mult-adds  MB out
    Sequential   [4, 2]          178        640    0.00
      0: Linear  [4, 16]         144        512    0.00
      1: ReLU    [4, 16]           -          -    0.00
      2: Linear  [4, 2]           34        128    0.00
    parameters: 178 (178 trainable, 0 not)
    mult-adds of a forward pass: 640 (1,280 FLOP)
    MB of parameters 0.00, buffers 0.00, outputs 0.00
    """
    from ._summary import summarize  # brings much along that most programs do without

    return summarize(model, inputs, input_size, dtypes, device, depth, kwargs)


_install_getattr(__name__)  # imports data where it is first named: most of the package's import time
