"""Rotary positions (RoFormer, Su et al. 2021), in Llama's layout: the two halves of a head are turned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ..core import Tensor

if TYPE_CHECKING:
    from warptape.core.types import Device

Rotation = tuple[Tensor, Tensor]


#: What each kind of scaling has in a config.
FIELDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
        *("truncate", "mscale", "mscale_all_dim"),
    ),
    "longrope": (
        *("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
    ),
}
_MAY_LACK = ("attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched, for contexts longer than the first training's.

    Args:
        rope_type: "linear": all of them are divided by `factor` (kaiokendev 2023). "dynamic": none is, within
            a model's max_position_embeddings, which end its context. "llama3": the slow ones are, and those
            between, in part (Llama 3.1). "yarn": likewise by turns in the original context, and cosines and
            sines are multiplied by `attention_factor` (YaRN, Peng et al. 2023, section 3). "longrope": each
            by a number of its own, and as "yarn" (LongRoPE, Ding et al. 2024).
        low_freq_factor, high_freq_factor: of "llama3": waves longer than the original context divided by the
            first are slow, those shorter than it divided by the second stay.
        beta_fast, beta_slow: of "yarn": pairs with more turns than the first stay, those with fewer than the
            second are divided.
        truncate: of "yarn": whether these pairs are whole numbers.
        attention_factor: None: of "yarn" 0.1 ln(factor) + 1, or where there are mscale and mscale_all_dim
            (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1); of "longrope"
            sqrt(1 + ln(factor) / ln(original_max_position_embeddings)).
        original_max_position_embeddings: tokens of the first training's context.
        short_factor, long_factor: of "longrope": what each pair's frequency is divided by in contexts up to
            the original one and in longer ones.

    Raises: ValueError.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in FIELDS:
            raise ValueError(
                f"rotary scaling {self.rope_type!r:.40} is not supported, only {', '.join(FIELDS)}"
            )
        numbers: list[Any] = []
        for name, value in list(vars(self).items())[1:]:
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            if name != "truncate" and not (value is None and name in _MAY_LACK):
                numbers += value if isinstance(value, (list, tuple)) else [value]
        good = all(type(n) in (int, float) and math.isfinite(n) and n > 0 for n in numbers)
        good = good and type(self.truncate) is bool
        if not good or self.low_freq_factor >= self.high_freq_factor or self.beta_slow >= self.beta_fast:
            raise ValueError(
                "expected numbers above 0, low_freq_factor < high_freq_factor and beta_slow < beta_fast, "
                f"got {self}"
            )
        if self.rope_type == "longrope" and (self.short_factor is None or self.long_factor is None):
            raise ValueError(f"longrope needs short_factor and long_factor, got {self}")

    def _stretch(self, by: float) -> float:
        return 0.1 * by * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "longrope":
            original = self.original_max_position_embeddings
            return math.sqrt(1 + math.log(self.factor) / math.log(original)) if self.factor > 1 else 1.0
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._stretch(self.mscale) / self._stretch(self.mscale_all_dim)
        return self._stretch(1.0)

    @property
    def score_scale(self) -> float:
        """What scores of latent attention are multiplied by."""
        return self._stretch(self.mscale_all_dim) ** 2 if self.mscale_all_dim is not None else 1.0


class Rotary:
    """The angles of a model's positions. It holds no state: no buffer is rounded by `model.bfloat16()`.

    Args:
        head_dim: D, even: how many numbers of a head are turned.
        theta: the base: pair i turns by theta**(-2 i / D) a position.
        scaling: None for none.
        context: the most tokens of a sequence, which "longrope" looks at.
    """

    def __init__(self, head_dim: int, theta: float, scaling: RotaryScaling | None, context: int = 0) -> None:
        self._head_dim, self._theta, self._scaling, self._context = head_dim, theta, scaling, context

    def _yarn(self, speed: Tensor, scaling: RotaryScaling) -> Tensor:
        """Pairs between `low` and `high` are divided in part."""

        def pair_of(turns: float) -> float:
            """Which pair, a fraction, has so many turns in the original context."""
            context = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
            return self._head_dim * math.log(context) / (2 * math.log(self._theta))

        low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self._head_dim - 1)
        pairs = wt.arange(self._head_dim // 2, dtype=wt.float32, device=speed.device)
        divided = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return speed * (1 - divided) + speed / scaling.factor * divided

    def frequencies(self, device: Device = None) -> Tensor:
        """Radians a position of each pair, float32 [D / 2].

        D is the width of a head.

        Args:
            device: of the result.
        """
        steps = wt.arange(0, self._head_dim, 2, dtype=wt.float32, device=device) / self._head_dim
        speed = 1.0 / self._theta**steps
        if (scaling := self._scaling) is None or scaling.rope_type == "dynamic":
            return speed
        if scaling.rope_type == "linear":
            return speed / scaling.factor
        if scaling.rope_type == "yarn":
            return self._yarn(speed, scaling)
        if scaling.rope_type == "longrope":
            longer = self._context > scaling.original_max_position_embeddings
            return speed / wt.tensor(scaling.long_factor if longer else scaling.short_factor, device=device)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = speed * (scaling.original_max_position_embeddings / (2 * math.pi))  # in the original context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return speed * ((1 - kept) / scaling.factor + kept)

    def __call__(self, positions: Tensor, dtype: wt.dtype) -> Rotation:
        """Cosines and sines for positions [T] or [B, T]: each [T, D / 2] or [B, 1, T, D / 2], as `dtype`."""
        angles = positions.float().unsqueeze(-1) * self.frequencies(positions.device)
        if positions.ndim == 2:
            angles = angles.unsqueeze(1)  # for all heads
        cos, sin = angles.cos(), angles.sin()
        if self._scaling is not None and self._scaling.amplitude != 1:
            cos, sin = cos * self._scaling.amplitude, sin * self._scaling.amplitude
        return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, rotation: Rotation, interleaved: bool = False) -> Tensor:
    """Heads [B, H, T, D], turned by their positions' angles.

    Args:
        x: any heads.
        rotation: cosines and sines [T, d / 2], for the first d numbers of a head; the others stay.
        interleaved: whether neighbours are a pair, not a number in the first half and one in the second.
    """
    cos, sin = rotation
    width = 2 * cos.shape[-1]
    x, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        turned = wt.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        turned = wt.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return turned if rest is None else wt.cat([turned, rest], -1)
