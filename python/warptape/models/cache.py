"""Keys and values of the tokens that a decoder has seen."""

from __future__ import annotations

from typing import Any

import warptape

from .._tensor import Tensor
from .config import DecoderConfig


class KVCache:
    """Room for the keys and values of `capacity` tokens of each of `batch` sequences, allocated at once.

    `keys[layer]` and `values[layer]` are [B, K, capacity, D]: K heads of keys, D head_dim. The first `length`
    positions are taken; all sequences have the same number. A forward pass that fails leaves it as it was.

    Raises: ValueError for sizes below 1.
    """

    def __init__(
        self, config: DecoderConfig, batch: int, capacity: int, *, dtype: Any = None, device: Any = None
    ) -> None:
        if batch < 1 or capacity < 1:
            raise ValueError(f"KVCache: expected a batch and a capacity above 0, got {batch} and {capacity}")
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [warptape.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [warptape.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.capacity, self.length = capacity, 0

    def check(self, batch: int, tokens: int) -> None:
        """Raises ValueError unless so many more tokens of each of so many sequences fit in."""
        if batch != self.keys[0].shape[0]:
            raise ValueError(f"KVCache: made for {self.keys[0].shape[0]} sequences, got {batch}")
        if self.length + tokens > self.capacity:
            raise ValueError(
                f"KVCache: {self.length} of {self.capacity} positions are taken, {tokens} more do not fit; "
                "make one with a larger capacity"
            )

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores [B, K, T, D] of a layer after what it has; returns all: views [B, K, length + T, D].

        `length` stays until `advance`, as all layers store the same positions.
        """
        if warptape.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise RuntimeError("KVCache: no gradient flows through a cache; use it under no_grad()")
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def advance(self, tokens: int) -> None:
        """Counts tokens that every layer has stored."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens. ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"KVCache: cannot keep {length} of {self.length} tokens")
        self.length = length
