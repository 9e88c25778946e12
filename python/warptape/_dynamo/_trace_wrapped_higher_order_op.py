"""Where PyTorch has the mode under which masks of attention are made by vmap."""

from contextlib import nullcontext

from .._missing import install_getattr as _install_getattr


class TransformGetItemToIndex(nullcontext[None]):
    """Nothing: `x[i]` takes a batched `i` under vmap as it is."""


_install_getattr(__name__)
