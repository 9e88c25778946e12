"""The layers, a file for each family."""

from ..._missing import install_getattr as _install_getattr
from .activation import *
from .adaptive import *
from .batchnorm import *
from .container import *
from .conv import *
from .data_parallel import *
from .distance import *
from .dropout import *
from .fold import *
from .lazy import *
from .linear import *
from .loss import *
from .loss import LinearCrossEntropyOptions
from .module import Module
from .normalization import *
from .padding import *
from .pooling import *
from .rnn import *
from .shape import *
from .sparse import *
from .transformer import *
from .upsampling import *


def _classes() -> list[str]:
    return sorted(
        n
        for n, value in globals().items()
        if isinstance(value, type) and (issubclass(value, Module) or value is LinearCrossEntropyOptions)
    )


_install_getattr(__name__, __all__=_classes)
