"""torch._inductor.config, whose settings programs change: see `warptape.compiler`."""

from .._missing import install_getattr as _install_getattr
from . import config

_install_getattr(__name__)
