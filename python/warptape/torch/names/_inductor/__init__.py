"""torch._inductor.config, whose settings programs change: see `warptape.compiler`."""

from . import config
