"""Functions of nn.functional that are a few calls of others; one that the core provides takes the place of
its twin."""

from warptape._arguments import checked

from . import activation, distance, drop, loss, norm, pool, resize, shape
from .activation import *
from .distance import *
from .drop import *
from .loss import *
from .norm import *
from .pool import *
from .resize import *
from .shape import *

__all__: list[str] = [
    name
    for family in (activation, distance, drop, loss, norm, pool, resize, shape)
    for name in family.__all__
]

globals().update({name: checked(globals()[name]) for name in __all__})
