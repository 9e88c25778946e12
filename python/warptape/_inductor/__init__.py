"""torch._inductor.config, whose settings programs change: see `warptape.compiler`."""

from .._missing import lookup as _lookup
from . import config

__getattr__ = _lookup(__name__)
