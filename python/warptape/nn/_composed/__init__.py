"""Functions of nn.functional that are a few calls of others; one that the core provides takes the place of
its twin."""

from . import activation, distance, drop, loss, norm, pool, shape
from .activation import *
from .distance import *
from .drop import *
from .loss import *
from .norm import *
from .pool import *
from .shape import *

__all__: list[str] = [
    name for family in (activation, distance, drop, loss, norm, pool, shape) for name in family.__all__
]
