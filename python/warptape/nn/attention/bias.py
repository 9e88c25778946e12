"""Causal masks for scaled_dot_product_attention of queries and keys of different number."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(IntEnum):
    """Whether the diagonal begins in the upper left corner or ends in the lower right one.

    They differ where there are more keys than queries: LOWER_RIGHT lets the last query see all keys.
    """

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class CausalBias(Tensor):
    """A causal mask, bools [seq_len_q, seq_len_kv], for `attn_mask` of scaled_dot_product_attention.

    Args:
        variant: where the diagonal lies.
        seq_len_q, seq_len_kv: numbers of queries and of keys.

    >>> from warptape.nn.attention.bias import causal_lower_right
    >>> causal_lower_right(1, 3).tolist()
    [[True, True, True]]
    """

    variant: CausalVariant
    seq_len_q: int
    seq_len_kv: int

    @staticmethod
    def __new__(cls, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> Any:
        """Makes the mask; TypeError for a variant that is none."""
        if not isinstance(variant, CausalVariant):
            raise TypeError(f"CausalBias: expected a CausalVariant, got {type(variant).__name__}")
        below = seq_len_kv - seq_len_q if variant == CausalVariant.LOWER_RIGHT else 0
        ones = wt.ones(seq_len_q, seq_len_kv, dtype=wt.bool)
        return ones.tril(below).as_subclass(cls)

    def __init__(self, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> None:
        self.variant, self.seq_len_q, self.seq_len_kv = variant, seq_len_q, seq_len_kv


def causal_upper_left(*size: int) -> CausalBias:
    """The mask of `size` rows and columns in which query i sees keys 0 to i.

    Raises:
        AssertionError: other than two sizes.
    """
    return _made(CausalVariant.UPPER_LEFT, size)


def causal_lower_right(*size: int) -> CausalBias:
    """The mask of `size` rows and columns in which the last query sees all keys.

    Raises:
        AssertionError: other than two sizes.
    """
    return _made(CausalVariant.LOWER_RIGHT, size)


def _made(variant: CausalVariant, size: tuple[int, ...]) -> CausalBias:
    if len(size) != 2:
        raise AssertionError(f"{variant.name.lower()} only supports 2D tensors, got {len(size)} sizes")
    return CausalBias(variant, *size)
