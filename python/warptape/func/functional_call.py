"""Calls of a module with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from .._C import TensorBase
from ..nn.utils.stateless import call_with


def functional_call(
    module: nn.Module,
    parameter_and_buffer_dicts: dict[str, TensorBase] | Sequence[dict[str, TensorBase]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """`module(*args, **kwargs)` with the given tensors as its parameters, buffers and other attributes, by
    dotted name; the module is afterwards as it was. `args` may be a tuple or a single argument.

    With `tie_weights` a tensor replaces a shared one under all of its names. With `strict` every parameter
    and buffer must be given.

    Raises:
        RuntimeError: if `strict` and names are missing or unexpected.
        AttributeError: for a name in a module that is not there.
        TypeError: for what is no tensor, or the name of what is none.
        ValueError: for different tensors under the names of one that is tied, or a name in two dicts.
    """
    replacements = parameter_and_buffer_dicts
    if not isinstance(replacements, dict):
        if not isinstance(replacements, Sequence) or not all(isinstance(d, dict) for d in replacements):
            raise ValueError(
                "Expected all elements of parameter_and_buffer_dicts to be dictionaries, or one dictionary"
            )
        merged: dict[str, TensorBase] = {}
        for part in replacements:
            repeated = sorted(merged.keys() & part.keys())
            if repeated:
                raise ValueError(
                    f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous"
                )
            merged.update(part)
        replacements = merged
    return call_with(module, replacements, args, kwargs, tie_weights, strict)


def replace_all_batch_norm_modules_(root: nn.Module) -> nn.Module:
    """Takes the running statistics from the batch norms of `root`, in place: they could not be updated in a
    function that vmap maps."""
    for module in root.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
