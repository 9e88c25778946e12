"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of all heads are
made of one short vector of a token, their latent.

B batch, T tokens, C width, H heads; a head's query and key have P plain and R turned numbers, D = P + R, its
value V. Caches hold keys and values of all heads, each of D numbers, not the latents.
"""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from .layers import Attention
from .parts import LatentConfig
from .rotary import Rotation, rotate


class LatentAttention(Attention):
    """[B, T, C] -> [B, T, C], as Attention, with keys and values by latents.

    Args:
        config: sizes of the latents.
        width, heads: C and H.
        bias: whether what makes latents, and the output, have biases.
        norm: a kind of layers, for latents.
        options: dropout, interleaved and scale of Attention; device and dtype of the parameters.
    """

    def __init__(
        self,
        config: LatentConfig,
        width: int,
        heads: int,
        *,
        bias: bool,
        dropout: float,
        interleaved: bool,
        scale: float | None,
        **factory: Any,
    ) -> None:
        nn.Module.__init__(self)
        self.config = config
        self._attends(heads, heads, config.head_dim, dropout, interleaved, scale)
        rows = heads * config.head_dim
        if config.query_rank is None:
            self.q_proj = nn.Linear(width, rows, bias=False, **factory)
        else:
            self.q_a_proj = nn.Linear(width, config.query_rank, bias=bias, **factory)
            self.q_a_norm = nn.RMSNorm(config.query_rank, eps=1e-6, **factory)
            self.q_b_proj = nn.Linear(config.query_rank, rows, bias=False, **factory)
        self.kv_a_proj = nn.Linear(width, config.kv_rank + config.rotary_width, bias=bias, **factory)
        self.kv_a_norm = nn.RMSNorm(config.kv_rank, eps=1e-6, **factory)
        each = config.plain_width + config.value_width
        self.kv_b_proj = nn.Linear(config.kv_rank, heads * each, bias=False, **factory)
        self.o_proj = nn.Linear(heads * config.value_width, width, bias=bias, **factory)

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, D]; the last D - V numbers of values are 0."""
        config, (batch, tokens, _) = self.config, x.shape
        if config.query_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
        q = q.view(batch, tokens, self.heads, -1).transpose(1, 2)
        latent, shared = self.kv_a_proj(x).split([config.kv_rank, config.rotary_width], -1)
        projected = self.kv_b_proj(self.kv_a_norm(latent)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        k, v = projected.split([config.plain_width, config.value_width], -1)
        plain, turned = q.split([config.plain_width, config.rotary_width], -1)
        shared = shared.unsqueeze(1)  # [B, 1, T, R]: one for all heads
        if rotation is not None:
            turned = rotate(turned, rotation, self.interleaved)
            shared = rotate(shared, rotation, self.interleaved)
        q = wt.cat([plain, turned], -1)
        k = wt.cat([k, shared.expand(-1, self.heads, -1, -1)], -1)
        return q, k, nn.functional.pad(v, (0, config.head_dim - config.value_width))

    def _joined(self, y: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, T, H V]"""
        return y[..., : self.config.value_width].transpose(1, 2).flatten(2)
