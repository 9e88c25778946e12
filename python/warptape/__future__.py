"""torch.__future__: how conversions of modules, `.to()` and its kin, put new values into parameters."""

from __future__ import annotations

from ._missing import install_getattr as _install_getattr
from .nn.modules import _cast


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Whether conversions make new Parameters; False by default: those that are there get the new values."""
    _cast.overwrite = bool(value)


def get_overwrite_module_params_on_conversion() -> bool:
    """What was set last."""
    return _cast.overwrite


def set_swap_module_params_on_conversion(value: bool) -> None:
    """False is all there is: two tensors do not exchange their insides here.

    Raises:
        NotImplementedError: True.
    """
    if value:
        raise NotImplementedError(
            "set_swap_module_params_on_conversion: torch.utils.swap_tensors is not here"
        )


def get_swap_module_params_on_conversion() -> bool:
    """False."""
    return False


_install_getattr(__name__)
