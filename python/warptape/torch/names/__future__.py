"""torch.__future__: how conversions of modules, `.to()` and the like, put new values into parameters."""

from __future__ import annotations

from warptape.nn.modules import cast as _cast


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Whether conversions make new Parameters; False by default: those that are there get the new values.

    Args:
        value: whether they do.
    """
    _cast.overwrite = bool(value)


def get_overwrite_module_params_on_conversion() -> bool:
    """What was set last."""
    return _cast.overwrite


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Whether conversions and load_state_dict exchange tensors by `torch.utils.swap_tensors`: False first.

    The parameters stay the same objects then, whatever class, dtype or device the new values have, and
    load_state_dict takes what `Tensor.module_load` makes of the entries.
    """
    _cast.swap = bool(value)


def get_swap_module_params_on_conversion() -> bool:
    """What was set last."""
    return _cast.swap
