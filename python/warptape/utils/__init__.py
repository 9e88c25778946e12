"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING, Any

from ..core import offered as _offered
from ..core.swap import swap_tensors

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["checkpoint", "cmake_prefix_path", "data", "hooks", "summary", "swap_tensors", "trace_hashes"]

# For find_package(warptape): CMAKE_PREFIX_PATH.
cmake_prefix_path: str = _os.path.join(_os.path.dirname(_os.path.dirname(__file__)), "share", "cmake")


def summary(
    model: Any,
    *inputs: Any,
    input_size: Any = None,
    dtypes: Any = None,
    device: Device = None,
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
    return _offered("summary")(model, inputs, input_size, dtypes, device, depth, kwargs)


def trace_hashes(folder: Any, *, statistics: bool = False, keep: Any = (), rank: int | None = None) -> Any:
    """A context manager that writes what each op, gradient, state and batch of a run hashes to.

    `warptape diff RUN1 RUN2` then says where two such runs part: op, source line, module, rank and step.
    Parameters when their module first runs, results of modules and of collectives, and what comes into the
    outermost module are hashed, too. Views and memory that nobody has written are left out. It holds for
    this thread and for the backward passes that run in it, and each rank writes a file of its own. A step
    ends with a step of an optimizer, or where `step()` of what `with` gives is called.

    Args:
        folder: of the run; `rank0.trace` and so on are written into it.
        statistics: also writes norm, mean, extremes and samples of floating values, to compare runs by a
            tolerance. It takes longer.
        keep: (step, record) pairs, as `warptape diff` prints them, whose tensors are kept for its page.
        rank: of this trace; the process's or the simulated rank's unless given.

    Raises:
        OSError: the folder cannot be written.
        RuntimeError: it is entered twice.

    The hash is CRC-32C and CRC-32 of the values in their logical order: faults within 32 bits in a row are
    seen for certain.

    Example::

        >>> import tempfile
        >>> with torch.utils.trace_hashes(tempfile.mkdtemp()):
        ...     doubled = torch.ones(2) * 2
    """
    return _offered("trace_hashes")(folder, statistics=statistics, keep=keep, rank=rank)


# Imports data where it is first named: most of the package's import time
