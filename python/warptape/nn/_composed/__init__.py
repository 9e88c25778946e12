"""Functions of nn.functional that are a few calls of others; one that the core provides takes the place of
its twin."""

from warptape._arguments import checked

from . import activation, attention, bag, ctc, distance, drop, loss, norm, pool, resize, sampling, shape

__all__: list[str] = []

for _family in (activation, attention, bag, ctc, distance, drop, loss, norm, pool, resize, sampling, shape):
    for _name in _family.__all__:
        # In the family as well: a function is pickled by the place where it was written.
        globals()[_name] = vars(_family)[_name] = checked(vars(_family)[_name])
        __all__ += [_name]
