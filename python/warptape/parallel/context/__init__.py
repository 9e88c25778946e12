"""Context parallelism: the ranks share each sequence, and attention goes between them."""

from .api import SharedSequence, context_parallel, context_parallel_unshard, positions, set_rotate_method
from .order import shard_sequence, unshard_sequence
from .ring import ring_attention
from .ulysses import ulysses_attention

__all__ = [
    "SharedSequence",
    "context_parallel",
    "context_parallel_unshard",
    "positions",
    "ring_attention",
    "set_rotate_method",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
]
