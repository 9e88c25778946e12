"""Where PyTorch has the mode under which masks of attention are made by vmap."""

from contextlib import nullcontext


class TransformGetItemToIndex(nullcontext[None]):
    """Nothing: `x[i]` takes a batched `i` under vmap as it is."""
