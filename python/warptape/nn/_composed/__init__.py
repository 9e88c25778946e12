"""Functions of nn.functional that are a few calls of others; one that the core provides takes the place of its twin."""

from . import activation, distance, drop, loss, norm, pool, shape
from .activation import *  # noqa: F403
from .distance import *  # noqa: F403
from .drop import *  # noqa: F403
from .loss import *  # noqa: F403
from .norm import *  # noqa: F403
from .pool import *  # noqa: F403
from .shape import *  # noqa: F403

__all__ = [
    name for family in (activation, distance, drop, loss, norm, pool, shape) for name in family.__all__
]
