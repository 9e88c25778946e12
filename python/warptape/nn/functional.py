"""Functions on tensors that layers are made of.

What the core computes is taken from it as it is, without a Python call in between, and documented there; what
is composed from such functions is in `_composed`. A name that neither has raises AttributeError when it is
used.
"""

from __future__ import annotations

import warptape
from warptape import _C, _missing

from . import _composed

# PyTorch has these both here and at the root, where the core puts them.
_AT_ROOT = [
    "bilinear",
    "celu",
    "celu_",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_similarity",
    "hardshrink",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "relu_",
    "rrelu_",
    "selu_",
    "sigmoid",
    "tanh",
    "threshold_",
]

globals().update({name: vars(warptape)[name] for name in _AT_ROOT if name in vars(warptape)})
globals().update({name: getattr(_composed, name) for name in _composed.__all__})
globals().update({name: getattr(_C._nn, name) for name in dir(_C._nn) if not name.startswith("_")})


__getattr__ = _missing.lookup(__name__)


def __dir__() -> list[str]:
    return sorted(name for name in globals() if not name.startswith("_"))
