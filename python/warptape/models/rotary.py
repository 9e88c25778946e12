"""Rotary positions (RoFormer, Su et al. 2021), in Llama's layout: the two halves of a head are turned."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import warptape

from .._tensor import Tensor

Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched, for contexts longer than the first training's.

    Args:
        rope_type: "linear": all of them are divided by `factor` (kaiokendev 2023). "llama3": the slow ones
            are, and those between, in part (Llama 3.1).
        low_freq_factor, high_freq_factor: of "llama3": waves longer than the original context divided by the
            first are slow, those shorter than it divided by the second stay.
        original_max_position_embeddings: of "llama3": the context of the first training, in tokens.

    Raises: ValueError.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if self.rope_type not in ("linear", "llama3"):
            raise ValueError(
                f"rotary scaling {self.rope_type!r:.40} is not supported, only linear and llama3"
            )
        numbers = astuple(self)[1:]
        good = all(type(n) in (int, float) and math.isfinite(n) and n > 0 for n in numbers)
        if not good or self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(f"expected numbers above 0, and low_freq_factor < high_freq_factor, got {self}")


class Rotary:
    """The angles of a model's positions. It holds no state: no buffer is rounded by `model.bfloat16()`.

    Args:
        head_dim: D, even.
        theta: the base: pair i turns by theta**(-2 i / D) a position.
    """

    def __init__(self, head_dim: int, theta: float, scaling: RotaryScaling | None) -> None:
        self._head_dim, self._theta, self._scaling = head_dim, theta, scaling

    def frequencies(self, device: Any = None) -> Tensor:
        """Radians a position of each pair, float32 [D / 2]."""
        steps = warptape.arange(0, self._head_dim, 2, dtype=warptape.float32, device=device) / self._head_dim
        speed = 1.0 / self._theta**steps
        if (scaling := self._scaling) is None:
            return speed
        if scaling.rope_type == "linear":
            return speed / scaling.factor
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = speed * (scaling.original_max_position_embeddings / (2 * math.pi))  # in the original context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return speed * ((1 - kept) / scaling.factor + kept)

    def __call__(self, positions: Tensor, dtype: Any) -> Rotation:
        """Cosines and sines for positions [T] or [B, T]: each [T, D / 2] or [B, 1, T, D / 2], as `dtype`."""
        angles = positions.float().unsqueeze(-1) * self.frequencies(positions.device)
        if positions.ndim == 2:
            angles = angles.unsqueeze(1)  # for all heads
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Heads [B, H, T, D], turned by their positions' angles."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    return warptape.cat([a * cos - b * sin, b * cos + a * sin], -1)
