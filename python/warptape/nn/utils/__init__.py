"""What is done to all gradients or parameters of a model at once."""

from typing import TYPE_CHECKING

from ..._missing import install_getattr as _install_getattr
from .. import packed_sequence as rnn

if TYPE_CHECKING:
    from .clip_grad import (
        clip_grad_norm,
        clip_grad_norm_,
        clip_grad_value_,
        clip_grads_with_norm_,
        get_total_norm,
    )
    from .convert_parameters import parameters_to_vector, vector_to_parameters
    from .fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
    from .init import skip_init
    from .memory_format import convert_conv2d_weight_memory_format, convert_conv3d_weight_memory_format
    from .spectral_norm import remove_spectral_norm, spectral_norm
    from .weight_norm import remove_weight_norm, weight_norm


__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format",
    "convert_conv3d_weight_memory_format",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]

_LATE = {  # imported when first asked for
    "clip_grad": "clip_grad_norm clip_grad_norm_ clip_grad_value_ clip_grads_with_norm_ get_total_norm",
    "convert_parameters": "parameters_to_vector vector_to_parameters",
    "fusion": "fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights",
    "init": "skip_init",
    "memory_format": "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format",
    "spectral_norm": "remove_spectral_norm spectral_norm",
    "weight_norm": "remove_weight_norm weight_norm",
}
_install_getattr(__name__, _LATE)  # parametrize, parametrizations and stateless on first use
